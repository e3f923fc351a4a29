"""TranslationService: sentences to translations, whatever happens to processes and model files."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.serve.monitoring import Monitoring
from seq2seq_cli.extras.serve.scheduler import Outputs, Scheduler, SentenceToTranslate, Submission
from seq2seq_cli.extras.serve.served_run import RunToServe, ServedRun, file_stamps
from seq2seq_cli.extras.serve.translation_cache import TranslationCache
from seq2seq_cli.extras.serve.turns import long_text_thread
from seq2seq_cli.extras.serve.worker_group import WorkerGroup
from seq2seq_cli.extras.serve.workers import ModelProcess

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 1.0  # at the files of the runs


@dataclass(frozen=True)
class ServiceSettings:
    """How many processes translate, and when they are given what waits."""

    workers: int
    tokens_per_batch: int = 1_024
    seconds_to_gather: float = 0.002  # so that sentences that arrive together are one batch
    queue_limit: int = 4_096  # sentences
    cache_bytes: int = 64 << 20
    batch_time_limit: float = 120.0  # seconds, after which a process is taken to hang


class TranslationService:
    """Runs, whose models are in other processes, and are loaded again when their files change."""

    def __init__(
        self, runs: Sequence[RunToServe], settings: ServiceSettings, monitoring: Monitoring
    ) -> None:
        """Raises UserError if a run cannot be read."""
        self._to_serve = tuple(runs)
        self._settings = settings
        self._monitoring = monitoring
        self.runs = [ServedRun.read(run) for run in runs]
        self.version = 0  # how many times the models have been loaded
        self._scheduler = Scheduler(
            settings.tokens_per_batch,
            settings.seconds_to_gather,
            settings.queue_limit,
            settings.workers,
        )
        self._cache = TranslationCache(settings.cache_bytes)
        self.long_text_thread = long_text_thread()
        self._group: WorkerGroup | None = None
        self._stamps = [file_stamps(run) for run in runs]  # of the last attempt to load
        self._must_reload = asyncio.Event()
        monitoring.watch_queue(lambda: self._scheduler.num_waiting)

    @property
    def is_ready(self) -> bool:
        """True while there are processes that translate; each has already translated a sentence."""
        return self._group is not None and self._group.num_workers > 0

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
            self._scheduler.fail_all("the server is shutting down")

    def submit(self, sentences: Sequence[SentenceToTranslate]) -> "PendingTranslations":
        """Accept the sentences of a request. Raises OverloadedError if the queue is full."""
        found = [self._cache.get(sentence) for sentence in sentences]
        new = [s for s, outputs in zip(sentences, found, strict=True) if outputs is None]
        submission = self._scheduler.submit(new) if new else None
        self._monitoring.count_sentences(len(sentences) - len(new), len(new))
        version = self.version

        def keep(sentence: SentenceToTranslate, outputs: Outputs) -> None:
            if version == self.version:
                self._cache.put(sentence, outputs)

        return PendingTranslations(sentences, found, submission, keep)

    def kill_workers(self) -> None:
        """End the processes that translate, whatever they do."""
        if self._group is not None:
            self._group.kill()

    async def _load(self) -> None:
        """Load the models, let new workers take over, and retire those with the old models."""
        self._stamps = [file_stamps(run) for run in self._to_serve]
        runs = [await asyncio.to_thread(ServedRun.read, run) for run in self._to_serve]
        models = await ModelProcess.start(self._to_serve)
        group = WorkerGroup(
            models,
            self._scheduler,
            self._monitoring,
            self._settings.batch_time_limit,
            self._must_reload.set,
        )
        group.start(self._settings.workers)
        try:
            await group.has_worker()
        except BaseException:
            await group.stop()
            raise
        if self._group is not None:
            self._group.retire()
        self._group = group
        self.runs = runs
        self.version += 1
        self._cache.clear()
        self._monitoring.count_load()

    async def _keep_up_to_date(self) -> None:
        """Load the models again when their files have changed, or their process has ended."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SECONDS_BETWEEN_LOOKS):
                    await self._must_reload.wait()
            if not self._must_reload.is_set() and not await self._have_changed():
                continue
            self._must_reload.clear()
            try:
                await self._load()
            except (UserError, OSError) as error:
                logger.warning(f"the models were not loaded again: {error}")
                await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
            else:
                logger.info("loaded the models again")

    async def _have_changed(self) -> bool:
        """Return True if files have changed, and have then been left alone for a while."""
        try:
            stamps = [file_stamps(run) for run in self._to_serve]
            if stamps == self._stamps:
                return False
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
            return stamps == [file_stamps(run) for run in self._to_serve]
        except (UserError, OSError):  # a file is being replaced
            return False


class PendingTranslations:
    """The translations of a request's sentences, which come in order; `close` gives them up."""

    def __init__(
        self,
        sentences: Sequence[SentenceToTranslate],
        cached: Sequence[Outputs | None],
        submission: Submission | None,
        keep: Callable[[SentenceToTranslate, Outputs], None],
    ) -> None:
        """`submission` has the sentences that are not cached; `keep` takes their translations."""
        self._submission = submission
        self._keep = keep
        self._sentences = iter(zip(sentences, cached, strict=True))
        self._results = iter(submission.results if submission is not None else ())

    async def next(self) -> Outputs:
        """Return the n best translations of the next sentence.

        Raises UntranslatableError or TranslationLostError if there are none.
        """
        sentence, outputs = next(self._sentences)
        if outputs is None:
            outputs = await next(self._results)
            self._keep(sentence, outputs)
        return outputs

    def close(self) -> None:
        """Let the sentences that nobody has asked for leave the queue."""
        if self._submission is not None:
            self._submission.withdraw()
