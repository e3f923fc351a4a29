"""What the characters of a line tell: its scripts, and traces of a wrong encoding."""

import functools
import re
import unicodedata

# Among the scripts of a line: signs of trouble, which no script is called.
CONTROL, REPLACEMENT = "control", "replacement"

_SCRIPTS = {
    "CJK": "Han",
    "IDEOGRAPHIC": "Han",
    "HIRAGANA": "Kana",
    "KATAKANA": "Kana",
    "KATAKANA-HIRAGANA": "Kana",
}
_WIDTHS = {"FULLWIDTH", "HALFWIDTH"}
_NO_SCRIPTS = {"MODIFIER", "MICRO", "FEMININE", "MASCULINE", "MATHEMATICAL", "DOUBLE-STRUCK"}
_BYTE_ORDER_MARK = "\ufeff"

# The bytes 80 to BF as Latin-1 and Windows-1252 read them: what follows Ã where "ä" was meant.
_LATER_BYTES = bytes(range(0x80, 0xC0))
_LATER = "".join(re.escape(_LATER_BYTES.decode(name, "ignore")) for name in ("latin-1", "cp1252"))
_MOJIBAKE = re.compile(
    f"[\u00c2\u00c3][{_LATER}]|\u00e2[\u0080\u20ac]|(?:[\u00d0\u00d1][{_LATER}]){{2}}"
)


@functools.cache
def kind(character: str) -> str | None:
    """The script of a letter, or one of the signs of trouble; None for anything else.

    The standard library has no property for scripts, but names begin with them.
    """
    if character == "\ufffd":
        return REPLACEMENT
    if unicodedata.category(character) in ("Cc", "Zl", "Zp") or character == _BYTE_ORDER_MARK:
        return None if character == "\t" else CONTROL
    if not character.isalpha():
        return None
    first, *others = unicodedata.name(character, "").split(" ")
    word = others[0] if first in _WIDTHS and others else first
    return None if not word or word in _NO_SCRIPTS else _SCRIPTS.get(word, word.capitalize())


def looks_like_mojibake(text: str) -> bool:
    """Whether UTF-8 was read as Latin-1 or Windows-1252: "Ã¤" for "ä", "â€" and more for a quote.

    A suspicion, from sequences that hardly any language writes.
    """
    return not text.isascii() and _MOJIBAKE.search(text) is not None


def is_nfc(text: str) -> bool:
    return unicodedata.is_normalized("NFC", text)


def shown(text: str, columns: int) -> str:
    """The beginning of a text, as wide as said on a screen; what cannot be printed is escaped."""
    line = ""
    for character in text:
        piece = (
            character
            if character.isprintable()
            else character.encode("unicode_escape").decode("ascii")
        )
        wide = unicodedata.east_asian_width(character) in "WF"
        columns -= 2 if wide else len(piece)
        if columns < 1:
            return f"{line}…"
        line += piece
    return line
