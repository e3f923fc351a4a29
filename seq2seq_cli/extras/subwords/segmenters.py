"""Random segmentations of text into subwords: BPE-dropout, and sampling from a unigram model.

N tokens of a batch, W stretches of text (such as words), L symbols of the longest, E edges of a
lattice, V vocabulary.
"""

import array
import itertools
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seq2seq_cli.config.types import TokenizerKind
from seq2seq_cli.data.batch_plan import split_into_batches
from seq2seq_cli.data.tokenization import Ids
from seq2seq_cli.tokenizers.tokenizer import UNK_ID

Counts = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint64]

_IMPOSSIBLE = np.int32(2**31 - 1)  # the rank of no merge
_MOST_SYMBOLS = 1 << 22  # merged at once, 32 MiB
_MOST_EDGES = 1 << 20  # of the lattices that are kept


class LearnedPiece(NamedTuple):
    """An entry with its score: bpe prefers greater ones; of unigram it is a log-probability."""

    id: int
    score: float


Pieces = Mapping[str, LearnedPiece]


class Stretches(NamedTuple):
    """Stretches of text that are segmented apart from one another."""

    ids_N: Ids  # of all text, as the tokenizer segments it without sampling
    starts_W: Counts  # of each stretch in `ids_N`
    sizes_W: Counts  # in tokens
    numbers_W: Numbers  # random bits of each, which determine its segmentation


class Segmentations(NamedTuple):
    """New ids of the stretches that may differ, one after the other."""

    changed_C: Counts  # the indices of these stretches, in order
    sizes_C: Counts  # in tokens
    ids_N: Counts


NO_SEGMENTATIONS = Segmentations(*np.zeros((3, 0), np.int64))


