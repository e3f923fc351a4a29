"""BPE-dropout: random segmentations of text into subwords of BPE.

N tokens of a batch, W stretches of text (such as words), L symbols of the longest, V vocabulary.
"""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from seq2seq_cli.tokenizers.subword_sampling import (
    NO_SEGMENTATIONS,
    Counts,
    Ids,
    Numbers,
    Pieces,
    Segmentations,
    Stretches,
    find_in_sorted,
    mix,
    ranges,
)
from seq2seq_cli.tokenizers.tokenizer import UNK_ID

_IMPOSSIBLE = np.int32(2**31 - 1)  # the rank of no merge
_MOST_SYMBOLS = 1 << 22  # merged at once, 32 MiB


class BpeDropout:
    """BPE with dropped merges (Provilkov et al. 2020, algorithm 1, of each stretch by itself).

    In every step each possible merge is dropped with probability p, and the best of the others is
    applied; the next step may apply all of them again. (SentencePiece drops a merge for good, which
    with the same p makes subwords shorter.) How many steps go by before a best merge is dropped is
    a geometric random number: where all merges go by, the ids stay as they are.
    """

    def __init__(self, pieces: Pieces, vocab_size: int, strength: float) -> None:
        self._p, self._vocab_size = strength, vocab_size
        by_score = sorted(pieces.items(), key=lambda item: (-item[1].score, item[1].id))
        self._merged_of_rank = np.array([entry.id for _, entry in by_score], np.int64)
        self._lengths_V = np.zeros(vocab_size, np.int64)
        characters: list[list[int]] = [[] for _ in range(vocab_size)]
        rank_of_pair: dict[int, int] = {}
        for rank, (piece, entry) in enumerate(by_score):
            characters[entry.id] = [pieces[character].id for character in piece]
            self._lengths_V[entry.id] = len(piece)
            for cut in range(1, len(piece)):
                left, right = pieces.get(piece[:cut]), pieces.get(piece[cut:])
                if left and right:
                    rank_of_pair[left.id * vocab_size + right.id] = rank
        self._characters = np.fromiter(itertools.chain.from_iterable(characters), np.int64)
        self._characters_start_V = np.cumsum(self._lengths_V) - self._lengths_V
        self._pairs = np.array(sorted(rank_of_pair) or [-1])
        self._ranks = np.array([rank_of_pair.get(pair, 0) for pair in self._pairs], np.int32)

    def segment(self, stretches: Stretches) -> Segmentations:
        ids_N, starts_W, sizes_W, numbers_W = stretches
        lengths_N = self._lengths_V[ids_N]
        lengths_W = np.add.reduceat(lengths_N, starts_W)
        if self._p == 0:
            return NO_SEGMENTATIONS
        steps_kept_W = np.log1p(-uniform(numbers_W)) / math.log1p(-self._p)
        changed = np.flatnonzero(steps_kept_W < lengths_W - sizes_W)
        if not len(changed):
            return NO_SEGMENTATIONS
        ends_N = np.cumsum(lengths_N)  # characters of all text
        offsets_N = np.repeat(self._characters_start_V[ids_N] - (ends_N - lengths_N), lengths_N)
        text = self._characters[offsets_N + np.arange(ends_N[-1])]
        first_W, lengths_W = (ends_N - lengths_N)[starts_W[changed]], lengths_W[changed]
        first_drop_W, numbers_W = steps_kept_W[changed].astype(np.int64), numbers_W[changed]
        merged = []
        for group in groups_by_length(lengths_W, _MOST_SYMBOLS):
            columns_L = np.arange(lengths_W[group].max() + 1)
            symbols_WL = text[(first_W[group, None] + columns_L).clip(max=len(text) - 1)]
            symbols_WL[columns_L >= lengths_W[group, None]] = UNK_ID  # which no merge has
            given = lengths_W[group], first_drop_W[group], numbers_W[group]
            merged.append((group, *self._merge(symbols_WL, *given)))
        return Segmentations(changed, *_in_order(*map(np.concatenate, zip(*merged, strict=True))))

    def _merge(
        self, symbols_WL: Counts, lengths_W: Counts, first_drop_W: Counts, numbers_W: Numbers
    ) -> tuple[Counts, Counts]:
        """Merge the symbols of all stretches, one pair of each in a step; return sizes and ids.

        The best merge is dropped for the first time in step `first_drop_W`. The last column is
        padding.
        """
        done: list[tuple[Counts, Counts, Counts]] = []  # by step: stretches, their sizes, their ids
        origin_W = np.arange(len(lengths_W))
        ranks_WL = self._ranks_of(symbols_WL[:, :-1], symbols_WL[:, 1:])
        for step in itertools.count():
            rank_W, best_W = self._best_merges(ranks_WL, step, first_drop_W, numbers_W)
            is_done_W = rank_W == _IMPOSSIBLE
            sizes_W = lengths_W[is_done_W] - step
            is_symbol_WL = np.arange(symbols_WL.shape[1]) < sizes_W[:, None]
            done.append((origin_W[is_done_W], sizes_W, symbols_WL[is_done_W][is_symbol_WL]))
            if is_done_W.all():
                return _in_order(*map(np.concatenate, zip(*done, strict=True)))
            lengths_W, first_drop_W, numbers_W, origin_W, rank_W, best_W = (
                x[~is_done_W]
                for x in (lengths_W, first_drop_W, numbers_W, origin_W, rank_W, best_W)
            )
            width = lengths_W.max() - step
            symbols_WL, ranks_WL = symbols_WL[~is_done_W, : width + 1], ranks_WL[~is_done_W, :width]
            rows_W, columns_L = np.arange(len(best_W)), np.arange(width)
            moves_WL = columns_L > best_W[:, None]  # what follows the second symbol of the pair
            symbols_WL = np.where(moves_WL, symbols_WL[:, 1:], symbols_WL[:, :-1])
            symbols_WL[rows_W, best_W] = self._merged_of_rank[rank_W]
            ranks_WL = np.where(moves_WL[:, 1:], ranks_WL[:, 1:], ranks_WL[:, :-1])
            for column_W in (np.maximum(best_W - 1, 0), best_W):
                ranks_WL[rows_W, column_W] = self._ranks_of(
                    symbols_WL[rows_W, column_W], symbols_WL[rows_W, column_W + 1]
                )
        raise AssertionError("every step shortens the stretches that are left")

    def _best_merges(
        self, ranks_WL: Ids, step: int, first_drop_W: Counts, numbers_W: Numbers
    ) -> tuple[Ids, Counts]:
        """Return the rank and the place of the best merge that is not dropped."""
        rows_W = np.arange(len(ranks_WL))
        best_W = ranks_WL.argmin(1)
        drops = np.flatnonzero(first_drop_W <= step)
        if len(drops):
            left_WL = ranks_WL[drops]
            left_WL[coins(numbers_W[drops], step, left_WL.shape[1], self._p)] = _IMPOSSIBLE
            first = np.flatnonzero(first_drop_W[drops] == step)
            left_WL[first, best_W[drops[first]]] = _IMPOSSIBLE
            best_W[drops] = left_WL.argmin(1)
            rank_W = ranks_WL[rows_W, best_W]
            rank_W[drops] = left_WL[np.arange(len(drops)), best_W[drops]]
            return rank_W, best_W
        return ranks_WL[rows_W, best_W], best_W

    def _ranks_of(self, left: Counts, right: Counts) -> Ids:
        """Return the ranks of the merges of two symbols each."""
        is_known, places = find_in_sorted(self._pairs, left * self._vocab_size + right)
        ranks: Ids = np.where(is_known, self._ranks[places], _IMPOSSIBLE)
        return ranks


