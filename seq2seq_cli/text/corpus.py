"""Reading and auditing parallel text, one pair at a time: memory does not grow with the corpus."""

import hashlib
import itertools
import json
import logging
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
    """What a corpus holds, before any token is counted."""

    lines: int = 0
    bad: int = 0
    empty: int = 0
    overlap: int = 0  # held-out lines whose source also stands in the training text

    @property
    def pairs(self) -> int:
        return self.lines - self.bad - self.empty


def count_corpus(
    train: Corpus, valid: Corpus | None, on_bad_line: OnBadLine
) -> tuple[CorpusCounts, CorpusCounts | None]:
    """Read everything once: count, and find validation sentences that are trained on.

    Raises UserError for what makes training impossible: unreadable lines, unequal lengths,
    nothing left.
    """
    held_out: dict[int, int] = {}
    valid_audit = None
    if valid is not None:
        valid_audit = CorpusCounts()
        for pair in _counted(valid, on_bad_line, valid_audit):
            held_out[hash(pair.src)] = held_out.get(hash(pair.src), 0) + 1
        _must_not_be_empty(valid, valid_audit)
    train_audit = CorpusCounts()
    for pair in _counted(train, on_bad_line, train_audit):
        if held_out and valid_audit is not None:
            valid_audit.overlap += held_out.pop(hash(pair.src), 0)
    _must_not_be_empty(train, train_audit)
    return train_audit, valid_audit


def _counted(corpus: Corpus, on_bad_line: OnBadLine, audit: CorpusCounts) -> Iterator[Pair]:
    for pair in read_pairs(corpus, on_bad_line):
        audit.lines += 1
        if pair is None:
            audit.bad += 1
        elif pair.is_empty:
            audit.empty += 1
        else:
            yield pair


def _must_not_be_empty(corpus: Corpus, audit: CorpusCounts) -> None:
    if not audit.pairs:
        names = " and ".join(str(path) for path in corpus.files)
        raise UserError(
            f"no pairs in {names}: {audit.lines:,} lines, of which {audit.empty:,} have an empty "
            f"side and {audit.bad:,} cannot be read"
        )


def read_pairs(corpus: Corpus, on_bad_line: OnBadLine = "error") -> Iterator[Pair | None]:
    """Every pair in order, empty ones included; None for a bad line that is to be skipped.

    Raises UserError with file, line and byte at a bad line unless it is to be skipped, and with
    both counts when the two files differ in length.
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
    """Every pair in order but bad lines that are to be skipped: a warning counts them."""
    num_bad = 0
    for pair in read_pairs(corpus, on_bad_line):
        if pair is None:
            num_bad += 1
        else:
            yield pair
    if num_bad:
        names = ", ".join(map(str, corpus.files))
        logger.warning("%s: %s lines cannot be read and are left out", names, f"{num_bad:,}")


def hash_of_files(paths: Iterable[Path]) -> str:
    """SHA-256 over the bytes of the files, each preceded by its size."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.stat().st_size} ".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _aligned(paths: tuple[Path, ...]) -> Iterator[tuple[bytes, ...]]:
    """Line n of every file; refuses files of unequal length, with the length of each."""
    readers = [raw_lines(path) for path in paths]
    for num_lines, row in enumerate(itertools.zip_longest(*readers)):
        if None in row:
            counts = [
                num_lines + (line is not None) + sum(1 for _ in reader)
                for line, reader in zip(row, readers, strict=True)
            ]
            shown = ", ".join(
                f"{path}: {count:,}" for path, count in zip(paths, counts, strict=True)
            )
            raise UserError(f"parallel files differ in length (lines in {shown})")
        yield row


def _parser(corpus: Corpus) -> Callable[[int, tuple[bytes, ...]], Pair]:
    """From a line number and the line of every file to a pair."""
    if corpus.pairs is None:
        return lambda number, row: Pair(
            *(_decoded(path, number, raw) for path, raw in zip(corpus.files, row, strict=True))
        )
    path = corpus.pairs
    split = _split_tsv if path.name.removesuffix(".gz").endswith(".tsv") else _split_json
    return lambda number, row: split(path, number, _decoded(path, number, row[0]))


def _decoded(path: Path, number: int, raw: bytes) -> str:
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
    # A JSON string can hold line feeds and lone surrogates; a line of text cannot.
    return Pair(*(side.encode("utf-8", "replace").decode().replace("\n", " ") for side in sides))
