"""Data-parallel training as each of its processes sees it; by default there is only one.

Every process applies the same updates to the same model, each with the gradients of its shard of a
batch, summed by an all-reduce (torch.distributed; gloo on CPUs, nccl on GPUs). The main process
alone prepares the text, validates, logs and saves.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed.rendezvous import rendezvous

from seq2seq_cli.config.presets import with_preset
from seq2seq_cli.config.schema import FEWEST_BATCHES, MOST_TOKENS, Config
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import Interrupted, UserError
from seq2seq_cli.machine import PARENT
from seq2seq_cli.model.device import choose_device, use_threads
from seq2seq_cli.tokenizers.vocabulary import num_pieces
from seq2seq_cli.training.parallel.lost_machines import watched_machines

Value = TypeVar("Value")

RUN_ID = "seq2seq-cli.launcher"  # of processes that `launcher.py` started
WHAT_NOW = "the same command resumes from the last checkpoint"

_TOKENS_EACH = 512  # of a batch; with fewer, a process is busier with overhead than with products
_BYTES_OF_A_TOKEN = 4  # nearly
_TOKENS_OF_A_PAIR = 20  # of one side, nearly
_BYTES_EACH = 1 << 30  # of memory; half of it is PyTorch and the model, or less
_REDUCIBLE = 20_000_000  # parameters whose all-reduce is a small part of an update
_LONGEST_WAIT = timedelta(days=7)  # for a validation; the launcher notices a process that died
_LONGEST_UPDATE = timedelta(minutes=30)  # or saving, or meeting each other
_SECONDS_TO_BE_ENDED = 10.0  # by the launcher, after another process has failed
_SECONDS_FOR_MAIN = 1.0  # to end for the same reason, and be the one that reports it
_SECONDS_TO_SAVE = 60.0  # after the agent, the process of torchrun that started this one, is gone
_SECONDS_BETWEEN_LOOKS = 0.5  # at whether it is
_SECONDS_OF_A_LOCK = 120.0  # at most, of a machine that is gone: 90 is the lease time of NFS


class Ranks:
    """The rank of this process among those that train together, and their collectives."""

    def __init__(
        self,
        rank: int = 0,
        world_size: int = 1,
        threads: int = 1,
        cpu_group: distributed.ProcessGroup | None = None,
    ) -> None:
        """`threads`: of all processes of this machine together.

        `cpu_group`: the process group for numbers and objects in CPU memory; None: the default one.
        """
        self.rank = rank
        self.world_size = world_size
        self._seconds_in_all_reduce: list[float] = []
        self._threads = threads
        self._cpu_group = cpu_group

    @property
    def is_main(self) -> bool:
        """True in the process that reads text, validates, logs and saves."""
        return self.rank == 0

    def shard(self, batch: Batch) -> Batch:
        """Return this process's sentences of a batch; neighbours have similar lengths."""
        return batch if self.world_size == 1 else batch.shard(self.world_size, self.rank)

    def all_reduce(self, numbers: Tensor) -> None:
        """Replace `numbers` by their sum over all processes, equal to the last bit in all.

        `waiting_and_communication` tells the time that this takes.
        """
        if self.world_size > 1:
            started = _seconds_when_done(numbers)
            distributed.all_reduce(numbers)
            self._seconds_in_all_reduce.append(_seconds_when_done(numbers) - started)

    def waiting_and_communication(self) -> tuple[float, float]:
        """Return the seconds of `all_reduce` since this was called last, by all processes together.

        In each of its calls communication begins when the last process comes, and takes as long as
        that one is in it. The others wait before; theirs is the mean over all processes.
        """
        seconds, self._seconds_in_all_reduce = self._seconds_in_all_reduce, []
        everyone = self.all_gather(seconds)
        communication = sum(map(min, zip(*everyone, strict=True)))
        return sum(map(sum, everyone)) / len(everyone) - communication, communication

    def seconds_in_all_reduce(self) -> float:
        """Return those of this process since `waiting_and_communication` was called last."""
        return sum(self._seconds_in_all_reduce)

    def all_reduce_sum(self, value: float) -> float:
        """Return the sum over all processes."""
        return self._reduced(value, distributed.ReduceOp.SUM)

    def all_reduce_max(self, value: float) -> float:
        """Return the maximum over all processes."""
        return self._reduced(value, distributed.ReduceOp.MAX)

    def broadcast(self, value: Value) -> Value:
        """Return the main process's value; those of the others are ignored."""
        values = [value]
        if self.world_size > 1:
            distributed.broadcast_object_list(values, src=0, group=self._cpu_group)
        return values[0]

    def all_gather(self, value: Value) -> list[Value]:
        """Return the values of all processes, by rank."""
        values = [value] * self.world_size
        if self.world_size > 1:
            distributed.all_gather_object(values, value, group=self._cpu_group)
        return values

    def in_main(self, action: Callable[[], Value]) -> Value | None:
        """Call `action` in the main process; its UserError or Interrupted is raised in all."""
        result, error = None, None
        if self.is_main:
            try:
                result = action()
            except (UserError, Interrupted) as raised:
                error = raised
        error = self.broadcast(error)
        if error is not None:
            raise error
        return result

    def barrier(self) -> None:
        """Wait until all processes have called this."""
        self.all_reduce_sum(0.0)

    def all_threads(self) -> AbstractContextManager[None]:
        """Use the threads of all processes, for work of one while the others wait."""
        return use_threads(max(torch.get_num_threads(), self._threads))

    def _reduced(self, value: float, operation: "distributed.ReduceOp.RedOpType") -> float:
        if self.world_size == 1:
            return value
        numbers = torch.tensor([value], dtype=torch.float64)
        distributed.all_reduce(numbers, operation, group=self._cpu_group)
        return float(numbers)


