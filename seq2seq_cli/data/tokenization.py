"""Splits pairs of text into token ids; large texts in several processes."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seq2seq_cli.processes import ordered_pool
from seq2seq_cli.text.corpus import Pair
from seq2seq_cli.tokenizers.tokenizer import EOS_ID, Tokenizers

Ids = npt.NDArray[np.int32]

_LINES_AT_ONCE = 10_000
_CHARACTERS_AT_ONCE = 1 << 24


class TokenizedSide(NamedTuple):
    """One side of some pairs."""

    ids: Ids  # of all sentences, each ending in EOS
    lengths: Ids  # of the sentences, EOS included


class TokenizedChunk(NamedTuple):
    src: TokenizedSide
    tgt: TokenizedSide
    too_long: int  # pairs that were dropped


Splitter = Callable[[Iterable[Pair]], Iterator[TokenizedChunk]]


@contextmanager
def splitter(
    tokenizers: Tokenizers, max_length: int | None, num_processes: int
) -> Iterator[Splitter]:
    """Yield a function that splits text into tokens, in processes that end with the block.

    It yields the pairs as ids, in order, without those over `max_length` tokens on a side.
    """
    if num_processes == 1:
        yield lambda pairs: (tokenize(x, tokenizers, max_length) for x in chunks_of(pairs))
        return
    with ordered_pool(num_processes, _tokenization, tokenizers, max_length) as tokenize_all:
        yield lambda pairs: tokenize_all(chunks_of(pairs))


def _tokenization(
    tokenizers: Tokenizers, max_length: int | None
) -> Callable[[list[Pair]], TokenizedChunk]:
    return functools.partial(tokenize, tokenizers=tokenizers, max_length=max_length, num_threads=1)


def tokenize(
    pairs: Sequence[Pair],
    tokenizers: Tokenizers,
    max_length: int | None,
    num_threads: int | None = None,
) -> TokenizedChunk:
    """Return the ids of the pairs that have at most `max_length` tokens on each side before EOS."""
    rows = ids_of_pairs(pairs, tokenizers, num_threads)
    kept = [row for row in rows if max_length is None or max(map(len, row)) <= max_length]
    src_side, tgt_side = (_joined([row[side] for row in kept]) for side in (0, 1))
    return TokenizedChunk(src_side, tgt_side, len(rows) - len(kept))


def ids_of_pairs(
    pairs: Sequence[Pair], tokenizers: Tokenizers, num_threads: int | None = None
) -> list[tuple[list[int], list[int]]]:
    """Return the ids of both sides of each pair, the source's tag first, then its features.

    Raises UserError if the vocabulary lacks a tag, or all features.
    """
    tags = {tag: tokenizers.src.tag_ids(tag) for tag in {pair.tag for pair in pairs}}
    src_ids = tokenizers.src.to_ids_batch([pair.src for pair in pairs], num_threads)
    tgt_ids = tokenizers.tgt.to_ids_batch([pair.tgt for pair in pairs], num_threads)
    return [
        (tags[pair.tag] + tokenizers.src.feature_ids(pair.features) + src, tgt)
        for pair, src, tgt in zip(pairs, src_ids, tgt_ids, strict=True)
    ]


def _joined(sentences: Sequence[list[int]]) -> TokenizedSide:
    closed = [[*ids, EOS_ID] for ids in sentences]
    ids = np.fromiter(itertools.chain.from_iterable(closed), dtype=np.int32)
    return TokenizedSide(ids, np.fromiter(map(len, closed), np.int32, len(closed)))


def chunks_of(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Split pairs into chunks, bounded in lines and characters."""
    chunk: list[Pair] = []
    num_characters = 0
    for pair in pairs:
        chunk.append(pair)
        num_characters += len(pair.src) + len(pair.tgt)
        if len(chunk) == _LINES_AT_ONCE or num_characters > _CHARACTERS_AT_ONCE:
            yield chunk
            chunk, num_characters = [], 0
    if chunk:
        yield chunk
