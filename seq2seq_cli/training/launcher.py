"""Data-parallel training on one machine: starts its processes with PyTorch's elastic launcher.

It is what `torchrun` uses: each process runs the same function and finds its rank in its
environment (`distributed.py: process_group`). The process that starts the others does not train; it
waits for them, passes Ctrl-C and SIGTERM on, and reports why one of them failed.
"""

import json
import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from seq2seq_cli.config.schema import Config
from seq2seq_cli.console import is_logging_to_stderr, log_to_stderr
from seq2seq_cli.errors import Interrupted, UserError
from seq2seq_cli.machine import available_memory, num_cores
from seq2seq_cli.training.distributed import WHAT_NOW, choose_num_processes, is_started_by_launcher

_SECONDS_TO_SAVE = 300  # after Ctrl-C or SIGTERM, before processes are killed

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

    Raises UserError if one of them failed, with its own reason or the signal that killed it, and
    Interrupted if they saved and stopped.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in ("torch.distributed.elastic", "torch.multiprocessing"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # errors are reported below
    with (
        tempfile.TemporaryDirectory(prefix="seq2seq-launch-") as folder,
        _environment(num_processes),
        _signal_handlers(),
    ):
        launcher = elastic_launch(
            LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=num_processes,
                run_id="seq2seq",
                rdzv_backend="c10d",
                rdzv_endpoint="127.0.0.1:0",
                local_addr="127.0.0.1",
                max_restarts=0,
                signals_to_handle="SIGTERM,SIGINT",
                logs_specs=DefaultLogsSpecs(log_dir=folder),
            ),
            _in_worker,
        )
        try:
            return cast(Result, launcher(work, is_logging_to_stderr())[0])
        except SignalException as stop:
            _, reason = _error_of(Path(folder), 0)
            raise Interrupted(reason or "interrupted", 128 + stop.sigval) from None
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            raise _exception(Path(folder), rank, failure.exitcode) from None


@contextmanager
def _environment(num_processes: int) -> Iterator[None]:
    """Set what new processes read at their start: their share of the CPU cores, among others."""
    before = dict(os.environ)
    os.environ["OMP_NUM_THREADS"] = str(max(1, torch.get_num_threads() // num_processes))
    os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(_SECONDS_TO_SAVE)
    if Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one machine needs no other network
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _signal_handlers() -> Iterator[None]:
    """Restore the signal handlers that the elastic launcher replaces and leaves behind."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _in_worker(work: Callable[[], Result], logs: bool) -> Result | None:
    """Run in each new process: call `work`, and return its result from the main one."""
    if logs:
        log_to_stderr()
    try:
        result = work()
    except OSError as error:
        if error.errno is None:
            raise
        raise UserError(f"{error.filename or 'system'}: {error.strerror or error}") from None
    return result if os.environ["RANK"] == "0" else None


def _error_of(folder: Path, rank: int) -> tuple[str, str]:
    """Return the kind and the text of the exception that ended a process; "" if none did."""
    paths = list(folder.glob(f"*/attempt_0/{rank}/error.json"))
    if not paths:
        return "", ""
    message: Any = json.loads(paths[0].read_text(encoding="utf-8"))["message"]
    kind, _, text = message["message"].partition(": ")
    if kind not in (UserError.__name__, Interrupted.__name__):
        return "", str(message["extraInfo"]["py_callstack"])
    return kind, text


def _exception(folder: Path, rank: int, status: int) -> Exception:
    """Return the exception that says why the process of this rank failed."""
    kind, text = _error_of(folder, rank)
    who = f"process {rank}"
    if kind == Interrupted.__name__:
        return Interrupted(text, status)
    if kind == UserError.__name__:
        return UserError(text if rank == 0 else f"{who}: {text}")
    if text:
        return RuntimeError(f"{who} failed:\n{text}")
    if status < 0:
        memory = " (out of memory?)" if status == -9 else ""
        return UserError(f"{who} was killed by signal {-status}{memory}; {WHAT_NOW}")
    return UserError(f"{who} failed with status {status}; {WHAT_NOW}")
