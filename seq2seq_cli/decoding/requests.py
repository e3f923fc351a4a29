"""What is asked of a search, sentence by sentence, and what it answers."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch

Ids = list[int]


class WordEnds:
    """The tokens after which a word before them is at its end, EOS among them."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self.tokens = frozenset(tokens)
        self.ids_N = torch.tensor(sorted(self.tokens), dtype=torch.int64)


class Phrase(NamedTuple):
    """Text that must stand in a translation."""

    first: tuple[int, ...]  # its tokens at the beginning of a translation
    inner: tuple[int, ...]  # and anywhere else
    word_ends: WordEnds | None = None  # what may follow; None: anything

    @property
    def length(self) -> int:
        """Tokens that it takes at most."""
        return max(len(self.first), len(self.inner))


@dataclass(frozen=True)
class Request:
    """A sentence to translate, as ids."""

    src: Ids  # ends in EOS
    max_length: int  # tokens of a translation, EOS not counted; at least those of the prefix
    min_length: int = 0
    prefix: tuple[int, ...] = ()  # how the translation must begin
    after_prefix: WordEnds | None = None  # what may follow; None: anything
    required: tuple[Phrase, ...] = ()
    number: int = 0  # of the line in the whole input: chance depends on it,
    segment: int = 0  # and on the number of the segment of the line


class Hypothesis(NamedTuple):
    """A translation, without BOS and EOS."""

    ids: Ids
    score: float  # that the search ranks by; 0 where it ranks nothing
