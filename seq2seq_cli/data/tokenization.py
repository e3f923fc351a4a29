"""Splits pairs of text into token ids; large texts in several processes."""

import itertools
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seq2seq_cli.errors import UserError
from seq2seq_cli.processes import end_with_parent, held_signals, process_context, unblock_signals
from seq2seq_cli.text.corpus import Pair
from seq2seq_cli.tokenizers.tokenizer import EOS_ID, Tokenizer, Tokenizers

Ids = npt.NDArray[np.int32]

_LINES_AT_ONCE = 10_000
_CHARACTERS_AT_ONCE = 1 << 24
_CHUNKS_AHEAD = 2  # for each process


class TokenizedSide(NamedTuple):
    """One side of some pairs."""

    ids: Ids  # of all sentences, each ending in EOS
    lengths: Ids  # of the sentences, EOS included


class TokenizedChunk(NamedTuple):
    """Some pairs as token ids."""

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
    models = [tokenizer.model for tokenizer in tokenizers]
    start = (models, tokenizers.is_shared, max_length)
    context = process_context(__name__)
    with ProcessPoolExecutor(num_processes, context, _start_in_process, start) as pool:

        def split(pairs: Iterable[Pair]) -> Iterator[TokenizedChunk]:
            ahead: deque[Future[TokenizedChunk]] = deque()
            try:
                for chunk in chunks_of(pairs):
                    with held_signals(signal.SIGINT):  # the first chunk starts the processes
                        ahead.append(pool.submit(_tokenize_in_process, chunk))
                    if len(ahead) >= _CHUNKS_AHEAD * num_processes:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            except BrokenProcessPool:
                raise UserError(
                    "a process that splits text into tokens has died; was it out of memory?"
                ) from None

        try:
            yield split
        finally:
            pool.shutdown(cancel_futures=True)  # if exit came first, the processes would never end


# Set in a process that splits text for another.
_loaded: tuple[Tokenizers, int | None] | None = None


def _start_in_process(models: Sequence[bytes], is_shared: bool, max_length: int | None) -> None:
    global _loaded
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process handles Ctrl-C
    unblock_signals()
    threading.Thread(target=end_with_parent, args=(1,), daemon=True).start()
    src = Tokenizer.from_model(models[0])
    tgt = Tokenizer.from_model(models[1], src if is_shared else None)
    _loaded = Tokenizers(src, tgt), max_length


def _tokenize_in_process(chunk: list[Pair]) -> TokenizedChunk:
    assert _loaded is not None, "the pool has started this process"
    return tokenize(chunk, *_loaded, num_threads=1)


def tokenize(
    pairs: Sequence[Pair],
    tokenizers: Tokenizers,
    max_length: int | None,
    num_threads: int | None = None,
) -> TokenizedChunk:
    """Return the ids of both sides of each pair, the source's tag first, then its features.

    Pairs with more than `max_length` tokens on a side are left out.
    """
    tags = {tag: tokenizers.src.tag_ids(tag) for tag in {pair.tag for pair in pairs}}
    src_ids = tokenizers.src.to_ids_batch([pair.src for pair in pairs], num_threads)
    tgt_ids = tokenizers.tgt.to_ids_batch([pair.tgt for pair in pairs], num_threads)
    rows = [
        (tags[pair.tag] + tokenizers.src.feature_ids(pair.features) + src, tgt)
        for pair, src, tgt in zip(pairs, src_ids, tgt_ids, strict=True)
    ]
    kept = [row for row in rows if max_length is None or max(map(len, row)) <= max_length]
    src_side, tgt_side = (_joined([row[side] for row in kept]) for side in (0, 1))
    return TokenizedChunk(src_side, tgt_side, len(rows) - len(kept))


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
