"""Processes that train on one machine: several of one run, or one for each of several runs.

Each process of a run finds its rank in its environment, as with `torchrun` (`process_group.py`).
The process that starts the others does not train: it forwards signals, and reports failures.
"""

import functools
import itertools
import logging
import math
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import torch
from torch import distributed
from torch.multiprocessing.spawn import ProcessExitedException, start_processes
from tqdm import tqdm

from seq2seq_cli.config.presets import with_preset
from seq2seq_cli.config.schema import FEWEST_BATCHES, MOST_TOKENS, Config
from seq2seq_cli.console import is_logging_to_stderr, log_to_stderr
from seq2seq_cli.decoding.engines.native_model import parameter_shapes
from seq2seq_cli.errors import GOES_ON, Interrupted, UserError, of_system, shortages_reported
from seq2seq_cli.files import read_json, write_json
from seq2seq_cli.machine import available_memory, num_cores
from seq2seq_cli.model.device import choose_device
from seq2seq_cli.processes import (
    ProcessDiedError,
    call_in_process,
    end_with_parent,
    has_terminal,
    held_signals,
    process_context,
    unblock_signals,
)
from seq2seq_cli.tokenizers.vocabulary import num_pieces
from seq2seq_cli.training.parallel.process_group import (
    RUN_ID,
    WHAT_NOW,
    check_gpus,
    is_started_by_launcher,
)
from seq2seq_cli.training.signals import seconds_of_copies

logger = logging.getLogger(__name__)

_PARENT_IS_GONE = 3  # exit status
_SECONDS_OF_A_WAIT = 0.1
_SECONDS_TO_END = 10.0  # after a second signal
TRAINING_IMPORTS = ("seq2seq_cli.training.loop",)
# glibc joins freed blocks, but not the small ones in its cache, which lie between tensors: without
# the cache, training needs an eighth less memory.
_ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}

_TOKENS_EACH = 512  # of a batch; with fewer, a process is busier with overhead than with products
_BYTES_OF_A_TOKEN = 4  # estimates
_TOKENS_OF_A_PAIR = 20  # of one side
_BYTES_EACH = 1 << 30  # of memory; half of it is PyTorch and the model, or less
_REDUCIBLE = 20_000_000  # parameters whose all-reduce is a small part of an update

_KINDS: dict[str, type[BaseException]] = {  # of reasons why a process failed
    kind.__name__: kind for kind in (Interrupted, UserError, OSError, RuntimeError)
}

Result = TypeVar("Result")


def processes_to_start(config: Config) -> int:
    """Return how many processes to start here; 1 means that this process trains alone.

    A process that `torchrun` or `launch` started, or whose process group exists, starts none.
    """
    if is_started_by_launcher():
        return 1
    cores = min(num_cores(), torch.get_num_threads())
    return choose_num_processes(config, cores, available_memory())


