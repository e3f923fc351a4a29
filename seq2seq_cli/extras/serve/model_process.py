"""The processes with the models: one loads them, and its forks translate.

Forks share the memory of the weights, and replace a dead worker in milliseconds. A GPU cannot be
used by forks: there the process that has loaded the models translates itself.
"""

import contextlib
import functools
import gc
import json
import os
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any

from seq2seq_cli.decoding.lines.issues import Issues
from seq2seq_cli.decoding.lines.merging import Outputs
from seq2seq_cli.decoding.translation import Translation, TranslationInput
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import UserError, of_system, shortages_reported
from seq2seq_cli.extras.serve.messages import (
    WITH_PYTORCH,
    Batch,
    BatchResult,
    SearchOptions,
    SentenceInput,
    SentenceOutput,
    packed,
)
from seq2seq_cli.extras.serve.served_run import RunToServe
from seq2seq_cli.machine import retain_freed_pages, set_num_threads
from seq2seq_cli.processes import unblock_signals
from seq2seq_cli.text.words import word_spans

_WARM_UP = "Hello."


class LoadedRun:
    """A run's model, with a translator for each way to search."""

    def __init__(self, run: RunToServe) -> None:
        self._translator = Translator.load(run.run_dir, run.device, run.overrides, which=run.which)
        self.is_on_cpu = self._translator.backend.device_type == "cpu"
        self._variant = functools.lru_cache(maxsize=64)(self._make_variant)

    def translate(self, batch: Batch) -> BatchResult:
        """Translate a batch; a sentence that cannot be translated has a message instead."""
        start = time.perf_counter()
        issues: list[Issues] = []
        outputs = self._outputs(batch.sentences, batch.options, issues)
        best = [output[0] for output in outputs if not isinstance(output, str)]
        return BatchResult(
            tuple(
                output
                if isinstance(output, str)
                else tuple(self._reported(each, sentence.text, batch.options) for each in output)
                for output, sentence in zip(outputs, batch.sentences, strict=True)
            ),
            sum(len(translation.tokens) for translation in best),
            sum(each.at_length_limit for each in issues),
            time.perf_counter() - start,
        )

    def _outputs(
        self, sentences: Sequence[SentenceInput], options: SearchOptions, issues: list[Issues]
    ) -> list[list[Translation] | str]:
        try:
            self._check_features(sentences)
            return [*self.search(sentences, options, issues)]
        except UserError as error:  # about one of the sentences
            if len(sentences) == 1:
                return [str(error)]
            return [self._outputs([each], options, issues)[0] for each in sentences]

    def _check_features(self, sentences: Sequence[SentenceInput]) -> None:
        """Raise UserError if a model with features gets unknown ones, or none."""
        for text, _ in sentences:
            issues = self._translator.feature_issues([TranslationInput(text)])
            if unknown := issues.unknown_features:
                raise UserError(f"the model does not know the features {', '.join(unknown)}")
            if issues.lines_without_features:
                raise UserError("the model needs features of the source, after a tab")

    def search(
        self, sentences: Sequence[SentenceInput], options: SearchOptions, issues: list[Issues]
    ) -> list[list[Translation]]:
        """Search for the translations of sentences. Raises UserError if one has none."""
        translator = self._variant(SearchOptions(options.n_best, options.with_constraints))
        inputs = [TranslationInput(text, required=required) for text, required in sentences]
        has_words = options.alignment or options.attention
        outputs = Outputs(options.log_probs, has_words, options.attention)
        with shortages_reported():  # of constraints, for which C has no search
            return translator.search(inputs, outputs, report=issues.append)

    def _make_variant(self, options: SearchOptions) -> Translator:
        of_run = self._translator.config.decoding
        changes: dict[str, object] = {"n_best": options.n_best}
        if options.width > of_run.width or options.with_constraints:
            beam_size = max(of_run.width, options.width)
            changes |= {"beam_size": beam_size, "sampling": False, "diversity_groups": 1}
        return self._translator.with_options(of_run.model_copy(update=changes))

    def _reported(
        self, translation: Translation, text: str, options: SearchOptions
    ) -> SentenceOutput:
        has_words = options.alignment or options.attention
        return SentenceOutput(
            translation.text,
            (translation.alignment or ()) if options.alignment else (),
            translation.attention or (),
            translation.tokens if options.log_probs else (),
            translation.log_probs or (),
            self._aligned_words(text) if has_words else (),
        )

    def _aligned_words(self, text: str) -> list[tuple[int, int]]:
        """Return where the words of a sentence are, without its tag and features."""
        line = TranslationInput(text)
        source, _ = self._translator.source_of(line)
        before = len(self._translator.text_and_features(line)[0]) - len(source)
        return [(before + start, before + end) for start, end in word_spans(source)]


def load_models(runs: Sequence[RunToServe], control: socket.socket) -> None:
    """Load the models and say so; then fork a process for each connection that arrives.

    A fork imports PyTorch for constraints, unless a connection has come with `WITH_PYTORCH`.
    Ends this process when the other end of `control` is closed.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the server ends this process when it is done
    unblock_signals()
    set_num_threads(1)
    retain_freed_pages()
    try:
        with shortages_reported():
            loaded = [LoadedRun(run) for run in runs]
        for run in loaded:  # initialize before the forks, and read what alignments need
            run.search([SentenceInput(_WARM_UP)], SearchOptions(alignment=True), [])
    except (UserError, OSError) as error:
        _send(control, {"error": of_system(error) if isinstance(error, OSError) else str(error)})
        return
    can_fork = all(run.is_on_cpu for run in loaded)
    _send(control, {"can_fork": can_fork, "pid": os.getpid()})
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children that end leave nothing
    gc.collect()
    gc.freeze()
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            os._exit(0)
        if data == WITH_PYTORCH:
            with contextlib.suppress(ImportError):  # which the runtime does without
                import seq2seq_cli.decoding.search.search  # noqa: F401
        connection = socket.socket(fileno=descriptors[0])
        try:
            is_worker = not can_fork or os.fork() == 0
        except OSError:  # too many processes, or too little memory: the server asks again
            is_worker = False
        if not is_worker:
            connection.close()
            continue
        control.close()
        _send(connection, {"pid": os.getpid()})
        for line in connection.makefile("rb"):
            batch = Batch.from_json(json.loads(line))
            _send(connection, loaded[batch.run].translate(batch))
        os._exit(0)


def _send(connection: socket.socket, message: Any) -> None:
    try:
        connection.sendall(packed(message))
    except OSError:  # the server has ended
        os._exit(0)
