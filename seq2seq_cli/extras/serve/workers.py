"""The processes with the models, as the server's event loop sees them."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.serve.messages import WITH_PYTORCH, Batch, BatchResult, packed
from seq2seq_cli.extras.serve.monitoring import Monitoring
from seq2seq_cli.extras.serve.scheduler import Scheduler, Waiting, fail
from seq2seq_cli.extras.serve.served_run import RunToServe
from seq2seq_cli.processes import fork_server_watched, process_context

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_STARTS = 0.5  # of workers that die at once
_SECONDS_BEFORE_RETRY = 0.1  # the cause of a death may be over then
_SECONDS_BEFORE_KILL = 0.5  # of a worker whose batch has been canceled
_BATCH_SECONDS = 120.0  # after which a process is considered to hang
_LONGEST_MESSAGE = 1 << 30  # bytes


class WorkerDiedError(Exception):
    """A process has ended, or has not answered in time."""


def _models_died() -> UserError:
    return UserError(
        "the process that loads the models has died; was it out of memory, or at a limit of "
        "processes?"
    )


@dataclass(eq=False)
class Worker:
    """A process that translates one batch after the other; closing `writer` ends it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    pid: int

    async def translate(self, batch: Batch, answer: Awaitable[Any]) -> BatchResult:
        """Return the translations. Raises WorkerDiedError if the process ends or hangs."""
        try:
            async with asyncio.timeout(_BATCH_SECONDS):
                self.writer.write(packed(batch))
                return BatchResult.from_json(await answer)
        except TimeoutError:
            self.kill()
            raise WorkerDiedError(f"it had not answered after {_BATCH_SECONDS:g} s") from None

    async def answer(self) -> Any:
        """Wait for a message. Raises WorkerDiedError if the process ends."""
        try:
            return json.loads(await self.reader.readuntil())
        except (asyncio.IncompleteReadError, OSError):
            raise WorkerDiedError("its process has ended") from None

    def kill(self) -> None:
        """Kill the process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True)
class ModelProcess:
    """The process that loads the models and forks workers; closing `control` ends it, not them."""

    control: socket.socket
    can_fork: bool  # otherwise it becomes the only worker itself
    pid: int
    seconds_to_start: float = 120.0  # a worker; after that the process is considered to hang

    @classmethod
    async def start(cls, runs: Sequence[RunToServe]) -> "ModelProcess":
        """Load the models in a new process. Raises UserError if that is not possible."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            await asyncio.to_thread(_start_process, tuple(runs), theirs)
            loop, data = asyncio.get_running_loop(), b""
            while not data.endswith(b"\n"):
                part = await loop.sock_recv(ours, 65_536)
                if not part:
                    raise _models_died()
                data += part
            message = json.loads(data)
            if "error" in message:
                raise UserError(message["error"])
        except BaseException:
            ours.close()
            raise
        return cls(ours, message["can_fork"], message["pid"])

    async def new_worker(self, *, with_pytorch: bool = False) -> Worker:
        """Return a new worker. Raises WorkerDiedError if there can be none."""
        request = WITH_PYTORCH if with_pytorch else b"w"
        ours: socket.socket | None = None
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                socket.send_fds(self.control, [request], [theirs.fileno()])
        except OSError as error:  # also if too many files are open
            if ours is not None:
                ours.close()
            raise WorkerDiedError(str(error)) from None
        streams = await asyncio.open_unix_connection(sock=ours, limit=_LONGEST_MESSAGE)
        worker = Worker(*streams, self.pid)
        try:
            async with asyncio.timeout(self.seconds_to_start):
                worker.pid = (await worker.answer())["pid"]
        except TimeoutError:
            worker.writer.close()
            worker.kill()  # one that hangs does not notice its end
            raise WorkerDiedError("the process with the models does not answer") from None
        except BaseException:
            worker.writer.close()
            raise
        return worker


def _start_process(runs: Sequence[RunToServe], control: socket.socket) -> None:
    # `control` here, as this goes on if the server ends meanwhile.
    with control, fork_server_watched():
        context: Any = process_context("seq2seq_cli.extras.serve.model_process")
        context.Process(target=_load_models, args=(runs, control)).start()


def _load_models(runs: Sequence[RunToServe], control: socket.socket) -> None:
    from seq2seq_cli.extras.serve.model_process import load_models  # torch: in that process only

    load_models(runs, control)


