"""Detects the scripts of a text, and characters that suggest a wrong encoding."""

import functools
import re
import unicodedata
from collections import Counter

from seq2seq_cli.console import columns_of, printable

# Reported among the scripts of a line; no script has these names.
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

# The bytes 80 to BF as Latin-1 and Windows-1252 read them: "ä" turns into Ã and one of these.
_LATER_BYTES = bytes(range(0x80, 0xC0))
_LATER = "".join(re.escape(_LATER_BYTES.decode(name, "ignore")) for name in ("latin-1", "cp1252"))
MOJIBAKE = re.compile(
    f"[\u00c2\u00c3][{_LATER}]|\u00e2[\u0080\u20ac]|(?:[\u00d0\u00d1][{_LATER}]){{2}}"
)

_BY_TOKENIZERS = re.compile(r"\S [.,。、，](?:\s|$)|\w '(?:d|ll|m|re|s|t|ve)\b")
_IN_SUBWORDS = re.compile(r"\w@@ \w|(?:^| )▁\w")
_MAIN_SHARE = 0.2  # minimum share of a side's letters for a main script
_FEWEST_WORDS = 4  # of a line that should have a capital: shorter ones may be labels


@functools.cache
def script_of(character: str) -> str | None:
    """Return the script that the name of a letter starts with, CONTROL, REPLACEMENT, or None."""
    if character == "\ufffd":
        return REPLACEMENT
    if unicodedata.category(character) in ("Cc", "Zl", "Zp") or character == _BYTE_ORDER_MARK:
        return None if character == "\t" else CONTROL
    if not character.isalpha():
        return None
    first, *rest = unicodedata.name(character, "").split(" ")
    word = rest[0] if first in _WIDTHS and rest else first
    return None if not word or word in _NO_SCRIPTS else _SCRIPTS.get(word, word.capitalize())


def main_scripts(letters: Counter[str]) -> list[str]:
    """Return the scripts that make up a fifth of the letters or more, the most frequent first."""
    total = letters.total()
    return [name for name, count in letters.most_common() if count >= _MAIN_SHARE * total > 0]


def looks_like_mojibake(text: str) -> bool:
    """Return True if UTF-8 seems to have been read as Latin-1 or Windows-1252: "Ã¤" for "ä"."""
    return not text.isascii() and MOJIBAKE.search(text) is not None


def looks_tokenized(text: str) -> bool:
    """Return True for "I can 't , he said ."; but French has a space before question marks."""
    return _BY_TOKENIZERS.search(text) is not None


def looks_split(text: str) -> bool:
    """Return True for "un@@ related" and "▁un related": words in pieces, for another toolkit."""
    return _IN_SUBWORDS.search(text) is not None


def lacks_capitals(text: str) -> bool:
    """Return True for a line of words in lower case, in a script whose sentences have capitals.

    Georgian sentences have none. A line in another script may have Latin words.
    """
    if not (text.islower() and text.count(" ") >= _FEWEST_WORDS - 1):
        return False
    counts = Counter(text)
    with_capitals = sum(n for c, n in counts.items() if c != c.title())
    return 2 * with_capitals > sum(n for c, n in counts.items() if c.isalpha())


def truncate_for_terminal(text: str, columns: int) -> str:
    """Truncate a text to a width on the terminal; unprintable characters are escaped."""
    line = ""
    for character in text:
        character = printable(character)
        columns -= columns_of(character)
        if columns < 1:
            return f"{line}…"
        line += character
    return line
