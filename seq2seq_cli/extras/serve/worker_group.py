"""The workers of one load of the models: they take batches until they are retired."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.serve.messages import BatchResult
from seq2seq_cli.extras.serve.monitoring import Monitoring
from seq2seq_cli.extras.serve.scheduler import Scheduler, Waiting
from seq2seq_cli.extras.serve.workers import ModelProcess, Worker, WorkerDiedError

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_STARTS = 0.5  # of processes that die at once
_SECONDS_BEFORE_RETRY = 0.1  # whatever kills processes may be over then
_SECONDS_WORTH_A_NEW_PROCESS = 0.5  # that a process goes on with what nobody waits for


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
        self._interruptible: set[asyncio.Task[None] | None] = set()  # they hold no batch
        self._is_retired = False
        self._first_worker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._workers: set[Worker] = set()

    @property
    def num_workers(self) -> int:
        return len(self._workers)

    def start(self, count: int) -> None:
        """Start `count` workers, or the only one that a GPU allows."""
        for _ in range(count if self._models.can_fork else 1):
            task = asyncio.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def has_worker(self) -> None:
        """Wait until there is a worker. Raises UserError if there will be none."""
        await self._first_worker

    def retire(self) -> None:
        """Let each worker end with the batch that it has."""
        self._is_retired = True
        for task in self._interruptible:
            if task is not None:
                task.cancel()
        self._models.close()

    async def stop(self) -> None:
        """End all workers, whatever they do."""
        self.retire()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._first_worker.cancel()

    def kill(self) -> None:
        """End all processes at once."""
        for worker in tuple(self._workers):
            worker.kill()
        self._models.close()

    async def _work(self) -> None:
        while not self._is_retired:
            with self._holding_no_batch():
                worker = await self._new_worker()
            if worker is None:
                continue
            self._workers.add(worker)
            try:
                while not self._is_retired and await self._translate_batch(worker):
                    pass
            finally:
                self._workers.discard(worker)
                worker.close()

    async def _new_worker(self) -> Worker | None:
        """Return a worker; None, after a while, if that is not possible."""
        try:
            worker = await self._models.new_worker()
        except WorkerDiedError as error:
            if not self._first_worker.done():
                message = "the process that loads the models has died; was it out of memory?"
                self._first_worker.set_exception(UserError(message))
            logger.warning(f"no new translating process could be made: {error}")
            self._when_unable()
            await asyncio.sleep(_SECONDS_BETWEEN_STARTS)
            return None
        if not self._first_worker.done():
            self._first_worker.set_result(None)
        return worker

    async def _translate_batch(self, worker: Worker) -> bool:
        """Wait for a batch and translate it; return False if the worker is of no use any more."""
        with self._holding_no_batch():
            batch, taken = await self._scheduler.next_batch()
        try:
            result = await self._unless_abandoned(worker.translate(batch, self._time_limit), taken)
        except Exception as error:
            logger.warning(
                f"a translating process has died ({error}): another one takes its place",
                exc_info=not isinstance(error, WorkerDiedError),
            )
            worker.kill()
            self._monitoring.count_death()
            await asyncio.sleep(_SECONDS_BEFORE_RETRY)
            self._scheduler.retry(batch, taken)
            return False
        if result is None:  # it is busy with what nobody waits for
            worker.kill()
            return False
        self._monitoring.count_batch(len(taken), result)
        self._scheduler.finish(taken, result.outputs, result.seconds)
        return True

    async def _unless_abandoned(
        self, work: Coroutine[Any, Any, BatchResult], taken: Sequence[Waiting]
    ) -> BatchResult | None:
        """Return the result; None if nobody waits for any of it, and it takes longer than that."""
        task = asyncio.create_task(work)
        abandoned = asyncio.create_task(_all_done(taken))
        try:
            await asyncio.wait({task, abandoned}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await asyncio.wait({task}, timeout=_SECONDS_WORTH_A_NEW_PROCESS)
            return task.result() if task.done() else None
        finally:
            for each in (task, abandoned):
                each.cancel()
            await asyncio.gather(task, abandoned, return_exceptions=True)

    @contextlib.contextmanager
    def _holding_no_batch(self) -> Iterator[None]:
        """Let `retire` interrupt this task while the block runs."""
        task = asyncio.current_task()
        self._interruptible.add(task)
        try:
            yield
        finally:
            self._interruptible.discard(task)


async def _all_done(taken: Sequence[Waiting]) -> None:
    await asyncio.wait([each.result for each in taken])
