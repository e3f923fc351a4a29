"""translate_stream(): many lines, in order, in bounded memory, in one process or several."""

import functools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from seq2seq_cli import machine
from seq2seq_cli.config.types import DeviceName
from seq2seq_cli.decoding.lines.issues import Issues
from seq2seq_cli.decoding.lines.merging import Outputs
from seq2seq_cli.decoding.lines.shards import described
from seq2seq_cli.decoding.output_formats import WRITERS, OutputFormat
from seq2seq_cli.decoding.translation import TranslationInput, naming_line
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import ReplacedFileError, UserError
from seq2seq_cli.processes import ProcessDiedError, ordered_pool
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.io import WHOLE_FILE, Place, may_wait

Line = list[str]  # what is printed for one line of the input
Chunk = tuple[int, list[TranslationInput]]  # with the number of its first line
Translated = tuple[list[Line], Issues]

_CHARACTERS_AT_ONCE = 1 << 22
_LINES_AT_ONCE = 1_000  # in a chunk, so that they can be batched by length
_SECONDS_TO_GATHER = 0.02  # that a line from a pipe waits for others to join its chunk
_LARGE_FILE = 400_000  # bytes; from this size on, starting more processes pays
# Memory of a process, in bytes: Python, PyTorch and a batch take some 300 to 450 MB; the weights as
# they are read, as a model, and packed for search take less than three times their file.
_BYTES_OF_A_PROCESS = 500_000_000
_TIMES_ITS_WEIGHTS = 3


@dataclass(frozen=True)
class Job:
    """How every line is translated and written; can be sent to another process."""

    run_dirs: tuple[Path, ...]  # several runs, or the folder of an ensemble, search together
    device: DeviceName = "auto"
    overrides: tuple[str, ...] = ()
    which: str = "best"
    input_format: Literal["text", "jsonl"] = "text"
    output_format: OutputFormat = "text"
    log_probs: bool = False
    align: bool = False
    split_sentences: bool = False
    prefix: str = ""
    required: tuple[str, ...] = ()

    @property
    def members(self) -> list[RunFolder]:
        """The runs whose models search together. Raises UserError for damaged ensembles."""
        return [member for run in self.run_dirs for member in RunFolder(run).members(self.which)]

    def bytes_needed(self) -> int:
        """Estimate the bytes of a process but for attention; UserError if there are no weights."""
        paths = (member.weights(self.which) for member in self.members)
        num_bytes = sum(path.stat().st_size for path in paths if path.exists())
        return _BYTES_OF_A_PROCESS + _TIMES_ITS_WEIGHTS * num_bytes

    def load(self, expected: Mapping[str, Any] | None = None) -> Translator:
        """Load the models.

        Raises ReplacedFileError if they are not the `expected` ones, which `described` gave before.
        """
        machine.retain_freed_pages()
        load = functools.partial(
            Translator.load, device=self.device, overrides=self.overrides, which=self.which
        )
        loaded = [load(run) for run in self.run_dirs]
        if expected is not None and described(self) != expected:
            raise ReplacedFileError("a model was replaced while the command began: run it again")
        return loaded[0] if len(loaded) == 1 else Translator.ensemble(loaded)

    def parse(self, number: int, line: str) -> TranslationInput:
        """Read an input from a line; the first line has number 0."""
        if self.input_format == "text":
            return TranslationInput(line, self.prefix, self.required)
        with naming_line(number):
            parsed = TranslationInput.from_json(line)
        prefix, required = parsed.prefix or self.prefix, parsed.required + self.required
        return replace(parsed, prefix=prefix, required=required)

    def inputs(self, lines: Iterable[str], first_number: int) -> Iterator[TranslationInput]:
        """Read the inputs of lines, which are numbered from `first_number`."""
        return (self.parse(number, line) for number, line in enumerate(lines, first_number))


def translate_stream(
    job: Job,
    lines: Iterable[str],
    file: Path | None,
    processes: int | None,
    place: Place = WHOLE_FILE,
    report: Callable[[Issues], None] = Issues.report,
    expected: Mapping[str, Any] | None = None,
) -> Iterator[Line]:
    """Return what is printed for each line, as soon as the lines of its chunk are translated.

    `lines` are a sequence, or arrive from `file`, or a `place` in it, or from standard input if it
    is None. `processes` None: `automatic_processes` for large files on a CPU, else one. A line that
    cannot be read raises UserError after all lines before it. `report` gets all issues at the end.
    `expected`: see `Job.load`; several processes have the models that are there now.
    """
    if processes is None:
        num_bytes = file.stat().st_size if file is not None and file.is_file() else 0
        is_on_cpu = job.device == "cpu" or not _has_gpu()
        if is_on_cpu and num_bytes * place.share >= _LARGE_FILE:
            processes = automatic_processes(job, machine.num_cores(), machine.available_memory())
    processes = processes or 1
    inputs, first_number = job.inputs(lines, place.first_number), place.first_number
    if isinstance(lines, Sequence) or not may_wait(file):
        chunks = chunks_of(inputs, first_number)
    else:
        chunks = _live_chunks(inputs, first_number, polls=processes > 1)
    if processes > 1:
        expected = expected or described(job)
        return _translate_in_processes(job, expected, chunks, processes, report)
    return translate_chunks(job, job.load(expected), chunks, report)


