"""Many lines through a translator, in order and in bounded memory; on several processes or one."""

import math
import multiprocessing
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from seq2seq_cli.config.types import DeviceName
from seq2seq_cli.decoding.merging import Outputs
from seq2seq_cli.decoding.segmentation import Cuts
from seq2seq_cli.decoding.translation import WRITERS, OutputFormat, Sentence
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import UserError
from seq2seq_cli.machine import available_memory, end_with_parent, held_interrupts, num_cores
from seq2seq_cli.model.malloc import retain_freed_pages
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.io import may_wait

Line = list[str]  # what is printed for one line of the input
Chunks = Iterator[tuple[int, list[Sentence]]]  # with the number of the first line
TranslateLines = Callable[[int, Sequence[Sentence]], tuple[list[Line], Cuts]]

_CHARACTERS_AT_ONCE = 1 << 22
_LINES_AT_ONCE = 1_000  # translated together, so that they can be batched by length
_SECONDS_TO_GATHER = 0.02  # that a line of a pipe waits for others to come with it
_LARGE_FILE = 400_000  # bytes from which on starting more processes pays
_CHUNKS_AHEAD = 2  # for every process
# What a process takes, in bytes: Python, PyTorch and a batch some 300 to 450 MB; the weights as
# they are read, as a model, and packed for search, together less than three times their file.
_BYTES_OF_A_PROCESS = 500_000_000
_TIMES_ITS_WEIGHTS = 3


@dataclass(frozen=True)
class Job:
    """What is to be done with every line; can be sent to another process."""

    run_dirs: tuple[Path, ...]  # more than one: an ensemble
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

    def memory(self) -> int:
        """Bytes that a process needs for it, estimated. UserError if there are no weights."""
        paths = (RunFolder(run_dir).weights(self.which) for run_dir in self.run_dirs)
        num_bytes = sum(path.stat().st_size for path in paths if path.exists())
        return _BYTES_OF_A_PROCESS + _TIMES_ITS_WEIGHTS * num_bytes

    def start(self) -> TranslateLines:
        """Load the model; returns what translates sentences, given the number of the first.

        What it has cut is for the caller to report.
        """
        retain_freed_pages()
        translators = [
            Translator.load(run_dir, self.device, self.overrides, which=self.which)
            for run_dir in self.run_dirs
        ]
        translator = translators[0] if len(translators) == 1 else Translator.ensemble(translators)
        wanted = Outputs(self.log_probs, self.align)
        write = WRITERS[self.output_format]

        def translate_lines(
            first_number: int, sentences: Sequence[Sentence]
        ) -> tuple[list[Line], Cuts]:
            segments, cuts = translator.cut(sentences, split_sentences=self.split_sentences)
            found = translator.search_segments(
                sentences, segments, wanted, first_number=first_number
            )
            best = 1 if self.output_format == "text" else None
            return [
                write(first_number + n, sentence, translations[:best])
                for n, (sentence, translations) in enumerate(zip(sentences, found, strict=True))
            ], cuts

        return translate_lines

    def sentence(self, number: int, line: str) -> Sentence:
        """What is asked for by a line, of which the first has number 0."""
        if self.input_format == "text":
            return Sentence(line, self.prefix, self.required)
        try:
            sentence = Sentence.from_json(line)
        except UserError as error:
            raise UserError(f"line {number + 1:,}: {error}") from None
        prefix, required = sentence.prefix or self.prefix, sentence.required + self.required
        return Sentence(sentence.text, prefix, required)


def translate_stream(
    job: Job, lines: Iterable[str], file: Path | None, processes: int | None
) -> Iterator[Line]:
    """What is printed for each line, as soon as the lines that came with it are done.

    `lines` are those of `file`, or of standard input where it is None, unless they are a sequence.
    `processes` None: `automatic_processes` where a large file is translated on a CPU, else one.
    A line that cannot be read ends it with a UserError, after all lines before it. What was cut is
    reported once, at the end.
    """
    if processes is None:
        is_large = file is not None and file.is_file() and file.stat().st_size >= _LARGE_FILE
        is_cpu = job.device == "cpu" or not torch.cuda.is_available()
        processes = (
            automatic_processes(job, num_cores(), available_memory()) if is_large and is_cpu else 1
        )
    sentences = (job.sentence(number, line) for number, line in enumerate(lines))
    if isinstance(lines, Sequence) or not may_wait(file):
        chunks = _numbered(_in_full(sentences, _LINES_AT_ONCE))
    else:
        chunks = _numbered(_gather_available(sentences, _LINES_AT_ONCE, polls=processes > 1))
    translate = _translate_here if processes == 1 else _translate_in_processes
    cuts = Cuts()
    try:
        for translated, of_chunk in translate(job, chunks, processes):
            cuts += of_chunk
            yield from translated
    finally:
        cuts.report()


