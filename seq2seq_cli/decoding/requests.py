"""Requests to a search, the hypotheses it returns, and scores of given ones, as token ids.

S source positions, T target positions.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from seq2seq_cli.errors import UserError
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, PAD_ID, UNK_ID

Ids = list[int]

NEVER_OUTPUT = (PAD_ID, BOS_ID, UNK_ID)  # UNK_ID unless it is replaced
IMPOSSIBLE = -1e4  # score of the empty translation where requirements exclude each other


class WordEnds:
    """The tokens that do not continue the word before them, EOS among them."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self.tokens = frozenset(tokens)
        self.ids = sorted(self.tokens)


class Phrase(NamedTuple):
    """Text that a translation must contain."""

    first: tuple[int, ...]  # its tokens at the beginning of a translation
    inner: tuple[int, ...]  # its tokens anywhere else
    word_ends: WordEnds | None = None  # the tokens that may follow; None: all
    inner_bytes: frozenset[int] = frozenset()  # its tokens that continue a character
    is_in: Callable[[Ids], bool] | None = None  # tokens, however it is split; None: as above alone


@dataclass(frozen=True)
class Request:
    """A segment to translate, and requirements that its translation must meet."""

    src: Ids  # ends in EOS
    max_length: int  # tokens of the translation without EOS; not fewer than the prefix has
    min_length: int = 0
    prefix: tuple[int, ...] = ()  # with which the translation must begin
    after_prefix: WordEnds | None = None  # the tokens that may follow it; None: all
    required: tuple[Phrase, ...] = ()
    number: int = 0  # of the line in the whole input, for the seed of sampling
    segment: int = 0  # of the line, for the seed too


class NotFiniteError(UserError):
    """The model computes NaN or infinity."""


def not_finite(number: int | None = None) -> NotFiniteError:
    """Return the error, for the line of that number if it is known; the first has number 0."""
    line = "" if number is None else f" for line {number + 1:,}"
    return NotFiniteError(
        f"the model computes NaN or infinity{line}: seq2seq inspect RUN --trace SENTENCE shows "
        "where"
    )


class Hypothesis(NamedTuple):
    """A translation, without BOS and EOS."""

    ids: Ids
    score: float  # by which a beam search ranks; 0 in other searches
