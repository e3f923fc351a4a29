"""Text as SentencePiece expects it, and back: single spaces, and ▁ only where it stands for one."""

import re
from collections.abc import Iterable, Iterator

# SentencePiece writes ▁ for a space. A literal ▁ is replaced by a Unicode noncharacter, which text
# should not contain; if it does, that is quoted.
SPACE, STAND_IN, QUOTE = "▁", "\ufdd0", "\ufdd1"
_QUOTED = str.maketrans({SPACE: STAND_IN, STAND_IN: QUOTE + STAND_IN, QUOTE: QUOTE * 2})
_UNQUOTED = re.compile(f"{QUOTE}([{STAND_IN}{QUOTE}])|{STAND_IN}")


def prepare(text: str) -> str:
    """Return text as SentencePiece gets it."""
    return quote(normalize_spaces(text))


def normalize_spaces(text: str) -> str:
    """Replace all white space (tabs, no-break spaces, Unicode's line ends) by single spaces.

    A lone surrogate, which is how Python keeps a byte that is not UTF-8, becomes a question mark.
    """
    return " ".join(text.split()).encode("utf-8", "replace").decode("utf-8")


def quote(text: str) -> str:
    if SPACE in text or STAND_IN in text or QUOTE in text:
        return text.translate(_QUOTED)
    return text


def quote_with_offsets(text: str) -> tuple[str, list[int]]:
    """Return the quoted text, and the offset in `text` of each of its characters and of its end."""
    offsets = [offset for offset, character in enumerate(text) for _ in quote(character)]
    return quote(text), [*offsets, len(text)]


def unquote(text: str) -> str:
    if STAND_IN in text or QUOTE in text:
        return _UNQUOTED.sub(lambda match: match[1] or SPACE, text)
    return text


def unquote_parts(parts: Iterable[str]) -> Iterator[str]:
    """Unquote a text that is given in parts; a quote at the end of one belongs to the next."""
    carry = ""
    for part in parts:
        text = carry + part
        num_open = (len(text) - len(text.rstrip(QUOTE))) % 2
        carry = QUOTE * num_open
        yield unquote(text[: len(text) - num_open])
