"""Starting the processes: those of `torchrun` are there already, others are started here.

When one dies, an exchange with it fails in the others: those end in silence, and the first one says
why. While the first one exchanges nothing, for it validates, a thread watches those it started.
"""

import logging
import multiprocessing
import os
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from seq2seq_cli.config.schema import Config
from seq2seq_cli.errors import Interrupted, UserError
from seq2seq_cli.machine import available_memory, end_with_parent, held_interrupts, num_cores
from seq2seq_cli.training.distributed import Ranks, check_gpus, choose_num_processes

logger = logging.getLogger(__name__)

_THIS_MACHINE = "127.0.0.1"
_LONGEST_WAIT = timedelta(days=7)  # for a validation; a dead process is noticed in other ways
_SECONDS_TO_NOTICE = 3.0  # a dead process by an exchange with it, before the watching thread acts
_SECONDS_TO_END = 5.0  # for processes that are told to
_WHAT_NOW = "the last checkpoint stands, and the same command continues"
_LOST, _REFUSED = 3, 4  # exit statuses: another process is gone; a UserError of this one alone

Result = TypeVar("Result")
Work = Callable[[Ranks], Result]


def launch(work: Work[Result], config: Config) -> Result:
    """Call `work` in every process: in those that torchrun started, or in all that start here.

    Returns what it returned in this process. Raises what `work` raises, and UserError when another
    process died.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return _work_under_torchrun(work, config)
    cores = min(num_cores(), torch.get_num_threads())
    count = choose_num_processes(config, cores, available_memory())
    if count == 1:
        return work(Ranks())
    return _work_locally(work, count)


def _work_under_torchrun(work: Work[Result], config: Config) -> Result:
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank, local_count = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    check_gpus(config, local_count)
    threads = torch.get_num_threads()
    ranks = Ranks(rank, count, threads * local_count)
    try:
        with _group(None, ranks, threads, local_rank):
            return work(ranks)
    except Interrupted as stop:
        if rank == 0:
            raise
        raise SystemExit(stop.exit_status) from None
    except RuntimeError as error:
        if not _is_lost_connection(error):
            raise
        if rank > 0:
            raise SystemExit(_LOST) from None
        raise UserError(f"lost another process ({error}); {_WHAT_NOW}") from None


def _work_locally(work: Work[Result], count: int) -> Result:
    threads = torch.get_num_threads()
    ranks = Ranks(0, count, threads)
    meeting = TCPStore(_THIS_MACHINE, 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory(prefix="seq2seq-processes-") as folder:
        others = _ChildProcesses(work, count, threads, Path(folder), meeting.port)
        try:
            others.wait_for_start()
            with _group(meeting, ranks, threads // count, 0):
                return work(ranks)
        except RuntimeError as error:
            if not _is_lost_connection(error):
                raise
            raise others.why() or error from None
        finally:
            others.end()
            torch.set_num_threads(threads)


class _ChildProcesses:
    """The processes that the first one started, and the thread that waits for their end."""

    def __init__(
        self, work: Work[object], count: int, threads: int, folder: Path, port: int
    ) -> None:
        """`port`: where the main process waits for them."""
        spawn = multiprocessing.get_context("spawn")
        self._folder = folder
        self._processes: dict[int, BaseProcess] = {}  # by rank
        for rank in range(1, count):
            arguments = (work, port, folder, Ranks(rank, count, threads), threads)
            self._processes[rank] = spawn.Process(target=_worker_main, args=arguments, daemon=True)
            with held_interrupts():
                self._processes[rank].start()
        self._reason: UserError | None = None
        self._is_over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def wait_for_start(self) -> None:
        """Until all can connect: a connection with one that died before waits for ever."""
        while not all(_started(self._folder, rank).exists() for rank in self._processes):
            if self._reason:
                raise self._reason
            self._watcher.join(timeout=0.02)

    def why(self) -> UserError | None:
        """Why one of them ended, if it ended by itself; all others lose their connection to it."""
        self._is_over.set()
        self._watcher.join(timeout=_SECONDS_TO_END)
        return self._reason

    def end(self) -> None:
        """Until none is left."""
        self._is_over.set()
        self._watcher.join(timeout=0 if self._reason else _SECONDS_TO_END)
        for process in self._processes.values():
            process.kill()
        self._watcher.join()

    def _watch(self) -> None:
        """Keep the first reason; end this process if the death of a process stays unnoticed."""
        alive = {process.sentinel: rank for rank, process in self._processes.items()}
        while alive:
            for sentinel in connection.wait(list(alive)):
                rank = alive.pop(cast(int, sentinel))
                self._processes[rank].join()
                self._reason = self._reason or self._reason_of(rank)
            if self._reason and not self._is_over.wait(_SECONDS_TO_NOTICE):
                logger.error("error: %s", self._reason)
                os._exit(2)

    def _reason_of(self, rank: int) -> UserError | None:
        status = self._processes[rank].exitcode
        if not status or status == _LOST:
            return None
        if status == _REFUSED:
            return UserError(f"process {rank}: {_refusal(self._folder, rank).read_text()}")
        if status > 0:
            return UserError(f"process {rank} failed with status {status}; {_WHAT_NOW}")
        memory = " (out of memory?)" if status == -signal.SIGKILL else ""
        return UserError(f"process {rank} was killed by signal {-status}{memory}; {_WHAT_NOW}")


def _started(folder: Path, rank: int) -> Path:
    """The file by which a process says that it is there."""
    return folder / f"started-{rank}"


def _refusal(folder: Path, rank: int) -> Path:
    """The file in which a process says why it cannot go on."""
    return folder / f"refusal-{rank}"


def _worker_main(work: Work[object], port: int, folder: Path, ranks: Ranks, threads: int) -> None:
    """The life of a process that is not the first; the first one tells the user what happened."""
    threading.Thread(target=end_with_parent, args=(_LOST,), daemon=True).start()
    try:
        _started(folder, ranks.rank).touch()
        meeting = TCPStore(_THIS_MACHINE, port)
        with _group(meeting, ranks, threads // ranks.world_size, ranks.rank):
            work(ranks)
    except (Interrupted, KeyboardInterrupt):
        pass
    except UserError as error:
        _refusal(folder, ranks.rank).write_text(str(error))
        raise SystemExit(_REFUSED) from None
    except RuntimeError as error:
        if _is_lost_connection(error):
            raise SystemExit(_LOST) from None
        traceback.print_exc()
        raise SystemExit(1) from None


@contextmanager
def _group(meeting: TCPStore | None, ranks: Ranks, threads: int, local_rank: int) -> Iterator[None]:
    """Connected to the others, whose addresses are in the store; none: where torchrun says."""
    torch.set_num_threads(max(1, threads))
    if not ranks.is_main:
        logging.getLogger("seq2seq_cli").setLevel(logging.ERROR)
    if meeting is not None and Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one machine needs no other network
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    distributed.distributed_c10d._world.group_count = 0  # a start that failed leaves it at 1, and
    # then the main process looks for the others under another name than theirs, for ever
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        store=meeting,
        rank=ranks.rank,
        world_size=ranks.world_size,
        timeout=_LONGEST_WAIT,
    )
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _is_lost_connection(error: RuntimeError) -> bool:
    """Whether an exchange failed, as it does when another process is gone."""
    return isinstance(error, distributed.DistError) or "gloo" in str(error)