def _seconds_when_done(numbers: Tensor) -> float:
    """Return the time when a GPU has computed these numbers."""
    if numbers.is_cuda:
        torch.cuda.synchronize(numbers.device)
    return time.perf_counter()


def is_started_by_launcher() -> bool:
    """Return True if this process is one of several that somebody has started to train together."""
    return "TORCHELASTIC_RUN_ID" in os.environ or distributed.is_initialized()


def is_started_by_torchrun() -> bool:
    """Return True if this is a process of `torchrun`, which may start it again on any machine."""
    return os.environ.get("TORCHELASTIC_RUN_ID", RUN_ID) != RUN_ID


def lock_patience() -> float:
    """Return the seconds in which the run's trainer before this one ends, if it must be ending."""
    is_started_again = is_started_by_torchrun() or distributed.is_initialized()
    is_local = os.environ.get("TORCHELASTIC_RUN_ID") == RUN_ID
    return _SECONDS_OF_A_LOCK if is_started_again and not is_local else 0.0


@contextmanager
def process_group(config: Config) -> Iterator[Ranks]:
    """Join the processes that train together; alone unless a launcher has started this one.

    A process group that the caller has initialised is used as it is. Of processes that fail
    together the main one reports the reason; one that lost its connection to another one waits for
    the launcher, which knows what happened to that one.
    """
    if distributed.is_initialized():
        group = distributed.new_group(backend="gloo", timeout=_LONGEST_WAIT)
        try:
            yield Ranks(distributed.get_rank(), distributed.get_world_size(), 1, group)
        finally:
            distributed.destroy_process_group(group)
        return
    if not is_started_by_launcher():
        yield Ranks()
        return
    ranks = _join_launched_group(config)
    try:
        is_watched = is_started_by_torchrun()
        with watched_machines(ranks.broadcast, PARENT) if is_watched else nullcontext():
            yield ranks
    except Interrupted as stop:
        if ranks.is_main:
            raise
        time.sleep(_SECONDS_FOR_MAIN)
        raise SystemExit(stop.exit_status) from None
    except UserError:
        if not ranks.is_main:
            time.sleep(_SECONDS_FOR_MAIN)
        raise
    except RuntimeError as error:
        if not _is_lost_connection(error):
            raise
        time.sleep(_SECONDS_TO_BE_ENDED)
        raise UserError(f"lost another process ({error}); {WHAT_NOW}") from None
    finally:
        distributed.destroy_process_group()


