"""Subword regularization: segmentations of text sampled from a unigram model.

N tokens of a batch, W stretches of text (such as words), E edges of a lattice, V vocabulary.
"""

import array
import itertools
import math

import numpy as np

from seq2seq_cli.tokenizers.subword_sampling import (
    NO_SEGMENTATIONS,
    Counts,
    Numbers,
    Pieces,
    Segmentations,
    Stretches,
    mix,
)

_MOST_EDGES = 1 << 20


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
