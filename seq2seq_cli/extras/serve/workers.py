"""The processes that translate, as the server's event loop sees them."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from typing import Any

from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.serve import messages
from seq2seq_cli.extras.serve.messages import Batch, BatchResult
from seq2seq_cli.extras.serve.served_run import RunToServe
from seq2seq_cli.processes import process_context


class WorkerDiedError(Exception):
    """A process has ended, or has not answered in time."""


class Worker:
    """A process that translates one batch after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.pid = 0

    @classmethod
    async def connect(cls, connection: socket.socket) -> "Worker":
        """Wait until the process at the other end is there. Raises WorkerDiedError if it dies."""
        worker = cls(*await asyncio.open_unix_connection(sock=connection))
        try:
            worker.pid = (await worker._answer())["pid"]
        except BaseException:
            worker.close()
            raise
        return worker

    async def translate(self, batch: Batch, time_limit: float) -> BatchResult:
        """Return the translations.

        Raises WorkerDiedError if the process ends, and if it takes longer than `time_limit`
        seconds, which ends it.
        """
        try:
            async with asyncio.timeout(time_limit):
                self._writer.write(messages.packed(batch))
                return messages.result_of(await self._answer())
        except TimeoutError:
            self.kill()
            raise WorkerDiedError(f"it had not answered after {time_limit:g} s") from None

    async def _answer(self) -> Any:
        try:
            header = await self._reader.readexactly(messages.HEADER_BYTES)
            return messages.unpacked(await self._reader.readexactly(messages.length_of(header)))
        except (asyncio.IncompleteReadError, OSError) as error:
            raise WorkerDiedError(str(error)) from None

    def kill(self) -> None:
        """End the process, whatever it does."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let the process end."""
        self._writer.close()


class ModelProcess:
    """The process that has loaded the models, and forks workers."""

    def __init__(self, control: socket.socket, *, can_fork: bool) -> None:
        self._control = control
        self.can_fork = can_fork  # else it becomes the only worker itself

    @classmethod
    async def start(cls, runs: Sequence[RunToServe]) -> "ModelProcess":
        """Load the models in a new process. Raises UserError if that is not possible."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            await asyncio.to_thread(_start_process, tuple(runs), theirs)
            message = await _first_message(ours)
            if message is None:
                raise UserError("the process that loads the models has died; was it out of memory?")
            if "error" in message:
                raise UserError(message["error"])
        except BaseException:
            ours.close()
            raise
        return cls(ours, can_fork=message["can_fork"])

    async def new_worker(self) -> Worker:
        """Return a new worker. Raises WorkerDiedError if there can be none."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:  # too many files are open
            raise WorkerDiedError(str(error)) from None
        try:
            with theirs:
                socket.send_fds(self._control, [b"w"], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise WorkerDiedError(str(error)) from None
        return await Worker.connect(ours)

    def close(self) -> None:
        """Let the process end; its workers go on."""
        self._control.close()


def _start_process(runs: Sequence[RunToServe], control: socket.socket) -> None:
    with control:  # here, as this goes on if the server ends meanwhile
        context: Any = process_context("seq2seq_cli.extras.serve.model_process")
        context.Process(target=_load_models, args=(runs, control)).start()


def _load_models(runs: Sequence[RunToServe], control: socket.socket) -> None:
    from seq2seq_cli.extras.serve.model_process import load_models  # torch: in that process only

    load_models(runs, control)


async def _first_message(control: socket.socket) -> Any:
    """Return what the process at the other end says first; None if it ends without a word."""
    loop, data = asyncio.get_running_loop(), b""
    while part := await loop.sock_recv(control, 65_536):
        data += part
        start = messages.HEADER_BYTES
        if len(data) >= start and len(data) >= start + messages.length_of(data[:start]):
            return messages.unpacked(data[start:])
    return None
