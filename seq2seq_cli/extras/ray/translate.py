"""Translates text files with Ray: actors translate pieces, the process that started them writes.

That process cuts each file at line ends and writes the translation of each piece to a file whose
name is the hash of everything that it depends on. When all pieces of a text exist, it joins them.
So nothing depends on the order of Ray's results, or on lost or repeated ones, and a repeated
command continues.
"""

import hashlib
import io
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from seq2seq_cli.config.text import without_compression
from seq2seq_cli.decoding.lines.issues import Issues
from seq2seq_cli.decoding.lines.shards import Record, Shard, ShardTask, skip_bytes
from seq2seq_cli.decoding.lines.stream import Job, chunks_of, load_worker
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import locked, write_atomic
from seq2seq_cli.machine import TORCH_DEFAULTS
from seq2seq_cli.paths import files_of, text_path
from seq2seq_cli.text.compression import opened
from seq2seq_cli.text.io import (
    MOST_BYTES,
    bounded_lines,
    decoded_lines,
    is_one_file,
    refuse_archive,
    strip_line_ends,
)

logger = logging.getLogger(__name__)

_PIECES_OF_AN_ACTOR = 8  # at least, so that all actors finish at about the same time
_MANY_ACTORS = 64  # assumed without a maximum number
_BYTES_OF_A_PIECE = (1 << 14, 1 << 20)  # minimum, for batches of similar lengths, and maximum
_STARTS = 3  # in a row without a translation


class Actors(NamedTuple):
    """How many actors translate, between two numbers (None: autoscale to the available resources).

    `num_cpus` and `num_gpus` are what each of them reserves, perhaps a fraction. None: one CPU
    without a GPU, and Ray's choice with a GPU, where it advises against giving both.
    """

    fewest: int
    most: int | None
    num_cpus: float | None
    num_gpus: float

    @classmethod
    def parse(cls, concurrency: str | None, num_cpus: float | None, num_gpus: float) -> "Actors":
        """Read `4` or `1:8`. Raises UserError for anything else."""
        if concurrency is None:
            return cls(1, None, num_cpus, num_gpus)
        found = re.fullmatch(r"(\d+)(?::(\d+))?", concurrency, re.ASCII)
        fewest, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= fewest <= most:
            raise UserError(
                f"--concurrency {concurrency}: give a number of actors, or two as in 1:8"
            )
        return cls(fewest, most, num_cpus, num_gpus)


class Piece(NamedTuple):
    """Some lines of a file."""

    first_number: int  # of the lines, from 0
    start: int  # in bytes, unpacked
    num_bytes: int
    num_lines: int
    sha256: str  # of the bytes


class Text(NamedTuple):
    """A file to translate, in pieces, and the file for the translation of each."""

    task: ShardTask  # the whole file
    pieces: Sequence[Piece]
    outputs: Sequence[Path]

    def join(self) -> None:
        """Write the translation of the whole file, and remove its pieces."""
        with self.task.opened() as (_, _, part), part.open("wb") as file:
            for output in self.outputs:
                file.write(output.read_bytes())
        shutil.rmtree(_folder_of_pieces(self.task.output), ignore_errors=True)


def sources_of(pattern: Path) -> list[Path]:
    """Return the files that match a path. Raises UserError if there is none."""
    if files := [path for path in files_of(pattern) if path.is_file()]:
        return files
    raise UserError(f"there is no file {pattern}")


def translate_files(
    job: Job,
    sources: Sequence[Path],
    folder: Path,
    actors: Actors,
    report: Callable[[int], object],
) -> int:
    """Translate files into files of the same names in a folder; return how many were missing.

    `report` is called with numbers of translated lines. Ray connects as `ray.init()` does, unless
    it is connected. The machines see the runs and the sources at the same paths; only this machine
    needs the folder. Raises UserError for what the user can fix.
    """
    which = str(Path(job.which).absolute()) if job.which.endswith(".safetensors") else job.which
    run_dirs = tuple(path.absolute() for path in job.run_dirs)
    job = replace(job, run_dirs=run_dirs, which=which)
    tasks: dict[Path, ShardTask] = {}
    for path in sources:
        source, output = path.absolute(), folder / without_compression(path.name)
        refuse_archive(source)
        if output in tasks:
            other = tasks[output].source
            raise UserError(f"the translations of {other} and {source} have the same name")
        if is_one_file(source, output):
            raise UserError(f"the output, {output}, is the input file")
        tasks[output] = ShardTask(job, Shard(1, 1), source, output)
    with locked(folder, ".lock"):
        missing = [task for task in tasks.values() if not task.is_done()]
        for output in (task.output for task in missing):
            has_content = output.is_file() and output.stat().st_size
            if has_content and not Record.path(output).exists():
                raise UserError(
                    f"{output} has content, and translate-ray has not written it: name another "
                    "folder"
                )
        num_bytes = sum(path.stat().st_size for path in sources)
        share = num_bytes // (_PIECES_OF_AN_ACTOR * (actors.most or _MANY_ACTORS))
        fewest, most = _BYTES_OF_A_PIECE
        texts = [cut(task, min(max(share, fewest), most)) for task in missing]
        _translate_pieces(job, texts, actors, report).report()
    return len(missing)


def _folder_of_pieces(output: Path) -> Path:
    return output.with_name(output.name + ".pieces")