def _join_launched_group(config: Config) -> Ranks:
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if is_started_by_torchrun():
        if _is_adopted():
            raise UserError("the torchrun that started this process has ended")
        threading.Thread(target=_stop_with_agent, daemon=True).start()
    check_gpus(config, local_size)
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    longest = _LONGEST_UPDATE if is_started_by_torchrun() else _LONGEST_WAIT
    store, rank, world_size = next(rendezvous("env://", timeout=longest))
    if is_started_by_torchrun() and os.environ.get("GROUP_WORLD_SIZE") == "1":
        # Of one machine, torchrun 2.13 keeps the addresses of processes that it starts again; for
        # several, docs/machines.md sets TORCH_DISABLE_SHARE_RDZV_TCP_STORE.
        store = distributed.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)  # type: ignore[attr-defined]
    distributed.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=longest
    )
    group = distributed.new_group(backend="gloo", timeout=_LONGEST_WAIT)
    threads = torch.get_num_threads() * local_size
    ranks = Ranks(distributed.get_rank(), distributed.get_world_size(), threads, group)
    if not ranks.is_main:
        logging.getLogger("seq2seq_cli").setLevel(logging.ERROR)
    return ranks


def _is_adopted() -> bool:
    """Return True if the agent ended before this process could know it: it is a child of another.

    The agent is a program in Python, or has started a script that has started this process.
    """
    parent, program = Path(f"/proc/{PARENT}"), Path("/proc/self/exe")
    try:
        is_python = (parent / "exe").readlink().name.startswith("python")
        is_python = is_python or (parent / "exe").readlink() == program.readlink()
        return not (is_python or b"TORCHELASTIC_RUN_ID=" in (parent / "environ").read_bytes())
    except OSError:  # of another user
        return PARENT == 1


def _stop_with_agent() -> None:
    """Wait until the agent is gone; then stop all processes as SIGTERM does, which saves the run.

    Nothing else ends those that it started, and they would keep others from the run folder.
    """
    while os.getppid() == PARENT:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_SECONDS_TO_SAVE)
    os._exit(128 + signal.SIGTERM)


def _is_lost_connection(error: RuntimeError) -> bool:
    """Return True if a collective failed, as it does when another process is gone."""
    return isinstance(error, distributed.DistError) or "gloo" in str(error)


def choose_num_processes(config: Config, cores: int, memory: int) -> int:
    """Return how many processes train on this machine; `auto`: one for each core if no slower.

    Threads synchronise in every operation, processes once an update: beside another busy program
    processes keep at least 60 % of their speed, threads a third. But each process needs enough
    tokens and its share of the `memory` (bytes), and large models lose more to the all-reduce.
    Fewer processes with more threads are chosen where that leaves no core idle. On a GPU, `auto` is
    one process.
    """
    asked = config.training.processes
    is_cpu = choose_device(config.training.device).type == "cpu"
    if asked == "auto":
        files = (max(part.paths, key=_size) for c in config.data.train for part in c.parts())
        text = sum(map(_size, files)) // _BYTES_OF_A_TOKEN
        config = with_preset(config, text // _TOKENS_OF_A_PAIR)  # nearly
        if not is_cpu or _num_weights(config, text) > _REDUCIBLE:
            return 1
        budget = config.training.tokens_per_batch
        tokens = min(MOST_TOKENS, text // FEWEST_BATCHES) if budget == "auto" else budget
        most = min(cores, tokens // _TOKENS_EACH, text // _TOKENS_EACH, memory // _BYTES_EACH)
        return max(range(1, max(1, most) + 1), key=lambda count: (count * (cores // count), count))
    check_gpus(config, asked)
    return asked


def _size(path: Path) -> int:
    return path.stat().st_size


def check_gpus(config: Config, num_processes: int) -> None:
    """Raises UserError if so many processes of this machine want a GPU each and there are fewer."""
    is_gpu = choose_device(config.training.device).type == "cuda"
    if is_gpu and num_processes > torch.cuda.device_count():
        raise UserError(
            f"{num_processes} processes, but this machine has {torch.cuda.device_count()} GPUs"
        )


def _num_weights(config: Config, text: int) -> int:
    """Return the approximate number of weights in the model's matrices for a text of this size.

    `text` is in tokens; a vocabulary of size `auto` is taken for one of subwords.
    """
    model = config.model
    square, feed_forward = model.d_model**2, 2 * model.d_model * model.d_ff
    encoder = model.layers.encoder * (4 * square + feed_forward)
    decoder = model.layers.decoder * (8 * square + feed_forward)
    vocab_size = config.tokenizer.vocab_size.tgt
    if vocab_size == "auto":
        vocab_size = num_pieces("bpe", text // _TOKENS_OF_A_PAIR)
    return encoder + decoder + model.d_model * vocab_size
