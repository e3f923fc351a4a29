"""Lines by their hashes: what stands twice in a text, or in two texts."""

import unicodedata
from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seq2seq_cli.text.corpus import Pair

_EXAMPLES = 2
_NOTHING = 0  # the hash of a line without a pair; that another one has it is as good as impossible

Hashes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Repeats:
    """Lines that stand elsewhere too."""

    count: int
    examples: list[tuple[int, int]]  # such lines, and where they stood first


@dataclass(frozen=True)
class Overlap:
    """Lines whose source stands elsewhere too, and those whose target beside it does as well."""

    sources: Repeats
    pairs: Repeats


class LineHashes:
    """Of every line the 64-bit hashes of source and pair: 16 bytes, 100 while comparing.

    Case, white space and compatible characters make no difference.
    """

    def __init__(self) -> None:
        self._sources = array("q")
        self._pairs = array("q")

    def add(self, pair: Pair | None) -> None:
        """Of the next line; None where it holds no pair."""
        if pair is None:
            self._sources.append(_NOTHING)
            self._pairs.append(_NOTHING)
        else:
            src, tgt = comparable(pair.src), comparable(pair.tgt)
            self._sources.append(hash(src))
            self._pairs.append(hash((src, tgt)))

    def repeated(self) -> Overlap:
        """With earlier lines of the same text."""
        return Overlap(_repeated(_hashes(self._sources)), _repeated(_hashes(self._pairs)))

    def found_in(self, other: "LineHashes") -> Overlap:
        """With the lines of another text."""
        return Overlap(
            _found(_hashes(self._sources), _hashes(other._sources)),
            _found(_hashes(self._pairs), _hashes(other._pairs)),
        )


def comparable(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _hashes(numbers: "array[int]") -> Hashes:
    return np.asarray(numbers, dtype=np.int64)


def _repeated(hashes: Hashes) -> Repeats:
    _, first = np.unique(hashes, return_index=True)
    again = hashes != _NOTHING
    again[first] = False
    return _repeats(again, hashes, hashes)


def _found(hashes: Hashes, others: Hashes) -> Repeats:
    return _repeats(np.isin(hashes, others) & (hashes != _NOTHING), hashes, others)


def _repeats(again: npt.NDArray[np.bool_], hashes: Hashes, others: Hashes) -> Repeats:
    """Lines are counted from 1."""
    lines = np.flatnonzero(again)
    examples = [
        (int(line) + 1, int(np.argmax(others == hashes[line])) + 1) for line in lines[:_EXAMPLES]
    ]
    return Repeats(len(lines), examples)
