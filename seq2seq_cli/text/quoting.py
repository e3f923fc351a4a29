"""Text as SentencePiece gets to see it, and back: single spaces, and no ▁ that is not a space's."""

import re
from collections.abc import Iterable, Iterator

# SentencePiece writes ▁ for a space. A ▁ of the text's own is a noncharacter to it, which no text
# should hold; one that does is quoted.
SPACE, STAND_IN, QUOTE = "▁", "\ufdd0", "\ufdd1"
_QUOTED = str.maketrans({SPACE: STAND_IN, STAND_IN: QUOTE + STAND_IN, QUOTE: QUOTE * 2})
_UNQUOTED = re.compile(f"{QUOTE}([{STAND_IN}{QUOTE}])|{STAND_IN}")


def prepared(text: str) -> str:
    """What SentencePiece gets to see."""
    return quoted(normalize_spaces(text))


def normalize_spaces(text: str) -> str:
    """All white space (tabs, no-break spaces, Unicode's line ends) becomes single spaces.

    A lone surrogate, which is how Python keeps a byte that is not UTF-8, becomes a question mark.
    """
    return " ".join(text.split()).encode("utf-8", "replace").decode("utf-8")


def quoted(text: str) -> str:
    if SPACE in text or STAND_IN in text or QUOTE in text:
        return text.translate(_QUOTED)
    return text


def quoted_with_places(text: str) -> tuple[str, list[int]]:
    """Also the places in `text` of each quoted character, and of the end."""
    places = [place for place, character in enumerate(text) for _ in quoted(character)]
    return quoted(text), [*places, len(text)]


def unquoted(text: str) -> str:
    if STAND_IN in text or QUOTE in text:
        return _UNQUOTED.sub(lambda found: found[1] or SPACE, text)
    return text


def unquoted_parts(parts: Iterable[str]) -> Iterator[str]:
    """`unquoted` of a text in parts; a quote at the end of one belongs to the next."""
    before = ""
    for part in parts:
        whole = before + part
        num_open = (len(whole) - len(whole.rstrip(QUOTE))) % 2
        before = QUOTE * num_open
        yield unquoted(whole[: len(whole) - num_open])
