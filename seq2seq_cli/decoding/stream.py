"""Many lines through a translator, in order and in bounded memory; on several processes or one."""

import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from seq2seq_cli.decoding.joining import Wanted
from seq2seq_cli.decoding.states import Ensemble
from seq2seq_cli.decoding.translation import WRITERS, OutputFormat, Sentence
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import UserError
from seq2seq_cli.machine import num_cores
from seq2seq_cli.model.allocator import keep_freed_memory
from seq2seq_cli.option_types import DeviceName

Line = list[str]  # what is printed for one line of the input
TranslateLines = Callable[[int, Sequence[str]], list[Line]]

_CHARACTERS_AT_ONCE = 1 << 22
_LINES_AT_ONCE = 1_000  # translated together, so that they can be batched by length
_SECONDS_TO_GATHER = 0.02  # that a line waits for others to come with it
_LARGE_FILE = 400_000  # bytes from which on starting more processes pays
_CHUNKS_AHEAD = 2  # for every process


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

    def start(self) -> TranslateLines:
        """Load the model; returns what translates lines, given the number of the first."""
        keep_freed_memory()
        translators = [
            Translator.load(run_dir, self.device, self.overrides, which=self.which)
            for run_dir in self.run_dirs
        ]
        translator = translators[0] if len(translators) == 1 else _together(translators)
        wanted = Wanted(self.log_probs, self.align)
        write = WRITERS[self.output_format]

        def translate_lines(first_number: int, lines: Sequence[str]) -> list[Line]:
            sentences = [self._sentence(first_number + n, line) for n, line in enumerate(lines)]
            found = translator.search(
                sentences, wanted, first_number=first_number, split_sentences=self.split_sentences
            )
            best = 1 if self.output_format == "text" else None
            return [
                write(first_number + n, sentence, translations[:best])
                for n, (sentence, translations) in enumerate(zip(sentences, found, strict=True))
            ]

        return translate_lines

    def _sentence(self, number: int, line: str) -> Sentence:
        if self.input_format == "text":
            return Sentence(line, self.prefix, self.required)
        try:
            sentence = Sentence.from_json(line)
        except UserError as error:
            raise UserError(f"line {number + 1:,}: {error}") from None
        prefix, required = sentence.prefix or self.prefix, sentence.required + self.required
        return Sentence(sentence.text, prefix, required)


def translate_stream(
    job: Job, lines: Iterable[str], file: Path | None, workers: int | None
) -> Iterator[Line]:
    """What is printed for each line, as soon as the lines that came with it are done.

    `workers` None: one process for each core where a large file is translated on a CPU.
    """
    if workers is None:
        is_large = file is not None and file.is_file() and file.stat().st_size >= _LARGE_FILE
        is_cpu = job.device == "cpu" or not torch.cuda.is_available()
        workers = num_cores() if is_large and is_cpu else 1
    chunks = _numbered(_as_they_come(lines, _LINES_AT_ONCE, polls=workers > 1))
    if workers == 1:
        translate_lines = job.start()
        for first_number, chunk in chunks:
            yield from translate_lines(first_number, chunk)
        return
    with ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), _start_in_process, (job, workers)
    ) as pool:
        ahead: deque[Future[list[Line]]] = deque()
        try:
            for first_number, chunk in chunks:
                if chunk:
                    ahead.append(pool.submit(_translate_in_process, first_number, chunk))
                while ahead and (ahead[0].done() or len(ahead) >= _CHUNKS_AHEAD * workers):
                    yield from ahead.popleft().result()
            while ahead:
                yield from ahead.popleft().result()
        except BrokenProcessPool:
            raise UserError(
                "a worker process ended before its work (out of memory?); try --workers 1"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


# Of a process that translates for another; or why it cannot.
_translate_lines: TranslateLines | UserError | None = None


def _start_in_process(job: Job, workers: int) -> None:
    global _translate_lines
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the first process's business
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    torch.set_num_threads(max(1, num_cores() // workers))
    try:
        _translate_lines = job.start()
    except UserError as error:
        _translate_lines = error


def _end_with_the_first() -> None:
    """End this process when the one that started it is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "another process started this one"
    parent.join()
    os._exit(1)


def _translate_in_process(first_number: int, lines: list[str]) -> list[Line]:
    assert _translate_lines is not None, "the pool has started this process"
    if isinstance(_translate_lines, UserError):
        raise _translate_lines
    return _translate_lines(first_number, lines)


def _together(translators: Sequence[Translator]) -> Translator:
    """One that searches with the mean of all models' probabilities."""
    first = translators[0]
    for other in translators[1:]:
        if other.tokenizers.tgt.model != first.tokenizers.tgt.model or (
            other.tokenizers.src.model != first.tokenizers.src.model
        ):
            raise UserError("the runs of an ensemble must have the same vocabulary")
    decoder = Ensemble([translator.decoder for translator in translators])
    return Translator(first.model, first.tokenizers, first.config, decoder)


def _numbered(chunks: Iterable[list[str]]) -> Iterator[tuple[int, list[str]]]:
    number = 0
    for chunk in chunks:
        yield number, chunk
        number += len(chunk)


def _as_they_come(lines: Iterable[str], most: int, *, polls: bool) -> Iterator[list[str]]:
    """Lines that are there already together, `most` at most.

    The first one is waited for; or, with `polls`, an empty list says that there is none yet.
    """
    if isinstance(lines, Sequence):
        yield from (list(lines[start : start + most]) for start in range(0, len(lines), most))
        return
    arrived: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=most)

    def read() -> None:
        try:
            for line in lines:
                arrived.put(line)
            arrived.put(None)
        except BaseException as error:
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    is_open = True
    while is_open:
        chunk: list[str] = []
        end: BaseException | None = None
        num_characters = 0
        while len(chunk) < most and num_characters < _CHARACTERS_AT_ONCE:
            try:
                item = arrived.get(timeout=_SECONDS_TO_GATHER if chunk or polls else None)
            except queue.Empty:
                break
            if not isinstance(item, str):
                is_open, end = False, item
                break
            chunk.append(item)
            num_characters += len(item)
        if chunk or polls:
            yield chunk
        if end is not None:
            raise end
