"""Leakage and duplicates: held-out lines that are also trained on, lines that a text repeats."""

import unicodedata
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.config.types import OnBadLine
from seq2seq_cli.text.corpus import CorpusCounts, Pair, count_pairs

_EXAMPLES = 2
_NO_PAIR = 0  # the hash of a line without a pair; no real line is likely to have it


def normalized(text: str) -> str:
    """Return the text as it is compared: without case, width and extra white space."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def count_corpus(
    train: ParallelText, held_out: Sequence[ParallelText], on_bad_line: OnBadLine
) -> list[CorpusCounts]:
    """Read all texts once: count lines, and held-out sentences that are also trained on.

    Returns counts of the training text, then of the held-out ones. Memory does not grow with the
    former. Raises UserError for unreadable lines, files of unequal length, and no pairs.
    """
    counts = [CorpusCounts() for _ in (train, *held_out)]
    sources = [
        array("q", map(source_hash, count_pairs(text.once(), on_bad_line, count)))
        for text, count in zip(held_out, counts[1:], strict=True)
    ]
    wanted, leaked = set().union(*sources), set()
    for pair in count_pairs(train.once(), on_bad_line, counts[0]):
        if wanted and (source := source_hash(pair)) in wanted:
            leaked.add(source)
    for text, count in zip((train, *held_out), counts, strict=True):
        count.lines *= text.num_directions
        count.bad *= text.num_directions
        count.empty *= text.num_directions
    for own, count in zip(sources, counts[1:], strict=True):
        count.overlap = sum(source in leaked for source in own)
    return counts


def source_hash(pair: Pair) -> int:
    """Return a hash of the source with its features, which differs between processes."""
    return hash(normalized(pair.source_line))


@dataclass(frozen=True)
class Repeats:
    """Lines that also occur elsewhere."""

    count: int
    examples: list[tuple[int, int]]  # such a line and its first occurrence, counted from 1


@dataclass(frozen=True)
class Overlap:
    """Lines whose source also occurs elsewhere, and lines whose whole pair does."""

    sources: Repeats
    pairs: Repeats


class LineHashes:
    """64-bit hashes of the source and of the pair of every line: 16 bytes per line."""

    def __init__(self) -> None:
        self.sources = array("q")
        self._pairs = array("q")

    def add(self, pair: Pair | None) -> None:
        """Add the next line; None if it has no pair."""
        source = _NO_PAIR if pair is None else source_hash(pair)
        self.sources.append(source)
        self._pairs.append(_NO_PAIR if pair is None else hash((source, normalized(pair.tgt))))

    def repeated(self) -> Overlap:
        """Return the lines that repeat an earlier line of the same text."""
        return Overlap(_repeats(self.sources), _repeats(self._pairs))

    def found_in(self, other: "LineHashes") -> Overlap:
        """Return the lines that also occur in another text."""
        return Overlap(_repeats(self.sources, other.sources), _repeats(self._pairs, other._pairs))


def _repeats(own: "array[int]", other: "array[int] | None" = None) -> Repeats:
    """Return the lines whose hashes occur in another text or, without one, earlier in the same."""
    hashes = others = np.asarray(own, np.int64)
    if other is None:
        is_repeat = np.ones(len(hashes), np.bool_)
        is_repeat[np.unique(hashes, return_index=True)[1]] = False  # first occurrences
    else:
        others = np.asarray(other, np.int64)
        is_repeat = np.isin(hashes, others)
    lines = np.flatnonzero(is_repeat & (hashes != _NO_PAIR))
    examples = [
        (int(line) + 1, int(np.argmax(others == hashes[line])) + 1) for line in lines[:_EXAMPLES]
    ]
    return Repeats(len(lines), examples)
