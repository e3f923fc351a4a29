"""Starting processes, and what Ctrl-C and the end of the first process mean to them."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext


def process_context(*imports: str) -> BaseContext:
    """Return the context in which to start processes; SIGINT is blocked in them.

    On Linux they are forks of a server, a process that has made the imports and nothing else. So
    they start within milliseconds and share the memory of the imports. They have the environment
    variables that this process had at its first call, which also decides about the imports, and
    PyTorch's default number of threads.
    """
    resource_tracker.ensure_running()  # which unblocks signals when it starts
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(imports))
    with held_interrupts():
        forkserver.ensure_running()
    # Wait for the imports here, where Ctrl-C raises KeyboardInterrupt.
    process = context.Process(target=os.getpid)
    process.start()
    process.join()
    return context


def single_process_pool(*imports: str) -> ProcessPoolExecutor:
    """Return a pool of one new process, which Ctrl-C interrupts."""
    return ProcessPoolExecutor(1, process_context(*imports), allow_interrupts)


def allow_interrupts() -> None:
    """Unblock Ctrl-C in this process, which `process_context` has started."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Defer Ctrl-C until the block ends; it stays blocked in processes started in the block.

    The main process handles it and ends the others, which could only print a traceback while they
    import PyTorch.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent(status: int) -> None:
    """Wait until the parent process ends, then end this process with the given status.

    Call it in a thread: it also ends threads that are blocked.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "started by multiprocessing"
    parent.join()
    os._exit(status)
