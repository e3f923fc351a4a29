"""The workers of one load of the models: they take batches until they are retired."""

import asyncio
import logging
from collections.abc import Callable

from seq2seq_cli.serving.monitoring import Monitoring
from seq2seq_cli.serving.scheduler import Scheduler
from seq2seq_cli.serving.workers import ModelProcess, Worker, WorkerDiedError

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_STARTS = 0.5  # of processes that die at once
_SECONDS_BEFORE_RETRY = 0.1  # whatever kills processes may be over then


class WorkerGroup:
    """Tasks with a worker each, which give it a batch, wait, and replace it if it dies."""

    def __init__(
        self,
        models: ModelProcess,
        scheduler: Scheduler,
        monitoring: Monitoring,
        batch_time_limit: float,
        when_unable: Callable[[], None],
    ) -> None:
        """`when_unable` is called when no worker can be made any more."""
        self._models = models
        self._scheduler = scheduler
        self._monitoring = monitoring
        self._time_limit = batch_time_limit
        self._when_unable = when_unable
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None] | None] = set()  # for a batch
        self._is_retired = False

    def start(self, count: int) -> None:
        """Start `count` workers, or the only one that a GPU allows."""
        for _ in range(count if self._models.can_fork else 1):
            task = asyncio.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def retire(self) -> None:
        """Let each worker end with the batch that it has."""
        self._is_retired = True
        for task in self._waiting:
            if task is not None:
                task.cancel()
        self._models.close()

    async def stop(self) -> None:
        """End all workers, whatever they do."""
        self.retire()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        worker: Worker | None = None
        try:
            while not self._is_retired:
                worker = worker or await self._new_worker()
                if worker is not None and not await self._translate_batch(worker):
                    worker = None
        finally:
            if worker is not None:
                worker.close()

    async def _new_worker(self) -> Worker | None:
        try:
            return await self._models.new_worker()
        except WorkerDiedError:
            self._when_unable()
            await self._wait(_SECONDS_BETWEEN_STARTS)
            return None

    async def _translate_batch(self, worker: Worker) -> bool:
        """Wait for a batch and translate it; return False if the worker has died."""
        task = asyncio.current_task()
        self._waiting.add(task)
        try:
            batch, taken = await self._scheduler.next_batch()
        finally:
            self._waiting.discard(task)
        try:
            result = await worker.translate(batch, self._time_limit)
        except WorkerDiedError as error:
            reason = f" ({error})" if str(error) else ""
            logger.warning(f"a translating process has died{reason}: another one takes its place")
            self._monitoring.count_death()
            await asyncio.sleep(_SECONDS_BEFORE_RETRY)
            self._scheduler.retry(batch, taken)
            return False
        self._monitoring.count_batch(len(taken), result)
        self._scheduler.finish(taken, result.outputs, result.seconds)
        return True

    async def _wait(self, seconds: float) -> None:
        task = asyncio.current_task()
        self._waiting.add(task)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._waiting.discard(task)
