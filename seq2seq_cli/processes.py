"""Starting processes, and what signals and the end of the first process mean to them."""

import errno
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

from seq2seq_cli.errors import Interrupted, Terminated, UserError, no_more_processes

Item = TypeVar("Item")
Result = TypeVar("Result")

_ITEMS_AHEAD = 2  # for each process
_MOST_BYTES = 75  # of a temporary folder: a socket in it has 32 more, and 107 at most
_UNUSABLE = {errno.ENOENT, errno.EROFS, errno.EACCES, errno.ENOSPC}  # /dev/shm
_BLOCKS_SIGNALS = hasattr(signal, "pthread_sigmask")  # Windows does not


_Handler = Callable[[int, FrameType | None], Any] | signal.Handlers
_SECONDS_TO_RETRY = 0.05
_postponed: set[int] = set()  # signals that came in an import


class ProcessDiedError(UserError):
    """A process has ended without a result."""


def process_context(*imports: str, **environment: str) -> BaseContext:
    """Return the context in which to start several processes that make the same imports.

    On Linux it is `forkserver`: they are forks of a server, which has made the imports and nothing
    else, and whose memory they share. Ctrl-C and SIGTERM are blocked in them until they call
    `unblock_signals`. The first call decides about the imports and the environment of the server:
    PYTHONPATH is `sys.path`, and `environment` has defaults. Elsewhere it is `spawn`.
    """
    with _environment(**environment):
        if sys.platform != "linux":
            return multiprocessing.get_context("spawn")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(imports))
        with held_signals(signal.SIGINT, signal.SIGTERM), _short_temporary_folder():
            forkserver.ensure_running()
    # Wait for the imports here, where Ctrl-C raises KeyboardInterrupt.
    process = context.Process(target=os.getpid)
    with fork_server_watched():
        process.start()
    process.join()
    return context


@contextmanager
def fork_server_watched() -> Iterator[None]:
    """Raise UserError if the fork server dies where a process is started: it could not fork."""
    try:
        yield
    except EOFError:
        raise no_more_processes() from None


@contextmanager
def _short_temporary_folder() -> Iterator[None]:
    """Use `/tmp` in the block if the path of a socket in `$TMPDIR` would be too long."""
    given = tempfile.gettempdir()
    if len(os.fsencode(given)) > _MOST_BYTES:
        tempfile.tempdir = "/tmp"
    try:
        yield
    finally:
        tempfile.tempdir = given


def call_in_new_process(work: Callable[[], Result], *imports: str) -> Result:
    """Call `work` in a new process, which Ctrl-C interrupts and which ends with this one.

    It is a new interpreter or, for several calls, one of a `process_context` with these imports.
    Returns and raises what `work` does, or raises ProcessDiedError.
    """
    context = process_context(*imports) if imports else multiprocessing.get_context("spawn")
    with _environment():
        pool = _pool(1, context)
        future = _submit(pool, _call, work)
    with pool, _death_reported():
        try:
            return future.result()
        except Interrupted:  # by SIGTERM, which may reach this process alone
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def call_in_process(context: BaseContext, work: Callable[[], Result]) -> Result:
    """Call `work` in a process of a `process_context`, in which signals are blocked."""
    with _pool(1, context) as pool, _death_reported():
        return _submit(pool, work).result()


def _pool(num_processes: int, context: BaseContext, *on_start: Any) -> ProcessPoolExecutor:
    try:
        return ProcessPoolExecutor(num_processes, context, *on_start)
    except OSError as error:
        if error.errno not in _UNUSABLE:
            raise
        raise UserError(
            f"processes need semaphores in /dev/shm ({error.strerror}): make this folder writable, "
            "or use one process, where the command has --processes 1"
        ) from None


def _submit(
    pool: ProcessPoolExecutor, work: Callable[..., Result], *arguments: object
) -> Future[Result]:
    """Give work to a pool, which starts processes for it, and a thread that ends them.

    Without this thread, the pool can end if it is forgotten and the processes are killed.
    """
    try:
        with held_signals(signal.SIGINT, signal.SIGTERM), fork_server_watched():
            return pool.submit(work, *arguments)
    except RuntimeError as error:
        if not isinstance(error, BrokenProcessPool):
            pool._executor_manager_thread = None  # type: ignore[assignment]
            for process in pool._processes.values():
                process.kill()
        raise


def _call(work: Callable[[], Result]) -> Result:
    end_with_parent(1)
    unblock_signals()
    return work()


