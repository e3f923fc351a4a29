"""Glossaries: finds the terms of a text in linear time."""

import functools
import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from seq2seq_cli.text.words import continues_word


@dataclass
class _Node:
    """A node of the trie, and the terms that end there."""

    next: dict[str, "_Node"] = field(default_factory=dict)
    translations: dict[str, str] = field(default_factory=dict)  # by the term in its own case


# A term in a text, sorted by precedence: its negative length, whether it is in another case, its
# range of tokens (first, end), and its translation.
_Occurrence = tuple[int, bool, int, int, str]


class Glossary:
    """Terms and their translations, as a trie of tokens.

    A term is found in any case, and as whole words where spaces separate words.
    """

    def __init__(self, translations: Mapping[str, str]) -> None:
        self._root = _Node()
        for term, translation in translations.items():
            node, tokens = self._root, _tokens(term.strip())
            for token in tokens:
                node = node.next.setdefault(_spaced([token]).casefold(), _Node())
            node.translations.setdefault(_spaced(tokens), translation)

    def required_in(self, text: str) -> tuple[str, ...]:
        """Return the translations of the terms that a text has.

        Of overlapping terms the longest one counts; of equally long ones, one in the same case.
        """
        if not self._root.next:
            return ()
        tokens = _tokens(text)
        folded = [_spaced([token]).casefold() for token in tokens]
        found = [self._occurrences(tokens, folded, first) for first in range(len(tokens))]
        # The longest at each position; shorter ones are added when that one does not count.
        heap = [longest for each in found if (longest := next(each, None)) is not None]
        heapq.heapify(heap)
        is_taken = bytearray(len(tokens))
        required: dict[str, None] = {}
        while heap:
            _, _, first, last, translation = heapq.heappop(heap)
            if is_taken[first]:
                continue
            if not is_taken[last - 1]:  # nor any between: what is taken is at least as long
                is_taken[first:last] = bytes([True]) * (last - first)
                required[translation] = None
            elif (shorter := next(found[first], None)) is not None:
                heapq.heappush(heap, shorter)
        return tuple(required)

    def _occurrences(
        self, tokens: list[str], folded: list[str], first: int
    ) -> Iterator[_Occurrence]:
        """Yield the terms that begin at a token, the longest first."""
        node, ends = self._root, []
        for place in range(first, len(folded)):
            if (longer := node.next.get(folded[place])) is None:
                break
            node = longer
            if node.translations:
                ends.append((place + 1, node.translations))
        for last, translations in reversed(ends):
            written = _spaced(tokens[first:last])
            length = sum(map(len, tokens[first:last]))
            translation = translations.get(written, next(iter(translations.values())))
            yield -length, written not in translations, first, last, translation


def _spaced(tokens: Sequence[str]) -> str:
    """Join tokens, white space as one space."""
    return "".join(" " if token.isspace() else token for token in tokens)


def _tokens(text: str) -> list[str]:
    """Divide a text into words, white space, and any other characters."""
    tokens: list[str] = []
    for kind, group in itertools.groupby(text, _kind):
        characters = "".join(group)
        tokens += characters if kind == "other" else [characters]
    return tokens


@functools.lru_cache(maxsize=4_096)
def _kind(character: str) -> str:
    if character.isspace():
        return "space"
    return "word" if character == "_" or continues_word(character) else "other"
