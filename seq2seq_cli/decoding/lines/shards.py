"""Shards of a large file, which any scheduler can translate one by one, and joining them again.

Shard 3 of 20 has the lines that begin in the third twentieth of the bytes. A file next to its
translations records the text, the models and the options.
"""

import functools
import itertools
import json
import logging
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from pydantic import NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from seq2seq_cli.data.cache import changed_meanwhile
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import fsync, lock, read_json, replacing, write_json
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.compression import BY_SUFFIX, opened
from seq2seq_cli.text.corpus import hash_of_files
from seq2seq_cli.text.io import (
    STANDARD_STREAM,
    Place,
    bounded_lines,
    decoded_lines,
    is_one_file,
    refuse_archive,
    strip_line_ends,
)

if TYPE_CHECKING:
    from seq2seq_cli.decoding.lines.stream import Job

logger = logging.getLogger(__name__)

_FORMAT = 1  # of records
_RECORD = ".shard.json"  # what the name of a record ends in
_BLOCK = 1 << 20
_MOST_LISTED = 10


class Shard(NamedTuple):
    """One of several shards; the first has number 1."""

    number: PositiveInt
    num_shards: PositiveInt

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read `3/20`. Raises UserError for anything else."""
        match = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text, re.ASCII)
        if match is None or int(match[1]) > int(match[2]):
            raise UserError(f"--shard {text}: give its number and their count, such as 3/20")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.num_shards}"


@dataclass(frozen=True)
class SourceText:
    """The whole file that shards belong to."""

    name: str
    sha256: str
    num_bytes: NonNegativeInt  # unpacked

    @classmethod
    def of(cls, path: Path) -> "SourceText":
        if path.exists() and not path.is_file():
            raise UserError(f"the input {path} is not a file")
        sha256, num_bytes = hash_of_files([path]), path.stat().st_size
        if path.suffix in BY_SUFFIX:
            with opened(path) as file:
                num_bytes = sum(map(len, iter(lambda: file.read(_BLOCK), b"")))
        return cls(_as_text(path.name), sha256, num_bytes)


@dataclass(frozen=True)
class Record:
    """What the translations of a shard are; written next to them when they are complete."""

    format: int
    shard: Shard
    source: SourceText
    job: dict[str, Any]  # models and options
    sha256: str  # of the translations

    @classmethod
    def path(cls, output: Path) -> Path:
        return output.parent / (output.name + _RECORD)

    @classmethod
    def read(cls, output: Path) -> "Record":
        """Read the record of an output. Raises UserError if it has none, or if that is damaged."""
        path = cls.path(output)
        if not path.is_file():
            raise UserError(f"{output} has no {path.name} next to it: is its shard complete?")
        try:
            record = TypeAdapter(cls).validate_python(read_json(path))
        except ValidationError:
            raise UserError(f"{path} is damaged: it is not the record of a shard") from None
        if record.format != _FORMAT:
            raise UserError(f"{path} was written by another version of this program")
        return record


@dataclass(frozen=True)
class ShardTask:
    """The translation of one shard of a file into a separate file."""

    job: "Job"
    shard: Shard
    source: Path
    output: Path

    def is_done(self) -> bool:
        """Return True if the output has the translations that this task would write."""
        try:
            return self.output.is_file() and Record.read(self.output) == self._record(self.output)
        except UserError:  # it has no record, a damaged one, or one of another version
            return False

    def remember_inputs(self) -> None:
        """Hash the source and the models now; `opened` refuses a source that differs."""
        _ = self._text, self.models

    def wait_for_others(self) -> None:
        """Wait until no other process writes the output."""
        with suppress(FileNotFoundError), self._part.open("rb") as file:
            try:
                lock(file.fileno(), shared=True)
            except BlockingIOError:
                logger.info(f"waiting for another process, which translates shard {self.shard}")
                lock(file.fileno(), shared=True, waits=True)

    @contextmanager
    def opened(self) -> Iterator[tuple[Place, Iterator[str], Path]]:
        """Give the place of the lines in the file, the lines, and the file to write to.

        That file becomes the output when the block ends without an error. Raises UserError if the
        source is no text or has changed by then, or if another process is writing the file.
        """
        refuse_archive(self.source)
        _check_output(self.output, [self.source])
        part = self._part
        _check_output(part, [self.source])
        place, lines = lines_of_shard(self.source, self.shard, self._text.num_bytes)
        _ = self.models  # cached now: loading finds out whether they have changed
        with part.open("ab") as file:
            try:
                if not lock(file.fileno()):
                    logger.warning(
                        f"{part} is on a file system without locks: make sure that no other "
                        "process writes it"
                    )
            except BlockingIOError:
                raise UserError(f"another process is writing {part}") from None
            yield place, decoded_lines(lines, str(self.source), place.first_number + 1), part
            fsync(part)
            if hash_of_files([self.source]) != self._text.sha256:
                raise UserError(changed_meanwhile(str(self.source)))
            # First the record, which does not fit an older output: `is_done` compares both.
            write_json(Record.path(self.output), asdict(self._record(part)))
            part.replace(self.output)

    @property
    def _part(self) -> Path:
        return self.output.with_name(self.output.name + ".part")

    @functools.cached_property
    def _text(self) -> SourceText:
        return SourceText.of(self.source)

    @functools.cached_property
    def models(self) -> dict[str, Any]:
        """The models and options, as `described` gives them."""
        return described(self.job)

    def _record(self, output: Path) -> Record:
        translations = hash_of_files([output])
        return Record(_FORMAT, self.shard, self._text, self.models, translations)


def _check_output(path: Path, sources: Sequence[Path]) -> None:
    """Raise UserError if the output is something else than a file, or one of the sources."""
    if not path.name or (path.exists() and not path.is_file()):
        raise UserError(f"the output {path} is not a file")
    if path.exists() and any(source.exists() and path.samefile(source) for source in sources):
        raise UserError(f"{path}, which would be written, is part of the input")


def _as_text(name: str) -> str:
    """Return a name without lone surrogates, which stand for bytes that are not UTF-8."""
    return name.encode("utf-8", "replace").decode("utf-8")


def described(job: "Job") -> dict[str, Any]:
    """Return the models of a job by their hashes, and its options, as JSON gives them back."""
    options = {field.name: getattr(job, field.name) for field in fields(job)}
    for name in ("run_dirs", "which", "device"):
        del options[name]
    runs = []
    for run in job.members:  # everything that translations depend on
        tokenizers = sorted(path for path in run.path.glob("*.model") if path.is_file())
        files = [run.weights(job.which), run.config, *tokenizers, run.statistics, run.search]
        runs.append(hash_of_files(path for path in files if path.exists()))
    ensembles = [run for run in map(RunFolder, job.run_dirs) if run.ensemble.is_file()]
    runs += [hash_of_files([run.search]) for run in ensembles if run.search.exists()]
    as_json = json.dumps({"runs": runs, **options}, ensure_ascii=False)
    return json.loads(_as_text(as_json))


def lines_of_shard(path: Path, shard: Shard, num_bytes: int) -> tuple[Place, Iterator[bytes]]:
    """Return where the shard is in a file, and its lines, without line ends.

    `num_bytes` is the size of the file, unpacked. Every line is in the one shard in whose share of
    the bytes it begins; a shard may have none.
    """
    numbers = (shard.number - 1, shard.number)
    start, end = (num_bytes * number // shard.num_shards for number in numbers)
    first_number = position = 0  # of the first line that begins at byte `start` or later
    if start:
        first_number, position, left = 1, start - 1, start - 1
        with opened(path) as file:
            while left and (block := file.read(min(left, _BLOCK))):
                first_number += block.count(b"\n")
                left -= len(block)
            while rest := file.readline(_BLOCK):  # empty at the end of the file
                position += len(rest)
                if rest.endswith(b"\n"):
                    break

    def lines() -> Iterator[bytes]:
        with opened(path) as file:
            skip_bytes(file, path, position)
            raw = bounded_lines(file, max(0, end - position))
            yield from strip_line_ends(raw, first_number)

    return Place(first_number, 1 / shard.num_shards), lines()


def skip_bytes(file: BinaryIO, path: Path, count: int) -> None:
    """Go on to byte `count` of a file that was opened, which may be compressed."""
    if path.suffix not in BY_SUFFIX:
        file.seek(count)
        return
    while count and (block := file.read(min(count, _BLOCK))):
        count -= len(block)


def join_shards(outputs: Sequence[Path], target: Path | None) -> int:
    """Write the translations of all shards, in order, to a file or standard output (None or `-`).

    Returns how many shards there were. Records among the outputs are ignored, as in `part-*`.
    Raises UserError before writing if an output is missing, foreign, or not what its record says.
    """
    given = [path for path in outputs if not path.name.endswith(_RECORD)]
    if not given:
        raise UserError("give the outputs of all shards")
    records = {path: Record.read(path) for path in given}
    (first_path, first), *others = records.items()
    for path, record in others:
        if record.source != first.source:
            raise UserError(f"{path} and {first_path} are translations of different texts")
        if record.job != first.job:
            raise UserError(f"{path} and {first_path} have different models or options")
        if record.shard.num_shards != first.shard.num_shards:
            raise UserError(f"{path} is shard {record.shard}, {first_path} is {first.shard}")
    found: dict[int, Path] = {}
    for path, record in records.items():
        other = found.setdefault(record.shard.number, path)
        if other != path:
            raise UserError(f"{path} and {other} are the same shard, {record.shard}")
    num_shards = first.shard.num_shards
    missing = (str(n) for n in range(1, num_shards + 1) if n not in found)
    if listed := list(itertools.islice(missing, _MOST_LISTED + 1)):
        if len(listed) > _MOST_LISTED:
            listed[-1] = "…"
        raise UserError(f"of {num_shards:,} shards these are missing: {', '.join(listed)}")
    for path, record in records.items():
        if not path.is_file():
            raise UserError(f"there is no file {path}")
        if hash_of_files([path]) != record.sha256:
            raise UserError(f"{path} does not match its record: it was changed or cut short")
    ordered = sorted(records, key=lambda path: records[path].shard)
    with ExitStack() as stack:
        joined: BinaryIO = sys.stdout.buffer
        if target is not None and target != STANDARD_STREAM:
            _check_output(target, [*given, *map(Record.path, given)])
            joined = stack.enter_context(stack.enter_context(replacing(target)).open("wb"))
        elif any(is_one_file(path, None) for path in given):  # which would grow forever
            output = "standard output"
            raise UserError(f"{output}, which would be written, is part of the input")
        for path in ordered:
            with path.open("rb") as file:
                shutil.copyfileobj(file, joined, _BLOCK)
    return len(ordered)
