"""Splits text into words: at spaces, or at characters in scripts without spaces."""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

# Scripts without spaces between words: Thai and Lao, Burmese, Khmer (whose combining marks are
# listed below), and Chinese and Japanese with their punctuation.
_WITH_MARKS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_IDEOGRAPHIC = (
    "\u3001-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40"
    "\uff5b-\uff9f\U00020000-\U0003ffff"
)
# Soft hyphen, zero-width non-joiner and joiner, word joiner.
_JOINERS = ("\u00ad", "\u200c", "\u200d", "\u2060")
ATTACHED = (  # to the character before, as marks of direction are
    "\u200b\u200e\u200f\u202c\u2069\u3099\u309a\ufe00-\ufe0f\U000e0100-\U000e01ef"
    + "".join(_JOINERS)
    + "".join(
        character
        for first, last in ("\u0e00\u0eff", "\u1000\u109f", "\u1780\u17ff")
        for character in map(chr, range(ord(first), ord(last) + 1))
        if unicodedata.category(character) in ("Mn", "Mc")
    )
)
_SPACELESS = re.compile(f"[{_WITH_MARKS}{_IDEOGRAPHIC}]")
_WORD = re.compile(
    f"[{_WITH_MARKS}{_IDEOGRAPHIC}][{ATTACHED}\"'”’»›)\\]]*+|[^\\s{_WITH_MARKS}{_IDEOGRAPHIC}]++"
)


def split_words(text: str) -> list[str]:
    """Return the words of a text; alignments number them in this order.

    Words are separated by spaces. In Chinese, Japanese, Thai, Lao, Khmer and Burmese each character
    is a word, together with the combining marks and closing quotation marks that follow it.
    """
    return _WORD.findall(text)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return where in the text each of these words begins and ends."""
    return [word.span() for word in _WORD.finditer(text)]


def words_of_spans(text: str, spans: Sequence[tuple[int, int]]) -> list[range]:
    """Return for each span of characters the range of words that it overlaps, in a text with words.

    A span of spaces belongs to the word that follows, as SentencePiece's ▁ does.
    """
    starts, ends = zip(*word_spans(text), strict=True)
    ranges = []
    for start, end in spans:
        first = min(bisect_right(ends, start), len(ends) - 1)
        ranges.append(range(first, max(first + 1, bisect_left(starts, end))))
    return ranges


def is_spaceless(text: str) -> bool:
    """Return True if the text has a character of a script without spaces between words."""
    return _SPACELESS.search(text) is not None


def is_word_character(character: str) -> bool:
    """Return True for a letter, a digit and a mark, such as a vowel sign of Hindi; not for ""."""
    return character.isalnum() or unicodedata.category(character or " ").startswith("M")


def continues_word(character: str) -> bool:
    """Return True for letters, digits, marks and invisible joiners, which continue a word."""
    is_inner = is_word_character(character) or character in _JOINERS
    return is_inner and not is_spaceless(character)