def cut(task: ShardTask, num_bytes: int) -> Text:
    """Cut a file into pieces of about `num_bytes`; from now on the text may not change."""
    task.remember_inputs()
    pieces = list(_pieces(task.source, num_bytes))
    model = json.dumps(task.models)
    known = (f"{model} {piece.first_number} {piece.sha256}".encode() for piece in pieces)
    folder = _folder_of_pieces(task.output)
    return Text(task, pieces, [folder / hashlib.sha256(name).hexdigest() for name in known])


def _pieces(path: Path, num_bytes: int) -> Iterator[Piece]:
    number, start = 0, 0
    with opened(path) as file:
        for block in iter(lambda: file.read(num_bytes), b""):
            data = block + file.readline(MOST_BYTES + 8)
            if not data.endswith(b"\n") and file.peek(1):  # type: ignore[attr-defined]
                raise UserError(f"{path}: a line is longer than {MOST_BYTES:,} bytes")
            num_lines = data.count(b"\n") + (not data.endswith(b"\n"))
            yield Piece(number, start, len(data), num_lines, hashlib.sha256(data).hexdigest())
            number, start = number + num_lines, start + len(data)


class PieceTranslator:
    """An actor of Ray: loads the model once, and translates a piece at each call."""

    def __init__(self, job: Job, num_threads: int, models: dict[str, Any]) -> None:
        torch.set_num_threads(num_threads)
        self._job, self._translate = job, load_worker(job, models)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the translations as bytes, and the issues of lines; or a message for the user."""
        result = {"text": row["text"], "number": row["number"], "output": b"", "error": ""}
        issues = Issues()
        try:
            path, piece = text_path(row["path"]), Piece(*json.loads(row["piece"]))
            with opened(path) as file:
                skip_bytes(file, path, piece.start)
                data = file.read(piece.num_bytes)
            if hashlib.sha256(data).hexdigest() != piece.sha256:
                raise UserError(f"{path} has changed, or is another file on another machine")
            raw = strip_line_ends(bounded_lines(io.BytesIO(data)), piece.first_number)
            lines = decoded_lines(raw, str(path), piece.first_number + 1)
            inputs = self._job.inputs(lines, piece.first_number)
            outputs, issues = self._translate(chunks_of(inputs, piece.first_number))
            assert len(outputs) == piece.num_lines
            text = "".join(f"{line}\n" for output in outputs for line in output)
            result["output"] = text.encode("utf-8", errors="replace")
        except (UserError, OSError) as error:  # OSError: of the file system of this machine
            result["error"] = str(error)
        return result | {"issues": json.dumps(astuple(issues))}


def _translate_pieces(
    job: Job, texts: Sequence[Text], actors: Actors, report: Callable[[int], object]
) -> Issues:
    """Translate missing pieces, and join each text that is complete.

    What Ray loses is translated again. Raises UserError if several starts return nothing.
    """
    from ray.exceptions import RayError, RayTaskError

    left = [{n for n, output in enumerate(x.outputs) if not output.is_file()} for x in texts]
    for text, numbers in zip(texts, left, strict=True):
        if not numbers:
            text.join()
    all_issues, starts = Issues(), _STARTS
    reason: RayError | None = None
    while any(left):
        if not starts:
            raise UserError(f"Ray returns no translations: {reason}")
        starts -= 1
        try:
            for row in _results(job, texts, left, actors):
                text, number = texts[row["text"]], row["number"]
                if row["error"]:
                    raise UserError(row["error"])
                if number not in left[row["text"]]:
                    continue
                text.outputs[number].parent.mkdir(exist_ok=True)
                write_atomic(text.outputs[number], row["output"])
                left[row["text"]].remove(number)
                all_issues += Issues(*json.loads(row["issues"]))
                starts = _STARTS
                report(text.pieces[number].num_lines)
                if not left[row["text"]]:
                    text.join()
        except RayTaskError:
            raise  # a bug
        except RayError as error:
            reason = error
            logger.warning(f"Ray has stopped, and is started again: {error}")
    return all_issues


def _results(
    job: Job, texts: Sequence[Text], left: Iterable[set[int]], actors: Actors
) -> Iterable[dict[str, Any]]:
    """Connect to the cluster that Ray finds, or start one here; have actors translate what is left.

    Returns their rows in any order.
    """
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    if not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # of a cluster that starts here
        ray.init(logging_level=logging.WARNING)
    context = DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)  # which has no bars
    rows = [
        {"text": n, "number": k, "path": str(text.task.source), "piece": json.dumps(text.pieces[k])}
        for n, (text, numbers) in enumerate(zip(texts, left, strict=True))
        for k in sorted(numbers)
    ]
    if job.device == "auto":
        job = replace(job, device="cuda" if actors.num_gpus else "cpu")
    models = texts[0].task.models
    num_cpus = 1.0 if actors.num_cpus is None and not actors.num_gpus else actors.num_cpus
    environment = {name: os.environ.get(name, value) for name, value in TORCH_DEFAULTS.items()}
    results = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
        PieceTranslator,
        fn_constructor_kwargs={
            "job": job,
            "num_threads": max(1, int(num_cpus or 1)),
            "models": models,
        },
        compute=ActorPoolStrategy(min_size=actors.fewest, max_size=actors.most),
        num_cpus=num_cpus,
        num_gpus=actors.num_gpus or None,
        runtime_env={"env_vars": environment},
    )
    return results.iter_rows()
