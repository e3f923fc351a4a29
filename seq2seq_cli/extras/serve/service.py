"""TranslationService: translates sentences, replaces dead workers, and reloads changed models."""

import asyncio
import contextlib
import functools
import itertools
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from seq2seq_cli.errors import UserError, shortages_reported
from seq2seq_cli.extras.serve.monitoring import Monitoring
from seq2seq_cli.extras.serve.responses import SHUTTING_DOWN
from seq2seq_cli.extras.serve.scheduler import Outputs, Scheduler, SentenceToTranslate, Submission
from seq2seq_cli.extras.serve.served_run import RunToServe, ServedRun
from seq2seq_cli.extras.serve.workers import ModelProcess, WorkerGroup

logger = logging.getLogger(__name__)

OTHER_LANGUAGES = "the server has just loaded models of other languages; try again"
_SECONDS_BETWEEN_CHECKS = 1.0  # of the runs' files
_TOKENS_PER_BATCH = 1_024
_SECONDS_TO_GATHER = 0.002  # so that sentences that arrive together are one batch
_MAX_SHARE = 1 / 64  # of the cache, for one sentence
# Estimated sizes of Python's objects, in bytes.
_ENTRY, _TEXT, _NUMBERS, _TOKEN = 800, 80, 100, 90

Result = asyncio.Future[Outputs]


class TranslationCache:
    """Evicts the least recently used sentence; attention is too large to be cached."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[SentenceToTranslate, tuple[Result, int]] = OrderedDict()
        self._num_bytes = 0

    def get(self, sentence: SentenceToTranslate) -> Result | None:
        """Return the translations of a sentence; None if they are not cached."""
        if sentence not in self._entries:
            return None
        self._entries.move_to_end(sentence)
        return self._entries[sentence][0]

    def put(self, sentence: SentenceToTranslate, result: Result) -> None:
        """Cache the translations of a sentence, if it has some that are not very large."""
        if result.cancelled() or result.exception() is not None:
            return
        size = _ENTRY + 4 * len(sentence.sentence.text)
        for output in result.result():
            numbers = len(output.alignment) + len(output.log_probs)
            size += _TEXT + 4 * len(output.text) + _NUMBERS * numbers + _TOKEN * len(output.tokens)
        is_small = size <= self._max_bytes * _MAX_SHARE
        if sentence in self._entries or sentence.options.attention or not is_small:
            return
        self._entries[sentence] = result, size
        self._num_bytes += size
        while self._num_bytes > self._max_bytes:
            _, (_, freed) = self._entries.popitem(last=False)
            self._num_bytes -= freed


class TranslationService:
    """Runs, whose models are in other processes, and are reloaded when their files change."""

    def __init__(
        self, runs: Sequence[RunToServe], *, workers: int, queue_limit: int, cache_bytes: int
    ) -> None:
        """`queue_limit` is in sentences. Raises UserError if a run cannot be read."""
        self._to_serve = tuple(runs)
        self._num_workers = workers
        self.monitoring = Monitoring()
        self.runs = _read_runs(runs)
        self._scheduler = Scheduler(_TOKENS_PER_BATCH, _SECONDS_TO_GATHER, queue_limit, workers)
        self._cache_bytes = cache_bytes
        self._cache = TranslationCache(cache_bytes)
        # One, as more threads of Python would only compete with the event loop. It is not the event
        # loop's own executor, which the loop would wait for at its end.
        self.long_text_thread = ThreadPoolExecutor(1, "long-texts")
        self._group: WorkerGroup | None = None
        self._stamps = [run.file_stamps() for run in runs]  # at the last attempt to load
        self._must_reload = asyncio.Event()
        self.monitoring.queue.set_function(lambda: self._scheduler.num_waiting)

    @property
    def is_ready(self) -> bool:
        """True while there are workers, each of which has already translated a sentence."""
        return self._group is not None and bool(self._group.workers)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Load the models, and translate while the block runs. Raises UserError."""
        await self._load()
        keeper = asyncio.create_task(self._keep_up_to_date())
        try:
            yield
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            if self._group is not None:
                await self._group.stop()
            self._group = None
            self._scheduler.fail_all(SHUTTING_DOWN)

    def submit(self, sentences: Sequence[SentenceToTranslate]) -> Submission:
        """Queue the sentences that are not cached. Raises RequestError if the queue is full."""
        cached = [self._cache.get(sentence) for sentence in sentences]
        new = [s for s, result in zip(sentences, cached, strict=True) if result is None]
        submission = self._scheduler.submit(new) if new else Submission([], [], self._scheduler)
        self.monitoring.sentences.labels("cache").inc(len(sentences) - len(new))
        self.monitoring.sentences.labels("model").inc(len(new))
        for sentence, result in zip(new, submission.results, strict=True):
            result.add_done_callback(functools.partial(self._cache.put, sentence))
        queued = iter(submission.results)
        submission.results = [result or next(queued) for result in cached]
        return submission

    def kill_workers(self) -> None:
        """Kill the workers."""
        if self._group is not None:
            self._group.kill()

    async def _load(self) -> None:
        """Load the models, let new workers take over, and retire the old ones."""
        self._stamps = [run.file_stamps() for run in self._to_serve]
        runs = await asyncio.to_thread(_read_runs, self._to_serve)
        models = await ModelProcess.start(self._to_serve)
        group = WorkerGroup(
            models, self._scheduler, self.monitoring, self._num_workers, self._must_reload.set
        )
        try:
            await group.first_worker
        except BaseException:
            await group.stop()
            raise
        is_other = [run.languages for run in runs] != [run.languages for run in self.runs]
        refusal = OTHER_LANGUAGES if is_other else ""
        if self._group is not None:
            self._group.retire(refusal)
        if refusal:
            self._scheduler.fail_all(refusal)
        self._group = group
        self.runs = runs
        self._cache = TranslationCache(self._cache_bytes)  # the old models still fill the old one
        self.monitoring.loads.inc()

    async def _keep_up_to_date(self) -> None:
        """Reload the models when their files have changed, or their process has ended."""
        while True:
            with contextlib.suppress(TimeoutError):
                # wait_for of Python 3.11 may lose the cancellation that ends the server.
                async with asyncio.timeout(_SECONDS_BETWEEN_CHECKS):
                    await self._must_reload.wait()
            if not self._must_reload.is_set() and not await self._have_changed():
                continue
            try:
                with shortages_reported():
                    await self._load()
            except (UserError, OSError) as error:
                logger.warning(f"the models were not loaded again: {error}")
                await asyncio.sleep(_SECONDS_BETWEEN_CHECKS)
            else:
                self._must_reload.clear()  # only now: workers that died meanwhile have set it again
                logger.info("loaded the models again")

    async def _have_changed(self) -> bool:
        """Return True if files have changed, and not since the last check."""
        try:
            stamps = [run.file_stamps() for run in self._to_serve]
            if stamps == self._stamps:
                return False
            await asyncio.sleep(_SECONDS_BETWEEN_CHECKS)
            return stamps == [run.file_stamps() for run in self._to_serve]
        except (UserError, OSError):  # a file is being replaced
            return False


def _read_runs(runs: Sequence[RunToServe]) -> list[ServedRun]:
    """Read runs. Raises UserError if that is not possible, or if two have the same languages."""
    served = [ServedRun.read(run) for run in runs]
    for first, second in itertools.combinations(zip(runs, served, strict=True), 2):
        if first[1].languages == second[1].languages:
            raise UserError(
                f"{first[0].run_dir} and {second[0].run_dir} translate the same languages: "
                "serve one of them, or an ensemble of train --ensemble"
            )
    return served
