"""Data-parallel training on one machine: starts its processes with PyTorch's elastic launcher.

It is what `torchrun` uses: each process runs the same function and finds its rank in its
environment (`distributed.py: process_group`). The process that starts the others does not train; it
waits for them, passes SIGTERM on, and reports why one of them failed.
"""

import logging
import multiprocessing
import os
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import TypeVar, cast

import torch

from seq2seq_cli.config.schema import Config
from seq2seq_cli.console import is_logging_to_stderr, log_to_stderr
from seq2seq_cli.errors import Interrupted, UserError, of_system
from seq2seq_cli.files import read_json, write_json
from seq2seq_cli.machine import available_memory, num_cores
from seq2seq_cli.processes import (
    end_with_parent,
    has_terminal,
    held_signals,
    process_context,
    unblock_signals,
)
from seq2seq_cli.training.parallel.distributed import (
    RUN_ID,
    WHAT_NOW,
    choose_num_processes,
    is_started_by_launcher,
)

_LOGGERS = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing")
_PARENT_IS_GONE = 3  # exit status
# What training imports in any case: PyTorch's optimizers import torch._dynamo when they start.
TRAINING_IMPORTS = ("seq2seq_cli.training.loop", "torch._dynamo")

Result = TypeVar("Result")


def processes_to_start(config: Config) -> int:
    """Return how many processes to start here; 1 means that this process trains alone.

    A process that `torchrun` or `launch` started, or whose process group exists, starts none.
    """
    if is_started_by_launcher():
        return 1
    return choose_num_processes(
        config, min(num_cores(), torch.get_num_threads()), available_memory()
    )


def launch(work: Callable[[], Result], num_processes: int) -> Result:
    """Call `work` in new processes of this machine; return what it returns in the main one.

    Raises what `work` raised, where that is a UserError or Interrupted; UserError for an error of
    the system, and with the signal or the status if a process died; RuntimeError with the traceback
    of any other exception.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    num_threads = max(1, torch.get_num_threads() // num_processes)
    start_method = process_context(*TRAINING_IMPORTS).get_start_method()
    with (
        tempfile.TemporaryDirectory(prefix="seq2seq-launch-") as folder,
        _forwarded_signals(Path(folder)) as received,
        held_signals(signal.SIGINT) if start_method == "spawn" else nullcontext(),
        _silent_loggers(),
    ):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=num_processes,
            run_id=RUN_ID,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=0,
            start_method=start_method,
            signals_to_handle="SIGUSR2",  # SIGTERM and Ctrl-C are not the launcher's business
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        try:
            run = elastic_launch(config, _in_worker)
            results = run(work, Path(folder), num_threads, is_logging_to_stderr())
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            raise _reason(Path(folder), rank, failure.exitcode, received.number) from None
        return cast(Result, results[0])


class _Received:
    """The signal that was passed on, 0 for none, and the handlers that were there before."""

    def __init__(self) -> None:
        self.number = 0
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
        self.handlers = {number: signal.getsignal(number) for number in numbers}


@contextmanager
def _forwarded_signals(folder: Path) -> Iterator[_Received]:
    """Pass SIGTERM on to the processes while the block runs, and SIGINT where no terminal does.

    A terminal sends Ctrl-C to all processes. One that does not exist yet finds the signal in
    `folder`.
    """
    received = _Received()

    def forward(number: int, frame: FrameType | None) -> None:
        with suppress(OSError):  # a full disk
            _signal_file(folder, number).touch()
        if number == signal.SIGTERM:
            received.number = number
        if number == signal.SIGTERM or not has_terminal():
            for process in multiprocessing.active_children():
                assert process.pid is not None, "it was started"
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    is_main_thread = threading.current_thread() is threading.main_thread()
    if is_main_thread:
        if received.handlers[signal.SIGINT] != signal.SIG_IGN:
            signal.signal(signal.SIGINT, forward)
        signal.signal(signal.SIGTERM, forward)
    try:
        yield received
    finally:
        if is_main_thread:
            for number, handler in received.handlers.items():
                signal.signal(number, handler)


@contextmanager
def _silent_loggers() -> Iterator[None]:
    """Silence PyTorch's launcher while the block runs: `launch` reports what matters."""
    loggers = [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if name.startswith(_LOGGERS) and isinstance(logger, logging.Logger)
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _in_worker(
    work: Callable[[], Result], folder: Path, num_threads: int, logs: bool
) -> Result | None:
    """Run in each new process: call `work`, and leave in `folder` why it failed, if it did."""
    threading.Thread(target=end_with_parent, args=(_PARENT_IS_GONE,), daemon=True).start()
    torch.set_num_threads(num_threads)
    if Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one machine needs no other network
    if logs:
        log_to_stderr()
    status = 0
    try:
        unblock_signals()
        for number in (signal.SIGINT, signal.SIGTERM):
            if _signal_file(folder, number).exists():
                raise Interrupted("interrupted", 128 + number)
        result = work()
        return result if os.environ["RANK"] == "0" else None
    except KeyboardInterrupt:
        kind, reason, status = "Interrupted", "interrupted", 130
    except Interrupted as stop:
        kind, reason, status = "Interrupted", str(stop), stop.exit_status
    except UserError as error:
        kind, reason = "UserError", str(error)
    except OSError as error:
        kind, reason = "UserError", of_system(error)
    except Exception:
        kind, reason = "RuntimeError", traceback.format_exc()
    reason_file = _reason_file(folder, int(os.environ["RANK"]))
    write_json(reason_file, {"kind": kind, "reason": reason, "status": status})
    raise SystemExit(1)


def _signal_file(folder: Path, number: int) -> Path:
    return folder / f"signal-{number}"


def _reason_file(folder: Path, rank: int) -> Path:
    return folder / f"reason-{rank}.json"


def _reason(folder: Path, rank: int, status: int, received: int) -> Exception:
    """Return the exception that says why the processes ended, of which that of `rank` was first.

    `received`: the number of the signal that was passed on to them; 0: none.
    """

    def read(rank: int) -> Exception | None:
        if not (path := _reason_file(folder, rank)).exists():
            return None
        content = read_json(path)
        if content["kind"] == "Interrupted":
            return Interrupted(content["reason"], content["status"])
        return (UserError if content["kind"] == "UserError" else RuntimeError)(content["reason"])

    reason, of_main = read(rank), read(0)
    if isinstance(of_main, Interrupted):
        return of_main
    if isinstance(reason, UserError) and rank > 0:
        return UserError(f"process {rank}: {reason}")
    if isinstance(reason, RuntimeError):
        return RuntimeError(f"process {rank} failed:\n{reason}")
    if reason is not None:
        return reason
    if received:
        return Interrupted("interrupted", 128 + received)
    if status < 0:
        memory = " (out of memory?)" if status == -signal.SIGKILL else ""
        return UserError(f"process {rank} was killed by signal {-status}{memory}; {WHAT_NOW}")
    return UserError(f"process {rank} failed with status {status}; {WHAT_NOW}")
