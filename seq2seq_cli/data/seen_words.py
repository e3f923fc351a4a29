"""The words of the training text, as a small table of hashes: what a line has beyond them.

In a vocabulary of subwords, a word is a run of tokens with letters; in one of words or characters,
and in scripts without spaces, each token with letters is one. Text that is new has some words that
the training text lacks: about the share of its words that occur once there (Good 1953). A line that
has far more is unlike what the model has learned from.
"""

import base64
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from seq2seq_cli.config.tokenizer import SUBWORDS
from seq2seq_cli.data.record import Record
from seq2seq_cli.data.token_store import Sentences
from seq2seq_cli.text.quoting import SPACE
from seq2seq_cli.text.words import is_spaceless
from seq2seq_cli.tokenizers.tokenizer import EOS_ID, UNK_ID, Tokenizer

_MOST_TOKENS = 20_000_000  # that are read of a large text: parts of it, evenly spaced
_FEWEST_BITS, _MOST_BITS = 10, 20  # 2 to their power: places of the table
_PLACES_OF_A_WORD = 8
_WORDS_TO_REMEMBER = 1 << 15
_IMPROBABLE = 1e-2  # probability of that many unknown words in a line of new text

_OUTSIDE, _BEGINS, _CONTINUES = range(3)  # of words

_MASK = (1 << 64) - 1
_LONGEST = 64  # tokens of a word with a factor of their own
_FACTORS = [pow(0x9E3779B97F4A7C15, n + 1, 1 << 64) for n in range(_LONGEST)]
_FACTORS_N = np.array(_FACTORS, np.uint64)

Hashes = npt.NDArray[np.uint64]


class SeenWords(Record):
    """The words of a text, each by one bit of a table, and the share of new words in such text."""

    table: str = Field(min_length=1, max_length=2 << (_MOST_BITS - 3))  # in base64
    new_share: Annotated[float, Field(gt=0, le=1)]

    @field_validator("table")
    @classmethod
    def _is_base64(cls, table: str) -> str:
        base64.b64decode(table, validate=True)  # a ValueError
        return table


class WordFinder:
    """Finds words among the ids of a vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        of_parts = tokenizer.kind in (*SUBWORDS, "spm_vocab")
        roles = [_OUTSIDE] * len(tokenizer)
        defined = {*tokenizer.user_defined_symbols(), *tokenizer.features}
        for token, piece in enumerate(tokenizer.pieces()[EOS_ID + 1 :], EOS_ID + 1):
            if tokenizer.is_byte(token):  # in a subword vocabulary; ASCII is mostly marks
                roles[token] = _CONTINUES if piece >= "<0x80>" else _OUTSIDE
            elif piece not in defined and any(map(str.isalpha, piece)):
                begins = not of_parts or piece.startswith(SPACE) or is_spaceless(piece)
                roles[token] = _BEGINS if begins else _CONTINUES
        roles[UNK_ID] = _BEGINS
        self._roles = roles
        self._roles_V = np.array(roles, np.int8)

    def words(self, ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
        word: list[int] = []
        for token in ids:
            role = self._roles[token]
            if role != _CONTINUES and word:
                yield tuple(word)
                word = []
            if role != _OUTSIDE:
                word.append(token)
        if word:
            yield tuple(word)

    def hashes(self, ids_N: npt.NDArray[np.int32]) -> Hashes:
        """Return the hashes of the words among ids, as `hash_of` does, without unknown tokens."""
        ids_N = np.concatenate([[EOS_ID], ids_N])
        roles_N = self._roles_V[ids_N]
        begins_N = roles_N == _BEGINS
        begins_N[1:] |= (roles_N[1:] == _CONTINUES) & (roles_N[:-1] == _OUTSIDE)
        starts_W = begins_N.nonzero()[0]
        if not len(starts_W):
            return np.zeros(0, np.uint64)
        words_N = np.maximum(np.cumsum(begins_N) - 1, 0)
        places_N = (np.arange(len(ids_N)) - starts_W[words_N]) % _LONGEST
        parts_N = (ids_N.astype(np.uint64) + np.uint64(1)) * _FACTORS_N[places_N]
        parts_N[roles_N == _OUTSIDE] = 0
        sums_W: Hashes = np.add.reduceat(parts_N, starts_W)
        return sums_W[ids_N[starts_W] != UNK_ID]


def hash_of(word: Sequence[int]) -> int:
    return sum((token + 1) * _FACTORS[n % _LONGEST] for n, token in enumerate(word)) & _MASK


def seen_words(text: Sentences, tokenizer: Tokenizer) -> SeenWords:
    finder, chunks = WordFinder(tokenizer), text.chunks(_MOST_TOKENS)
    num_unknown, parts = 0, [np.zeros(0, np.uint64)]
    for ids_N in chunks:
        num_unknown += int((ids_N == UNK_ID).sum())
        parts.append(finder.hashes(ids_N))
    hashes, counts = np.unique(np.concatenate(parts), return_counts=True)
    num_bits = math.ceil(math.log2(_PLACES_OF_A_WORD * len(hashes) + 1))
    num_bits = min(max(num_bits, _FEWEST_BITS), _MOST_BITS)
    table = np.zeros(1 << num_bits, np.uint8)
    table[hashes >> np.uint64(64 - num_bits)] = 1
    num_new = int((counts == 1).sum()) + num_unknown
    return SeenWords(
        table=base64.b64encode(np.packbits(table).tobytes()).decode(),
        new_share=(num_new + 1) / (int(counts.sum()) + num_unknown + 1),
    )


class UnseenWords:
    """Finds the words of lines that the training text lacks, where they are unusually many."""

    def __init__(self, seen: SeenWords, tokenizer: Tokenizer) -> None:
        self._finder, self._tokenizer = WordFinder(tokenizer), tokenizer
        packed = np.frombuffer(base64.b64decode(seen.table), np.uint8)
        table = np.unpackbits(packed).tobytes()
        self._new_share = seen.new_share
        shift = 64 - int(math.log2(len(table)))
        self._is_unseen = functools.lru_cache(_WORDS_TO_REMEMBER)(
            lambda word: word[0] == UNK_ID or not table[hash_of(word) >> shift]
        )

    def of(self, ids: Sequence[int]) -> list[str]:
        """Return the unseen words of a line, given by its ids; none unless they are unusual."""
        words = list(self._finder.words(ids))
        unseen = [word for word in words if self._is_unseen(word)]
        if not unseen or _tail(len(words), len(unseen), self._new_share) >= _IMPROBABLE:
            return []
        return [self._tokenizer.to_text(word) for word in unseen]


def _tail(trials: int, least: int, p: float) -> float:
    """Return the probability of `least` successes or more (the binomial distribution)."""
    if p == 1:
        return 1.0
    below, term = 0.0, (1 - p) ** trials
    for n in range(least):
        below += term
        term *= (trials - n) / (n + 1) * p / (1 - p)
    return 1 - below
