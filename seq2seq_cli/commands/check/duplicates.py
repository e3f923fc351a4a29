"""Finds duplicate lines within a text, and lines that two texts share, by their hashes."""

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seq2seq_cli.text.corpus import Pair, normalized

_EXAMPLES = 2
_NO_PAIR = 0  # the hash of a line without a pair; no real line is likely to have it

Hashes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Repeats:
    """Lines that also occur elsewhere."""

    count: int
    examples: list[tuple[int, int]]  # such a line and its first occurrence, counted from 1


@dataclass(frozen=True)
class Overlap:
    """Lines whose source also occurs elsewhere, and those whose whole pair does."""

    sources: Repeats
    pairs: Repeats


class LineHashes:
    """64-bit hashes of the source and of the pair of every line: 16 bytes per line.

    Case, white space and Unicode compatibility characters make no difference.
    """

    def __init__(self) -> None:
        self._sources = array("q")
        self._pairs = array("q")

    def add(self, pair: Pair | None) -> None:
        """Add the next line; None if it has no pair."""
        src = _NO_PAIR if pair is None else pair.source_hash
        self._sources.append(src)
        self._pairs.append(_NO_PAIR if pair is None else hash((src, normalized(pair.tgt))))

    def repeated(self) -> Overlap:
        """Return the lines that repeat an earlier line of the same text."""
        return Overlap(_repeated(self._sources), _repeated(self._pairs))

    def found_in(self, other: "LineHashes") -> Overlap:
        """Return the lines that also occur in another text."""
        return Overlap(_shared(self._sources, other._sources), _shared(self._pairs, other._pairs))


def _repeated(numbers: "array[int]") -> Repeats:
    hashes = np.asarray(numbers, dtype=np.int64)
    is_repeat = np.ones(len(hashes), np.bool_)
    is_repeat[np.unique(hashes, return_index=True)[1]] = False  # first occurrences
    return _repeats(is_repeat, hashes, hashes)


def _shared(numbers: "array[int]", others: "array[int]") -> Repeats:
    hashes, other_hashes = (np.asarray(array, dtype=np.int64) for array in (numbers, others))
    return _repeats(np.isin(hashes, other_hashes), hashes, other_hashes)


def _repeats(is_repeat: npt.NDArray[np.bool_], hashes: Hashes, others: Hashes) -> Repeats:
    lines = np.flatnonzero(is_repeat & (hashes != _NO_PAIR))
    examples = [
        (int(line) + 1, int(np.argmax(others == hashes[line])) + 1) for line in lines[:_EXAMPLES]
    ]
    return Repeats(len(lines), examples)