def _has_gpu() -> bool:
    if not machine.may_have_gpu():
        return False
    import torch

    return torch.cuda.is_available()


def translate_chunks(
    job: Job, translator: Translator, chunks: Iterable[Chunk], report: Callable[[Issues], None]
) -> Iterator[Line]:
    """Translate one chunk after another in this process; `report` the issues at the end."""
    issues: list[Issues] = []
    outputs = Outputs(job.log_probs, job.align, attention=job.output_format == "jsonl")
    write = WRITERS[job.output_format]
    most = 1 if job.output_format == "text" else None  # translations to write for a line
    try:
        for first_number, inputs in chunks:
            results = translator.search(
                inputs,
                outputs,
                first_number=first_number,
                split_sentences=job.split_sentences,
                report=issues.append,
            )
            for n, (line, translations) in enumerate(zip(inputs, results, strict=True)):
                yield write(first_number + n, line, translations[:most])
    finally:
        report(sum(issues, Issues()))


def automatic_processes(job: Job, cores: int, available: int) -> int:
    """Return one process for each core, or fewer if they need more than the available bytes."""
    return max(1, min(cores, available // job.bytes_needed()))


def _translate_in_processes(
    job: Job,
    expected: Mapping[str, Any],
    chunks: Iterator[Chunk],
    processes: int,
    report: Callable[[Issues], None],
) -> Iterator[Line]:
    all_issues = Issues()
    unreadable: list[UserError] = []

    def readable() -> Iterator[Chunk | None]:
        try:
            for chunk in chunks:
                yield chunk if chunk[1] else None  # no line has arrived yet
        except UserError as error:  # raised after the lines before it
            unreadable.append(error)

    pool = ordered_pool(processes, _translation, job, expected, processes)
    with pool as translate:
        try:
            for lines, issues in translate(readable()):
                all_issues += issues
                yield from lines
        except ProcessDiedError:
            raise UserError(
                "a translating process died (out of memory?); try --processes 1"
            ) from None
        finally:
            report(all_issues)
    for error in unreadable:
        raise error


def _translation(
    job: Job, expected: Mapping[str, Any], processes: int
) -> Callable[[Chunk], Translated]:
    """Load the model in one of the processes, which share the cores."""
    machine.set_num_threads(max(1, machine.num_cores() // processes))
    translate = load_worker(job, expected)
    return lambda chunk: translate([chunk])


def load_worker(
    job: Job, expected: Mapping[str, Any] | None = None
) -> Callable[[Iterable[Chunk]], Translated]:
    """Load the models (`expected`: see `Job.load`) and return what translates chunks of the job.

    That returns what is printed, and the issues of lines; it also raises errors in loading.
    """
    translator: Translator | UserError | OSError
    try:
        translator = job.load(expected)
    except (UserError, OSError) as error:
        translator = error

    def translate(chunks: Iterable[Chunk]) -> Translated:
        if isinstance(translator, UserError | OSError):
            raise translator
        issues: list[Issues] = []
        lines = list(translate_chunks(job, translator, chunks, issues.append))
        return lines, issues[0]

    return translate


def chunks_of(inputs: Iterator[TranslationInput], first_number: int) -> Iterator[Chunk]:
    """Put inputs, numbered from `first_number`, into chunks that do not depend on time.

    An error of the inputs is raised after the chunk of those before it.
    """
    end: Exception | None = None
    while end is None:
        chunk: list[TranslationInput] = []
        num_characters = 0
        try:
            while len(chunk) < _LINES_AT_ONCE and num_characters < _CHARACTERS_AT_ONCE:
                chunk.append(next(inputs))
                num_characters += len(chunk[-1].text)
        except Exception as error:
            end = error
        if chunk:
            yield first_number, chunk
            first_number += len(chunk)
    if not isinstance(end, StopIteration):
        raise end


def _live_chunks(
    inputs: Iterator[TranslationInput], first_number: int, *, polls: bool
) -> Iterator[Chunk]:
    """Put the inputs that have arrived into chunks; none waits long for others.

    The first one of a chunk is waited for; or, with `polls`, an empty chunk says that none has
    arrived yet.
    """
    arrived: queue.Queue[TranslationInput | BaseException] = queue.Queue(_LINES_AT_ONCE)

    def read() -> None:
        try:
            while True:
                arrived.put(next(inputs))
        except BaseException as error:  # StopIteration at the end
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    end: BaseException | None = None
    while end is None:
        chunk: list[TranslationInput] = []
        num_characters = 0
        deadline = time.monotonic() + _SECONDS_TO_GATHER
        while len(chunk) < _LINES_AT_ONCE and num_characters < _CHARACTERS_AT_ONCE:
            left = max(0, deadline - time.monotonic())
            try:
                item = arrived.get(timeout=left if chunk or polls else None)
            except queue.Empty:
                break
            if not isinstance(item, TranslationInput):
                end = item
                break
            if not chunk:
                deadline = time.monotonic() + _SECONDS_TO_GATHER
            chunk.append(item)
            num_characters += len(item.text)
        if chunk or polls:
            yield first_number, chunk
            first_number += len(chunk)
    if not isinstance(end, StopIteration):
        raise end