@contextmanager
def ordered_pool(
    num_processes: int, make: Callable[..., Callable[[Item], Result]], *arguments: object
) -> Iterator[Callable[[Iterable[Item | None]], Iterator[Result]]]:
    """Yield a function like `map` of `make(*arguments)`, which each of several processes makes.

    The processes, which have imported the module of `make`, end with the block. Some items are
    taken ahead; None in place of an item only asks for what is finished. Raises ProcessDiedError.
    """
    pool = _pool(num_processes, process_context(make.__module__), _start_worker, (make, arguments))

    def results_of(items: Iterable[Item | None]) -> Iterator[Result]:
        ahead: deque[Future[Result]] = deque()
        with _death_reported():
            for item in items:
                if item is not None:
                    ahead.append(_submit(pool, _work_on, item))
                while ahead and (ahead[0].done() or len(ahead) >= _ITEMS_AHEAD * num_processes):
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    with pool:
        try:
            yield results_of
        finally:
            pool.shutdown(cancel_futures=True)  # if exit came first, the processes would never end


# Set in a process of `ordered_pool`.
_worker: Callable[[Any], Any] | None = None


def _start_worker(make: Callable[..., Callable[[Any], Any]], arguments: tuple[object, ...]) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process handles Ctrl-C
    unblock_signals()
    end_with_parent(1)
    _worker = make(*arguments)


def _work_on(item: Any) -> Any:
    assert _worker is not None, "the pool has started this process"
    return _worker(item)


@contextmanager
def _death_reported() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise ProcessDiedError(
            "a child process of this command has died; was it out of memory?"
        ) from None


def unblock_signals() -> None:
    """Unblock Ctrl-C and SIGTERM in a process that was started while they were held."""
    if _BLOCKS_SIGNALS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


@contextmanager
def held_signals(*numbers: signal.Signals) -> Iterator[None]:
    """Defer these signals until the block ends; they stay blocked in processes started in it.

    They would interrupt the import of PyTorch with a traceback, or end a server that others need.
    """
    if not _BLOCKS_SIGNALS:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(number: int, frame: FrameType | None) -> None:
    """Raise the end; soon, if this is in an import: PyTorch's and pydantic's lose the exception."""
    while frame is not None and hasattr(signal, "setitimer"):
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _postponed.add(number)
            signal.signal(signal.SIGALRM, lambda _, later: _end(number, later))
            signal.setitimer(signal.ITIMER_REAL, _SECONDS_TO_RETRY)
            return
        frame = frame.f_back
    _postponed.discard(number)
    raise _end_by(number)


def _end_by(number: int) -> BaseException:
    if number == signal.SIGINT:
        return KeyboardInterrupt()
    return Terminated("terminated", 128 + number)


@contextmanager
def ending_at_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that what it cleans up is cleaned up.

    Nothing changes in a thread, nor where SIGTERM is handled already, as in training.
    """
    with _handled(signal.SIGTERM, _end, before=signal.SIG_DFL):
        yield


@contextmanager
def ending_at_signals() -> Iterator[None]:
    """As `ending_at_sigterm`; neither SIGTERM nor Ctrl-C is lost in an import."""
    with ending_at_sigterm(), _handled(signal.SIGINT, _end, before=signal.default_int_handler):
        yield


@contextmanager
def killed_at_sigterm() -> Iterator[None]:
    """Let SIGTERM kill the process in the block, whose C code may take minutes."""
    with _handled(signal.SIGTERM, signal.SIG_DFL, before=_end):
        yield


@contextmanager
def _handled(number: signal.Signals, handler: _Handler, *, before: _Handler) -> Iterator[None]:
    """Set a handler while the block runs, in the main thread, if `before` is the handler there."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(number) != before:
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
        if number in _postponed:
            _postponed.remove(number)
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise _end_by(number)


@contextmanager
def _environment(**further: str) -> Iterator[None]:
    """Let interpreters started in the block import from where this one does.

    Python passes `sys.path` only after their first imports (CPython issue 117378), which would find
    files of the working folder first. They also get the `further` variables that are not set here.
    """
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    values = {name: value for name, value in further.items() if name not in os.environ}
    values |= {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        if _BLOCKS_SIGNALS:  # start it now, as it unblocks signals
            resource_tracker.ensure_running()
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)


def has_terminal() -> bool:
    """Return True if a terminal sends Ctrl-C to this process and the others of its group."""
    try:
        with Path("/dev/tty").open("rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except (OSError, AttributeError):  # AttributeError: Windows
        return False


def end_with_parent(status: int) -> None:
    """End this process with this status when its parent ends, also threads that are blocked."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "started by multiprocessing"

    def wait() -> NoReturn:
        parent.join()
        os._exit(status)

    threading.Thread(target=wait, daemon=True).start()