class WorkerGroup:
    """Tasks with one worker each: they give it batches, and replace it if it dies."""

    def __init__(
        self,
        models: ModelProcess,
        scheduler: Scheduler,
        monitoring: Monitoring,
        count: int,
        when_unable: Callable[[], None],
    ) -> None:
        """Start `count` workers, or the only one that a GPU allows.

        `when_unable` is called when no more workers can be started.
        """
        self._models = models
        self._scheduler = scheduler
        self._monitoring = monitoring
        self._when_unable = when_unable
        self._busy: set[asyncio.Task[Any] | None] = set()  # tasks with a batch
        self._is_retired, self._refusal = False, ""
        self._needs_pytorch = False  # before a fork, as one was killed that may have imported it
        # Done when there is a worker; raises UserError if there will be none.
        self.first_worker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.workers: set[Worker] = set()
        scheduler.workers = count if models.can_fork else 1
        self._tasks = [asyncio.create_task(self._work()) for _ in range(scheduler.workers)]

    def retire(self, refusal: str = "") -> None:
        """Let each worker finish its batch and end; what it does not finish fails if refused."""
        self._is_retired, self._refusal = True, refusal
        for task in self._tasks:
            if task not in self._busy:
                task.cancel()
        self._models.control.close()

    async def stop(self) -> None:
        """End all workers, even in the middle of a batch."""
        self.retire()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.first_worker.cancel()

    def kill(self) -> None:
        """End all processes at once."""
        for worker in tuple(self.workers):
            worker.kill()
        self._models.control.close()

    async def _work(self) -> None:
        """Start a worker and give it batches; replace it when it dies."""
        while not self._is_retired:
            try:
                worker = await self._models.new_worker(with_pytorch=self._needs_pytorch)
            except WorkerDiedError as error:
                if not self.first_worker.done():
                    self.first_worker.set_exception(_models_died())
                logger.warning(f"cannot start a worker: {error}")
                self._when_unable()
                await asyncio.sleep(_SECONDS_BETWEEN_STARTS)
                continue
            if not self.first_worker.done():
                self.first_worker.set_result(None)
            self.workers.add(worker)
            try:
                while not self._is_retired and await self._translate_batch(worker):
                    pass
            finally:
                self.workers.discard(worker)
                worker.writer.close()

    async def _translate_batch(self, worker: Worker) -> bool:
        """Wait for a batch and translate it; return False if the worker must be replaced."""
        answer = asyncio.create_task(worker.answer())  # fails when an idle worker dies, too
        tasks: list[asyncio.Task[Any]] = [answer]
        taken: list[Waiting] = []
        try:
            batch, taken = await self._next_batch(answer)
            self._busy.add(asyncio.current_task())
            work = asyncio.create_task(worker.translate(batch, answer))
            canceled = asyncio.create_task(asyncio.wait([each.result for each in taken]))
            tasks += [work, canceled]
            await asyncio.wait({work, canceled}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and self._models.can_fork:
                # All of its requests are canceled. On a GPU nothing could replace the worker.
                await asyncio.wait({work}, timeout=_SECONDS_BEFORE_KILL)
                if not work.done():
                    worker.kill()
                    self._needs_pytorch |= batch.options.with_constraints
                    return False
            result = await work
        except Exception as error:
            logger.warning(
                f"a worker died ({error}); starting another",
                exc_info=not isinstance(error, WorkerDiedError),
            )
            worker.kill()
            self._monitoring.deaths.inc()
            await asyncio.sleep(_SECONDS_BEFORE_RETRY)
            if taken:
                self._give_back(batch, taken, self._scheduler.retry)
            return False
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._busy.discard(asyncio.current_task())
        self._monitoring.batch_sentences.observe(len(taken))
        self._monitoring.batch_seconds.observe(result.seconds)
        self._monitoring.tokens.inc(result.num_tokens)
        self._monitoring.at_limit.inc(result.at_length_limit)
        self._scheduler.finish(taken, result.outputs, result.seconds)
        return True

    async def _next_batch(self, answer: asyncio.Task[Any]) -> tuple[Batch, list[Waiting]]:
        """Wait for a batch. Raises WorkerDiedError if the worker dies while it is idle."""
        batch = asyncio.create_task(self._scheduler.next_batch())
        try:
            await asyncio.wait({batch, answer}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                answer.result()
        except BaseException:  # or this task is canceled
            if not batch.cancel():
                self._give_back(*batch.result(), self._scheduler.put_back)
            raise
        return batch.result()

    def _give_back(
        self, batch: Batch, taken: list[Waiting], queue: Callable[[Batch, list[Waiting]], None]
    ) -> None:
        if self._refusal:
            fail(taken, self._refusal)
        else:
            queue(batch, taken)
