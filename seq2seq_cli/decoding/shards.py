"""Shards of a large file, which any scheduler can translate one by one, and joining them again.

Shard 3 of 20 has the lines that begin in the third twentieth of the bytes. Beside its translations
lies a record of what they are translations of, and by what.
"""

import fcntl
import functools
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from pydantic import NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from seq2seq_cli.errors import UserError
from seq2seq_cli.files import fsync, read_json, write_json
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.compression import BY_SUFFIX, limited, opened
from seq2seq_cli.text.corpus import hash_of_files
from seq2seq_cli.text.io import STANDARD_STREAM, decoded_lines, strip_line_ends

if TYPE_CHECKING:
    from seq2seq_cli.decoding.stream import Job

_FORMAT = 1  # of records
_RECORD = ".shard.json"  # what the name of a record ends in
_BLOCK = 1 << 20
_MOST_LISTED = 10


class Shard(NamedTuple):
    """One of `count` shards; the first has number 1."""

    number: PositiveInt
    count: PositiveInt

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read `3/20`. Raises UserError for anything else."""
        match = re.fullmatch(r"([1-9]\d{0,8})/([1-9]\d{0,8})", text, re.ASCII)
        if match is None or int(match[1]) > int(match[2]):
            raise UserError(f"--shard {text}: give its number and their count, such as 3/20")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True)
class SourceText:
    """The whole file that shards belong to."""

    name: str
    sha256: str
    num_bytes: NonNegativeInt  # unpacked

    @classmethod
    def of(cls, path: Path) -> "SourceText":
        return cls(path.name, hash_of_files([path]), _num_bytes(path))


@dataclass(frozen=True)
class Record:
    """What the translations of a shard are; lies beside them when all of them are written."""

    format: int
    shard: Shard
    source: SourceText
    job: dict[str, Any]  # models and options
    sha256: str  # of the translations

    @classmethod
    def path(cls, output: Path) -> Path:
        return output.with_name(output.name + _RECORD)

    @classmethod
    def read(cls, output: Path) -> "Record":
        """Read the record of an output. Raises UserError if it has none, or if that is damaged."""
        path = cls.path(output)
        if not path.exists():
            raise UserError(f"{output} has no {path.name} beside it: is its shard complete?")
        try:
            record = TypeAdapter(cls).validate_python(read_json(path))
        except ValidationError:
            raise UserError(f"{path} is damaged: it is not the record of a shard") from None
        if record.format != _FORMAT:
            raise UserError(f"{path} was written by another version of this program")
        return record


@dataclass(frozen=True)
class ShardTask:
    """The translation of one shard of a file into a file of its own."""

    job: "Job"
    shard: Shard
    source: Path
    output: Path

    def is_done(self) -> bool:
        """Return True if the output has the translations that this task would write."""
        if not (self.output.is_file() and Record.path(self.output).is_file()):
            return False
        try:
            return Record.read(self.output) == self._record(self.output)
        except UserError:  # damaged, or of another version
            return False

    @contextmanager
    def opened(self) -> Iterator[tuple[int, Iterator[str], Path]]:
        """Give the number of the first line (from 0), the lines, and the file to write to.

        That becomes the output at the end of the block, if it ends without an error. Raises
        UserError if another process is writing it.
        """
        part = self.output.with_name(self.output.name + ".part")
        Record.path(self.output).unlink(missing_ok=True)
        with part.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"another process is writing {part}") from None
            with lines_of_shard(self.source, self.shard, self._text.num_bytes) as (first, lines):
                yield first, decoded_lines(lines, str(self.source), first + 1), part
            fsync(part)
            record = self._record(part)
            part.replace(self.output)
        write_json(Record.path(self.output), asdict(record))

    @functools.cached_property
    def _text(self) -> SourceText:
        return SourceText.of(self.source)

    def _record(self, output: Path) -> Record:
        return Record(
            _FORMAT, self.shard, self._text, _described(self.job), hash_of_files([output])
        )


def _described(job: "Job") -> dict[str, Any]:
    """Return the models of a job by their hashes, and its options, as JSON gives them back."""
    options = {field.name: getattr(job, field.name) for field in fields(job)}
    for name in ("run_dirs", "which", "device"):
        del options[name]
    runs = [_hash_of_run(RunFolder(run_dir), job.which) for run_dir in job.run_dirs]
    described: dict[str, Any] = json.loads(json.dumps({"runs": runs, **options}))
    return described


def _hash_of_run(run: RunFolder, which: str) -> str:
    """Return the hash of everything that translations depend on."""
    tokenizers = sorted(path for path in run.path.glob("*.model") if path.is_file())
    files = [run.weights(which), run.config, *tokenizers, run.statistics]
    return hash_of_files(path for path in files if path.exists())


def _num_bytes(path: Path) -> int:
    """Return the size of a file, unpacked."""
    if path.suffix not in BY_SUFFIX:
        return path.stat().st_size
    with opened(path) as file:
        return sum(map(len, limited(path, iter(lambda: file.read(_BLOCK), b""))))


@contextmanager
def lines_of_shard(
    path: Path, shard: Shard, num_bytes: int
) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Give the number of the first line (from 0) and the lines, without line ends.

    `num_bytes` is the size of the file, unpacked. Every line is in the one shard in whose share of
    the bytes it begins; a shard may have none.
    """
    start, end = (num_bytes * number // shard.count for number in (shard.number - 1, shard.number))
    with opened(path) as file:
        first, position = _skip_to(file, start)
        lines = strip_line_ends(file, first, max(0, end - position))
        yield first, limited(path, lines)


def _skip_to(file: BinaryIO, start: int) -> tuple[int, int]:
    """Read up to the first line that begins at byte `start` or later; return number and place."""
    if start == 0:
        return 0, 0
    number, left = 0, start - 1
    while left and (block := file.read(min(left, _BLOCK))):
        number, left = number + block.count(b"\n"), left - len(block)
    position = start - 1
    while rest := file.readline(_BLOCK):  # empty at the end of the file
        position += len(rest)
        if rest.endswith(b"\n"):
            break
    return number + 1, position


def join_shards(outputs: Sequence[Path], target: Path | None) -> int:
    """Write the translations of all shards, in order, to a file or standard output (None or `-`).

    Returns how many shards there were. Records among the outputs are ignored, so that `part-*`
    names them all. Raises UserError if an output is missing, foreign, or not what its record says;
    nothing is written then.
    """
    records = {path: Record.read(path) for path in outputs if not path.name.endswith(_RECORD)}
    if not records:
        raise UserError("give the outputs of all shards")
    _check(records)
    ordered = sorted(records, key=lambda path: records[path].shard)
    if target in (None, STANDARD_STREAM):
        _copy(ordered, sys.stdout.buffer)
    else:
        part = target.with_name(target.name + ".part")
        with part.open("wb") as file:
            _copy(ordered, file)
        fsync(part)
        part.replace(target)
    return len(ordered)


def _copy(outputs: Sequence[Path], target: BinaryIO) -> None:
    for path in outputs:
        with path.open("rb") as file:
            shutil.copyfileobj(file, target, _BLOCK)


def _check(records: Mapping[Path, Record]) -> None:
    """Check that the outputs are those of all shards of one text, by one job."""
    (first_path, first), *others = records.items()
    for path, record in others:
        if record.source != first.source:
            raise UserError(f"{path} and {first_path} are translations of different texts")
        if record.job != first.job:
            raise UserError(f"{path} and {first_path} have different models or options")
        if record.shard.count != first.shard.count:
            raise UserError(f"{path} is shard {record.shard}, {first_path} is {first.shard}")
    found: dict[int, Path] = {}
    for path, record in records.items():
        other = found.setdefault(record.shard.number, path)
        if other != path:
            raise UserError(f"{path} and {other} are the same shard, {record.shard}")
    missing = [n for n in range(1, first.shard.count + 1) if n not in found]
    if missing:
        listed = ", ".join(map(str, missing[:_MOST_LISTED])) + ", …" * (len(missing) > _MOST_LISTED)
        raise UserError(f"of {first.shard.count} shards {len(missing)} are missing: {listed}")
    for path, record in records.items():
        if not path.is_file() or hash_of_files([path]) != record.sha256:
            raise UserError(f"{path} is not what its record says: it was changed or cut short")