def groups_by_length(lengths_W: Counts, most: int) -> Iterator[Counts]:
    """Yield the indices of all stretches in groups, each of which pads to at most `most` symbols.

    A longer stretch is a group of its own.
    """
    order_W = np.argsort(lengths_W, kind="stable")
    while len(order_W):
        padded_W = np.arange(1, len(order_W) + 1) * (lengths_W[order_W] + 1)
        size = max(1, int(np.searchsorted(padded_W, most, side="right")))
        yield order_W[:size]
        order_W = order_W[size:]


def _in_order(order_C: Counts, sizes_C: Counts, ids_N: Counts) -> tuple[Counts, Counts]:
    """Return sizes and ids of stretches sorted by their numbers, which are `order_C`."""
    starts_C, sorted_C = np.cumsum(sizes_C) - sizes_C, np.argsort(order_C)
    return sizes_C[sorted_C], ids_N[ranges(starts_C[sorted_C], sizes_C[sorted_C])]


def uniform(numbers: Numbers) -> npt.NDArray[np.float64]:
    """Return the upper bits of 64-bit numbers as numbers in [0, 1)."""
    return (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53


def coins(numbers_W: Numbers, step: int, width: int, p: float) -> npt.NDArray[np.bool_]:
    """Return WL independent booleans of a step, True with probability p.

    Hashes 32 bits, which is faster than 64 (the finalizer of MurmurHash3).
    """
    columns_L = np.arange(width, dtype=np.uint32) * np.uint32(0x9E3779B9)
    x_W = mix(numbers_W + np.uint64(step)).astype(np.uint32)
    x_WL = x_W[:, None] + columns_L
    x_WL = (x_WL ^ (x_WL >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x_WL = (x_WL ^ (x_WL >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    tails_WL: npt.NDArray[np.bool_] = (x_WL ^ (x_WL >> np.uint32(16))) < np.uint32(p * 2.0**32)
    return tails_WL