def automatic_processes(job: Job, cores: int, memory: int) -> int:
    """A process for each core, as far as so many bytes of memory reach, but at least one."""
    return max(1, min(cores, memory // job.memory()))


def _translate_here(job: Job, chunks: Chunks, processes: int) -> Iterator[tuple[list[Line], Cuts]]:
    translate_lines = job.start()
    for first_number, chunk in chunks:
        yield translate_lines(first_number, chunk)


def _translate_in_processes(
    job: Job, chunks: Chunks, processes: int
) -> Iterator[tuple[list[Line], Cuts]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _start_in_process, (job, processes)) as pool:
        ahead: deque[Future[tuple[list[Line], Cuts]]] = deque()
        unreadable: UserError | None = None

        def readable() -> Chunks:
            nonlocal unreadable
            try:
                yield from chunks
            except UserError as error:
                unreadable = error

        try:
            for first_number, chunk in readable():
                if chunk:
                    with held_interrupts():  # the first chunk starts the processes
                        ahead.append(pool.submit(_translate_in_process, first_number, chunk))
                while ahead and (ahead[0].done() or len(ahead) >= _CHUNKS_AHEAD * processes):
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        except BrokenProcessPool:
            raise UserError(
                "a process ended before its work (out of memory?); try --processes 1"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    if unreadable is not None:
        raise unreadable


# Of a process that translates for another; or why it cannot.
_translate_lines: TranslateLines | UserError | None = None


def _start_in_process(job: Job, processes: int) -> None:
    global _translate_lines
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the first process's business
    threading.Thread(target=end_with_parent, args=(1,), daemon=True).start()
    torch.set_num_threads(max(1, num_cores() // processes))
    try:
        _translate_lines = job.start()
    except UserError as error:
        _translate_lines = error


def _translate_in_process(first_number: int, sentences: list[Sentence]) -> tuple[list[Line], Cuts]:
    assert _translate_lines is not None, "the pool has started this process"
    if isinstance(_translate_lines, UserError):
        raise _translate_lines
    return _translate_lines(first_number, sentences)


def _numbered(chunks: Iterable[list[Sentence]]) -> Chunks:
    number = 0
    for chunk in chunks:
        yield number, chunk
        number += len(chunk)


def _in_full(sentences: Iterator[Sentence], most: int) -> Iterator[list[Sentence]]:
    """So many together, whenever they come: the same chunks each time."""
    end: Exception | None = None
    while end is None:
        chunk: list[Sentence] = []
        num_characters = 0
        try:
            while len(chunk) < most and num_characters < _CHARACTERS_AT_ONCE:
                chunk.append(next(sentences))
                num_characters += len(chunk[-1].text)
        except (StopIteration, UserError) as error:
            end = error
        if chunk:
            yield chunk
    if isinstance(end, UserError):
        raise end


def _gather_available(
    sentences: Iterable[Sentence], most: int, *, polls: bool
) -> Iterator[list[Sentence]]:
    """Those that are there already together, `most` at most; none waits long for others.

    The first one is waited for; or, with `polls`, an empty list says that there is none yet.
    """
    arrived: queue.Queue[Sentence | BaseException | None] = queue.Queue(maxsize=most)

    def read() -> None:
        try:
            for sentence in sentences:
                arrived.put(sentence)
            arrived.put(None)
        except BaseException as error:
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    is_open = True
    while is_open:
        chunk: list[Sentence] = []
        end: BaseException | None = None
        num_characters = 0
        deadline = time.monotonic() + _SECONDS_TO_GATHER if polls else math.inf
        while len(chunk) < most and num_characters < _CHARACTERS_AT_ONCE:
            left = deadline - time.monotonic()
            try:
                item = arrived.get(timeout=max(left, 0) if left < math.inf else None)
            except queue.Empty:
                break
            if not isinstance(item, Sentence):
                is_open, end = False, item
                break
            if not chunk:
                deadline = time.monotonic() + _SECONDS_TO_GATHER
            chunk.append(item)
            num_characters += len(item.text)
        if chunk or polls:
            yield chunk
        if end is not None:
            raise end