class BpeDropout:
    """BPE with dropped merges (Provilkov et al. 2020, algorithm 1, of each stretch by itself).

    In every step each possible merge is dropped with probability p, and the best of the others is
    applied; the next step may apply all of them again. (SentencePiece drops a merge for good, which
    with the same p makes subwords shorter.) The number of steps before a best merge is dropped is a
    geometric random number: if it exceeds the number of merges, the ids do not change.
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
        uniform_W = (numbers_W >> np.uint64(11)).astype(np.float64) * 2.0**-53
        steps_kept_W = np.log1p(-uniform_W) / math.log1p(-self._p)
        changed = np.flatnonzero(steps_kept_W < lengths_W - sizes_W)
        if not len(changed):
            return NO_SEGMENTATIONS
        ends_N = np.cumsum(lengths_N)  # characters of all text
        offsets_N = np.repeat(self._characters_start_V[ids_N] - (ends_N - lengths_N), lengths_N)
        text = self._characters[offsets_N + np.arange(ends_N[-1])]
        first_W, lengths_W = (ends_N - lengths_N)[starts_W[changed]], lengths_W[changed]
        first_drop_W, numbers_W = steps_kept_W[changed].astype(np.int64), numbers_W[changed]
        merged = []
        order_W = np.argsort(lengths_W, kind="stable").astype(np.int32)
        for group in split_into_batches(order_W, lengths_W[order_W] + 1, _MOST_SYMBOLS):
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
        best_W = ranks_WL.argmin(1)
        rank_W = ranks_WL[np.arange(len(ranks_WL)), best_W]
        drops = np.flatnonzero(first_drop_W <= step)
        if len(drops):
            left_WL = ranks_WL[drops]
            # Hashes 32 bits, which is faster than 64 (the finalizer of MurmurHash3).
            columns_L = np.arange(left_WL.shape[1], dtype=np.uint32) * np.uint32(0x9E3779B9)
            x_W = mix(numbers_W[drops] + np.uint64(step)).astype(np.uint32)
            x_WL = x_W[:, None] + columns_L
            x_WL = (x_WL ^ (x_WL >> np.uint32(16))) * np.uint32(0x85EBCA6B)
            x_WL = (x_WL ^ (x_WL >> np.uint32(13))) * np.uint32(0xC2B2AE35)
            x_WL ^= x_WL >> np.uint32(16)
            left_WL[x_WL < np.uint32(self._p * 2.0**32)] = _IMPOSSIBLE
            first = np.flatnonzero(first_drop_W[drops] == step)
            left_WL[first, best_W[drops[first]]] = _IMPOSSIBLE
            best_W[drops] = left_WL.argmin(1)
            rank_W[drops] = left_WL[np.arange(len(drops)), best_W[drops]]
        return rank_W, best_W

    def _ranks_of(self, left: Counts, right: Counts) -> Ids:
        """Return the ranks of the merges of two symbols each."""
        is_known, places = find_in_sorted(self._pairs, left * self._vocab_size + right)
        return np.where(is_known, self._ranks[places], _IMPOSSIBLE)


def _in_order(order_C: Counts, sizes_C: Counts, ids_N: Counts) -> tuple[Counts, Counts]:
    """Return sizes and ids of stretches sorted by their numbers, which are `order_C`."""
    starts_C, sorted_C = np.cumsum(sizes_C) - sizes_C, np.argsort(order_C)
    return sizes_C[sorted_C], ids_N[ranges(starts_C[sorted_C], sizes_C[sorted_C])]


class UnigramSampling:
    """Samples a segmentation in proportion to its probability to the power of α (Kudo 2018).

    From left to right, each piece is drawn in proportion to the sum of all segmentations that go on
    with it: forward filtering and backward sampling, with the directions exchanged. The lattices of
    the most recent stretches are kept, one after the other: node n stands for a place in a stretch
    of text, and its edges, which have the values n + cumulative probability, for the pieces that
    may follow.
    """

    def __init__(self, pieces: Pieces, vocab_size: int, strength: float) -> None:
        self._pieces, self._alpha = pieces, strength
        self._longest = max(map(len, pieces), default=0)
        self._texts = {entry.id: piece for piece, entry in pieces.items()}
        self._lengths_V = np.zeros(vocab_size, np.int64)
        for piece, entry in pieces.items():
            self._lengths_V[entry.id] = len(piece)
        self._forget()

    def _forget(self) -> None:
        self._first_node: dict[tuple[int, ...], int] = {}
        self._num_nodes = 0
        self._values_E = array.array("d")
        self._next_node_E = array.array("q")  # -1: the end
        self._ids_E = array.array("q")

    def segment(self, stretches: Stretches) -> Segmentations:
        ids_N, starts_W, sizes_W, numbers_W = stretches
        lengths_W = np.add.reduceat(self._lengths_V[ids_N], starts_W)
        changed = (lengths_W > 1).nonzero()[0]
        if not len(changed):
            return NO_SEGMENTATIONS
        ids, numbers_W = ids_N.tolist(), numbers_W[changed]
        drawn: list[tuple[Counts, Counts]] = []
        nodes: list[int] = []
        for start, size in zip(starts_W[changed].tolist(), sizes_W[changed].tolist(), strict=True):
            if len(self._values_E) > _MOST_EDGES:
                drawn.append(self._draw(nodes, numbers_W[: len(nodes)]))
                numbers_W, nodes = numbers_W[len(nodes) :], []
                self._forget()
            stretch = tuple(ids[start : start + size])
            if stretch not in self._first_node:
                self._first_node[stretch] = self._num_nodes
                self._add_lattice("".join([self._texts[number] for number in stretch]))
            nodes.append(self._first_node[stretch])
        drawn.append(self._draw(nodes, numbers_W))
        return Segmentations(changed, *map(np.concatenate, zip(*drawn, strict=True)))

    def _draw(self, nodes: list[int], numbers_W: Numbers) -> tuple[Counts, Counts]:
        """Draw pieces from the first node of each stretch to its end; return sizes and ids."""
        nodes_W, rows_W = np.array(nodes, np.int64), np.arange(len(nodes))
        drawn: list[tuple[Counts, Counts]] = [(np.zeros(0, np.int64),) * 2]  # stretches, their ids
        values_E = np.frombuffer(self._values_E)
        next_node_E, ids_E = (np.frombuffer(x, np.int64) for x in (self._next_node_E, self._ids_E))
        while len(rows_W):
            # With 32 bits, node + u is exact, and less than the next node.
            u_W = (numbers_W >> np.uint64(32)).astype(np.float64) * 2.0**-32
            edges_W = np.searchsorted(values_E, nodes_W + u_W, side="right")
            drawn.append((rows_W, ids_E[edges_W]))
            nodes_W = next_node_E[edges_W]
            goes_on = nodes_W >= 0
            nodes_W, rows_W, numbers_W = nodes_W[goes_on], rows_W[goes_on], mix(numbers_W[goes_on])
        rows_N, sampled_N = map(np.concatenate, zip(*drawn, strict=True))
        sizes_C = np.bincount(rows_N, minlength=len(nodes))
        return sizes_C, sampled_N[np.argsort(rows_N, kind="stable")]

    def _add_lattice(self, text: str) -> None:
        log_sums = [0.0] * (len(text) + 1)  # of all segmentations from a place on
        edges_of = []
        for place in reversed(range(len(text))):
            edges = []
            for end in range(place + 1, min(place + self._longest, len(text)) + 1):
                if entry := self._pieces.get(text[place:end]):
                    edges.append((self._alpha * entry.score + log_sums[end], end, entry.id))
            largest = max(edges)[0]
            weights = [math.exp(log_weight - largest) for log_weight, _, _ in edges]
            log_sums[place] = largest + math.log(sum(weights))
            edges_of.append((edges, weights))
        first = self._num_nodes
        for edges, weights in reversed(edges_of):
            sums = list(itertools.accumulate(weights))
            self._values_E.extend([self._num_nodes + x / sums[-1] for x in sums])
            self._next_node_E.extend(
                [first + end if end < len(text) else -1 for _, end, _ in edges]
            )
            self._ids_E.extend([number for _, _, number in edges])
            self._num_nodes += 1


def find_in_sorted(table: Counts, values: Counts) -> tuple[npt.NDArray[np.bool_], Counts]:
    """Return whether the sorted table, which is not empty, has each value, and the place."""
    places = np.searchsorted(table, values).clip(max=len(table) - 1)
    return table[places] == values, places


def ranges(starts: Counts, sizes: Counts) -> Counts:
    """Return the numbers from each start on, as many as its size, one range after the other."""
    ends = np.cumsum(sizes)
    return np.repeat(starts - (ends - sizes), sizes) + np.arange(sizes.sum())


def mix(numbers: Numbers) -> Numbers:
    """Return a hash of 64-bit numbers (SplitMix64: Steele et al. 2014)."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


SEGMENTERS: dict[TokenizerKind, type[BpeDropout] | type[UnigramSampling]] = {
    "bpe": BpeDropout,
    "unigram": UnigramSampling,
}