def choose_num_processes(config: Config, cores: int, available: int) -> int:
    """Return how many processes train on this machine; `auto`: one for each core if no slower.

    Threads synchronize in every operation, processes once an update: next to another busy program
    processes keep at least 60% of their speed, threads a third. But each process needs enough
    tokens and its share of the `available` bytes, and large models lose more to the all-reduce. No
    core stays idle. On a GPU, `auto` is one process.
    """
    asked = config.training.processes
    if not hasattr(signal, "SIGKILL"):  # Windows
        if asked not in ("auto", 1):
            raise UserError("training.processes: several need the signals of Linux or macOS")
        return 1
    if asked != "auto":
        check_gpus(config, asked)
        return asked
    parts = itertools.chain.from_iterable(corpus.parts() for corpus in config.data.train)
    sizes = (max(path.stat().st_size for path in part.paths) for part in parts)
    text = sum(sizes) // _BYTES_OF_A_TOKEN
    config = with_preset(config, text // _TOKENS_OF_A_PAIR)
    is_cpu = choose_device(config.training.device).type == "cpu"
    if not is_cpu or _num_weights(config, text) > _REDUCIBLE:
        return 1
    budget = config.training.tokens_per_batch
    tokens = min(MOST_TOKENS, text // FEWEST_BATCHES) if budget == "auto" else budget
    most = min(cores, tokens // _TOKENS_EACH, text // _TOKENS_EACH, available // _BYTES_EACH)
    return max(range(1, max(1, most) + 1), key=lambda count: (count * (cores // count), count))


def _num_weights(config: Config, text: int) -> int:
    """Return about how many weights the model has; a size `auto` is estimated as for subwords."""
    sizes, estimate = config.tokenizer.vocab_size, num_pieces("bpe", text // _TOKENS_OF_A_PAIR)
    src, tgt = (estimate if size == "auto" else size for size in (sizes.src, sizes.tgt))
    shapes = parameter_shapes(config.model, src, tgt, is_shared=config.tokenizer.shared)
    return sum(map(math.prod, shapes.values()))


def launch(work: Callable[[], Result], num_processes: int) -> Result:
    """Call `work` in new processes of this machine; return what it returns in the main one.

    A result has no tensors, which would be in memory of a process that has ended.
    Raises what `work` raised, where that is a UserError, OSError or Interrupted; UserError with the
    signal or the status if a process died; RuntimeError with the traceback of any other exception.
    """
    context = process_context(*TRAINING_IMPORTS, **_ENVIRONMENT)
    num_threads = max(1, torch.get_num_threads() // num_processes)
    with _forwarded_signals() as (folder, forwarded), _silent_logger("torch.multiprocessing.spawn"):
        store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        environment = {
            "TORCHELASTIC_RUN_ID": RUN_ID,
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # `store` is in this process, not in rank 0
            "MASTER_ADDR": store.host,
            "MASTER_PORT": str(store.port),
            "WORLD_SIZE": str(num_processes),
            "LOCAL_WORLD_SIZE": str(num_processes),
        }
        receiver, sender = context.Pipe(duplex=False)
        arguments = (work, folder, environment, num_threads, is_logging_to_stderr(), sender)
        method = context.get_start_method()
        others = set(multiprocessing.active_children())
        try:
            with held_signals(signal.SIGINT) if method == "spawn" else nullcontext():
                processes = start_processes(  # type: ignore[no-untyped-call]
                    _in_worker, arguments, num_processes, join=False, start_method=method
                )
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.kill()  # it waits for one that has not started
            raise
        sender.close()
        results: list[Result] = []
        try:
            while not receiver.poll(_SECONDS_OF_A_WAIT):
                processes.join(0)
            with suppress(EOFError):  # all have ended
                results.append(receiver.recv())
            while not processes.join():
                pass
        except ProcessExitedException as error:
            raise _reason(folder, error.error_index, error.exit_code, forwarded) from None
    if not results:
        raise Interrupted("interrupted", 128 + signal.SIGINT)  # again, while they ended
    return results[0]


def launch_each(works: Mapping[str, Callable[[], None]], at_once: int) -> None:
    """Call each in a new process of this machine, at most so many at once, which share its cores.

    One at a time shows its progress; a failure is logged while others train. In the end raises the
    last UserError, with its name, or OSError; or Interrupted, also if all have finished after a
    signal.
    """
    if not hasattr(signal, "SIGKILL"):  # Windows
        raise UserError(
            "training several runs needs the signals of Linux or macOS: train them one by one"
        )
    if is_started_by_launcher():
        raise UserError(
            "a launcher such as torchrun is for one run: start a command that trains several, such "
            "as train --ensemble, without it"
        )
    context = process_context(*TRAINING_IMPORTS, **_ENVIRONMENT)
    num_threads = max(1, torch.get_num_threads() // at_once)
    screen = threading.Lock()

    def call(name: str, work: Callable[[], None]) -> None:
        is_shown = screen.acquire(blocking=False)
        try:
            logs = is_shown and is_logging_to_stderr()
            call_in_process(context, functools.partial(_alone, work, folder, num_threads, logs))
        except (UserError, OSError) as error:
            if received and isinstance(error, ProcessDiedError):
                raise Interrupted(GOES_ON, 128 + max(received)) from None
            if isinstance(error, OSError):
                error.filename = error.filename or name
            elif name not in str(error):
                raise UserError(f"{name}: {error}") from None
            raise
        finally:
            if is_shown:
                screen.release()

    errors: list[BaseException] = []  # the last one first
    with _forwarded_signals() as (folder, received), ThreadPoolExecutor(at_once) as threads:
        futures = [threads.submit(call, name, work) for name, work in works.items()]
        for number, future in enumerate(as_completed(futures), 1):
            if (error := future.exception()) is None:
                continue
            errors.insert(0, error)
            if number < len(works) and isinstance(error, (UserError, OSError)):
                logger.warning("%s", of_system(error) if isinstance(error, OSError) else str(error))
    for error in sorted(errors, key=lambda error: isinstance(error, Interrupted)):
        raise error
    if received:
        raise Interrupted(GOES_ON, 128 + max(received))


def _alone(work: Callable[[], None], folder: Path, num_threads: int, logs: bool) -> None:
    """Run in a new process of `launch_each`."""
    if not logs:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    _start_in_process(folder, num_threads, logs)
    work()


@contextmanager
def _forwarded_signals() -> Iterator[tuple[Path, Mapping[int, float]]]:
    """Forward SIGTERM to the processes while the block runs, and SIGINT where no terminal does.

    A terminal sends Ctrl-C to all processes. Processes that a second one does not end, as they wait
    for one that hangs, are killed. Yields a temporary folder, in which a process that does not
    exist yet finds the signal, and when each signal was received first.
    """
    received: dict[int, float] = {}
    timers: list[threading.Timer] = []

    def kill() -> None:
        for process in multiprocessing.active_children():
            process.kill()

    def forward(number: int, frame: object) -> None:
        with suppress(OSError):  # a full disk
            Path(folder, f"signal-{number}").touch()
        now = time.monotonic()
        first = received.setdefault(number, now)
        if first is not now and now - first >= seconds_of_copies(number) and not timers:
            timers.append(threading.Timer(_SECONDS_TO_END, kill))
            timers[0].start()
        if number == signal.SIGTERM or not has_terminal():
            for process in multiprocessing.active_children():
                assert process.pid is not None, "it was started"
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    numbers = {signal.SIGINT, signal.SIGTERM}
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        numbers.remove(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread():
        numbers.clear()  # Python allows no handlers there
    with tempfile.TemporaryDirectory(prefix="seq2seq-launch-") as folder:
        before = {number: signal.signal(number, forward) for number in numbers}
        try:
            yield Path(folder), received
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for timer in timers:
                timer.cancel()


@contextmanager
def _silent_logger(name: str) -> Iterator[None]:
    """Silence PyTorch's warnings of processes that it ends in the block: `_reason` says why."""
    one = logging.getLogger(name)
    level = one.level
    one.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        one.setLevel(level)


def _start_in_process(folder: Path, num_threads: int, logs: bool) -> None:
    """Prepare a new process to train. Raises Interrupted if a signal came before it."""
    end_with_parent(_PARENT_IS_GONE)
    torch.set_num_threads(num_threads)
    tqdm.set_lock(threading.RLock())  # one of processes would be a leak of those that are killed
    if logs:
        log_to_stderr()
    for number in (signal.SIGINT, signal.SIGTERM):
        if (folder / f"signal-{number}").exists():
            raise Interrupted(GOES_ON, 128 + number)
    unblock_signals()


def _in_worker(
    rank: int,
    work: Callable[[], object],
    folder: Path,
    environment: dict[str, str],
    num_threads: int,
    logs: bool,
    sender: Connection,
) -> None:
    """Run in each new process: call `work`; send its result, or leave in `folder` why it failed."""
    os.environ |= environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    if Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one machine needs no other network
    reason: tuple[str, Sequence[object]]  # exception, with its arguments
    try:
        with shortages_reported():
            _start_in_process(folder, num_threads, logs)
            result = work()
        if rank == 0:
            sender.send(result)
        return
    except KeyboardInterrupt:
        reason = "Interrupted", ("interrupted", 128 + signal.SIGINT)
    except Interrupted as stop:
        reason = "Interrupted", stop.args
    except UserError as error:
        reason = "UserError", [f"process {rank}: {error}" if rank > 0 else str(error)]
    except OSError as error:
        file = error.filename and str(error.filename)
        reason = "OSError", (error.errno, error.strerror or str(error), file)
    except Exception:
        reason = "RuntimeError", [f"process {rank} failed:\n{traceback.format_exc()}"]
    with suppress(OSError):  # a full disk
        write_json(folder / f"reason-{rank}.json", reason)
    raise SystemExit(1)


def _reason(folder: Path, rank: int, status: int, forwarded: Mapping[int, float]) -> BaseException:
    """Return why the processes ended, `rank` first, when they had got some signals."""
    files = {r: folder / f"reason-{r}.json" for r in (0, rank)}
    reasons = {r: read_json(path) for r, path in files.items() if path.exists()}
    first = 0 if reasons.get(0, [""])[0] == "Interrupted" else rank
    if first in reasons:
        kind, arguments = reasons[first]
        return _KINDS[kind](*arguments)
    if signal.SIGTERM in forwarded or (forwarded and status == -signal.SIGKILL):
        return Interrupted("interrupted", 128 + max(forwarded))
    if status < 0:
        guess = " (out of memory?)" if status == -signal.SIGKILL else ""
        return UserError(f"process {rank} was killed by signal {-status}{guess}; {WHAT_NOW}")
    return UserError(f"process {rank} failed with status {status}; {WHAT_NOW}")
