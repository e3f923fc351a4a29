"""Reads and counts parallel text, one pair at a time: memory does not grow with the corpus."""

import hashlib
import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from seq2seq_cli.config.text import Corpus
from seq2seq_cli.config.types import OnBadLine
from seq2seq_cli.errors import UserError
from seq2seq_cli.text.io import MOST_BYTES, raw_lines

logger = logging.getLogger(__name__)


class Pair(NamedTuple):
    """Source and target text of one line."""

    src: str
    tgt: str

    @property
    def is_empty(self) -> bool:
        return not (self.src.strip() and self.tgt.strip())


class BadLineError(UserError):
    """A line that cannot be read; `data.on_bad_line: skip` drops it."""


@dataclass
class CorpusCounts:
    """Line counts of a corpus."""

    lines: int = 0
    bad: int = 0
    empty: int = 0
    overlap: int = 0  # held-out lines whose source also occurs in the training text

    @property
    def pairs(self) -> int:
        return self.lines - self.bad - self.empty


def count_corpus(
    train: Corpus, valid: Corpus | None, on_bad_line: OnBadLine
) -> tuple[CorpusCounts, CorpusCounts | None]:
    """Read both corpora once: count lines, and validation sentences that are also trained on.

    Raises UserError if training is impossible: unreadable lines, files of unequal length, no pairs.
    """
    held_out: Counter[int] = Counter()
    valid_counts = None
    if valid is not None:
        valid_counts = CorpusCounts()
        held_out.update(hash(pair.src) for pair in count_pairs(valid, on_bad_line, valid_counts))
    train_counts = CorpusCounts()
    for pair in count_pairs(train, on_bad_line, train_counts):
        if held_out and valid_counts is not None:
            valid_counts.overlap += held_out.pop(hash(pair.src), 0)
    return train_counts, valid_counts


def count_pairs(corpus: Corpus, on_bad_line: OnBadLine, counts: CorpusCounts) -> Iterator[Pair]:
    """Yield the usable pairs and count all lines; raises UserError if there are no pairs."""
    for pair in read_pairs(corpus, on_bad_line):
        counts.lines += 1
        if pair is None:
            counts.bad += 1
        elif pair.is_empty:
            counts.empty += 1
        else:
            yield pair
    if not counts.pairs:
        raise UserError(
            f"no pairs in {corpus.name}: {counts.lines:,} lines, of which {counts.empty:,} have an "
            f"empty side and {counts.bad:,} cannot be read"
        )


def read_pairs(corpus: Corpus, on_bad_line: OnBadLine = "error") -> Iterator[Pair | None]:
    """Yield every pair in order, including empty ones, and None for each bad line that is skipped.

    Raises UserError with file, line and byte at a bad line unless bad lines are skipped, and with
    both counts if the two files differ in length.
    """
    parse = _parser(corpus)
    for number, row in enumerate(_aligned(corpus.files), 1):
        try:
            yield parse(number, row)
        except BadLineError:
            if on_bad_line == "error":
                raise
            yield None


def readable_pairs(corpus: Corpus, on_bad_line: OnBadLine) -> Iterator[Pair]:
    """Yield every readable pair in order; a warning counts the bad lines that were skipped."""
    num_bad = 0
    for pair in read_pairs(corpus, on_bad_line):
        if pair is None:
            num_bad += 1
        else:
            yield pair
    if num_bad:
        logger.warning(f"{corpus.name}: skipped {num_bad:,} lines that cannot be read")


def hash_of_files(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the bytes of the files, each preceded by its size."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.stat().st_size} ".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _aligned(paths: tuple[Path, ...]) -> Iterator[tuple[bytes, ...]]:
    """Yield line n of every file; raises UserError with all line counts if they differ."""
    readers = [raw_lines(path) for path in paths]
    for num_lines, row in enumerate(itertools.zip_longest(*readers)):
        if None in row:
            counts = ", ".join(
                f"{path}: {num_lines + (line is not None) + sum(1 for _ in reader):,}"
                for path, line, reader in zip(paths, row, readers, strict=True)
            )
            raise UserError(f"parallel files differ in length (lines in {counts})")
        yield row


def _parser(corpus: Corpus) -> Callable[[int, tuple[bytes, ...]], Pair]:
    """Return a function from a line number and that line of every file to a pair."""
    if corpus.pairs is None:
        return lambda number, row: Pair(
            *(_decode(path, number, raw) for path, raw in zip(corpus.files, row, strict=True))
        )
    path = corpus.pairs
    split = _split_tsv if path.name.removesuffix(".gz").endswith(".tsv") else _split_json
    return lambda number, row: split(path, number, _decode(path, number, row[0]))


def _decode(path: Path, number: int, raw: bytes) -> str:
    if len(raw) > MOST_BYTES:
        raise BadLineError(f"{path}, line {number:,}: longer than {MOST_BYTES:,} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = " (is it UTF-16?)" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else ""
        raise BadLineError(
            f"{path}, line {number:,}, byte {error.start + 1:,}: not valid UTF-8{hint}"
        ) from None


def _split_tsv(path: Path, number: int, line: str) -> Pair:
    columns = line.split("\t")
    if len(columns) != 2:
        raise BadLineError(
            f"{path}, line {number:,}: needs 2 columns (source, tab, target), has {len(columns)}"
        )
    return Pair(*columns)


def _split_json(path: Path, number: int, line: str) -> Pair:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise BadLineError(f"{path}, line {number:,}: not valid JSON") from None
    values = [record.get(side) for side in ("src", "tgt")] if isinstance(record, dict) else []
    sides = [value for value in values if isinstance(value, str)]
    if len(sides) != 2:
        raise BadLineError(
            f'{path}, line {number:,}: needs the form {{"src": "...", "tgt": "..."}}'
        )
    # A JSON string can contain line feeds and lone surrogates; a line of text cannot.
    return Pair(*(side.encode("utf-8", "replace").decode().replace("\n", " ") for side in sides))
