"""One or many processes that train one model; everything else is written for one.

Every worker makes the same updates of the same model, each from its share of a batch's sentences
(torch.distributed; gloo on CPUs, nccl on GPUs). The first one alone reads text, validates, logs and
saves. They are started by `torchrun`, or from here, as many as `training.workers` says.
"""

import logging
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from seq2seq_cli.config import Config
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import Interrupted, UserError
from seq2seq_cli.model.device import choose_device

Value = TypeVar("Value")
Result = TypeVar("Result")

_LONGEST_WAIT = timedelta(days=7)  # for a validation; a dead worker is noticed at once, not by this
_CORES_EACH = 2  # what two threads of one process lose to two processes is in the noise
_TOKENS_EACH = 1_024  # of a batch; with fewer, a worker is busier with overhead than with products
_EXCHANGEABLE = 20_000_000  # parameters whose gradients are exchanged in a small part of an update


class Workers:
    """This process among those that train together; alone by default."""

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank = rank
        self.count = count

    @property
    def is_first(self) -> bool:
        """Whether this one reads text, validates, logs and saves."""
        return self.rank == 0

    def share(self, batch: Batch) -> Batch:
        """This worker's sentences of a batch; neighbours are of like length."""
        return batch if self.count == 1 else batch.every(self.count, self.rank)

    def parallel(self, loss: nn.Module) -> nn.Module:
        """The module, with gradients averaged over the workers, starting from the first's weights.

        An average of sums: multiply the loss by `count` for the gradient of the sum of all.
        """
        if self.count == 1:
            return loss
        return DistributedDataParallel(loss, gradient_as_bucket_view=True)

    def summed(self, value: float) -> float:
        """Over all workers."""
        return self._reduced(value, distributed.ReduceOp.SUM)

    def greatest(self, value: float) -> float:
        """Of all workers: what every one of them then knows."""
        return self._reduced(value, distributed.ReduceOp.MAX)

    def of_the_first(self, value: Value) -> Value:
        """What the first worker has; the others' own values are ignored."""
        values = [value]
        if self.count > 1:
            distributed.broadcast_object_list(values, src=0)
        return values[0]

    def wait(self) -> None:
        """Until all workers are here."""
        self.summed(0.0)

    @contextmanager
    def all_cores(self) -> Iterator[None]:
        """For work that the first worker does while the others wait."""
        before = torch.get_num_threads()
        if self.count > 1:  # alone, it has the threads that it was given
            torch.set_num_threads(num_cores())
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _reduced(self, value: float, operation: "distributed.ReduceOp.RedOpType") -> float:
        if self.count == 1:
            return value
        numbers = torch.tensor([value], dtype=torch.float64)
        distributed.all_reduce(numbers, operation)
        return float(numbers)


def without_exchange(loss: nn.Module) -> AbstractContextManager[None]:
    """Gradients stay with their worker while the block runs: more batches follow."""
    return loss.no_sync() if isinstance(loss, DistributedDataParallel) else nullcontext()


def num_cores() -> int:
    """That this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


Work = Callable[[Workers], Result]


def work_together(work: Work[Result], config: Config) -> Result:
    """Call `work` in every worker: in those that torchrun started, or in all that start here.

    Returns what it returned in this process. Raises what `work` raises, and UserError when another
    worker died.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        with _group("env://", rank, count, int(os.environ["LOCAL_RANK"])) as workers:
            return work(workers)
    count = choose_workers(config)
    if count == 1:
        return work(Workers())
    return _work_locally(work, count)


def choose_workers(config: Config) -> int:
    """Processes to start on this machine; `auto`: as many as make training faster.

    On a CPU drawing random numbers and starting small operations take no part in threads, so that
    beyond two cores another process serves better than more threads; but large models lose more by
    exchanging gradients. On GPUs only what is asked for is started.
    """
    asked = config.training.workers
    is_cpu = choose_device(config.training.device).type == "cpu"
    if asked == "auto":
        if not is_cpu or _num_weights(config) > _EXCHANGEABLE:
            return 1
        tokens = config.training.tokens_per_batch
        return max(1, min(num_cores() // _CORES_EACH, tokens // _TOKENS_EACH))
    if not is_cpu and asked > torch.cuda.device_count():
        raise UserError(
            f"training.workers: {asked}, but this machine has {torch.cuda.device_count()} GPUs"
        )
    return asked


def _num_weights(config: Config) -> int:
    """Of the model's matrices, nearly."""
    model = config.model
    square, feed_forward = model.d_model**2, 2 * model.d_model * model.d_ff
    encoder = model.layers.encoder * (4 * square + feed_forward)
    decoder = model.layers.decoder * (8 * square + feed_forward)
    return encoder + decoder + model.d_model * config.tokenizer.vocab_size


def _work_locally(work: Work[Result], count: int) -> Result:
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="seq2seq-workers-") as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        others = [
            spawn.Process(target=_follow, args=(work, meeting, rank, count), daemon=True)
            for rank in range(1, count)
        ]
        for process in others:
            process.start()
        threads = torch.get_num_threads()
        try:
            with _group(meeting, 0, count, 0) as workers:
                return work(workers)
        except RuntimeError as error:  # what a broken connection looks like from here
            raise _reason(others) or error from None
        finally:
            torch.set_num_threads(threads)
            for process in others:
                process.join(timeout=5)
                process.kill()


def _follow(work: Work[object], meeting: str, rank: int, count: int) -> None:
    """The life of a worker that is not the first; the first one tells the user what happened."""
    try:
        with _group(meeting, rank, count, rank) as workers:
            work(workers)
    except (UserError, Interrupted, KeyboardInterrupt):
        pass
    except RuntimeError as error:
        if "gloo" not in str(error):  # else another worker is gone
            traceback.print_exc()
        raise SystemExit(1) from None


@contextmanager
def _group(meeting: str, rank: int, count: int, local_rank: int) -> Iterator[Workers]:
    if meeting != "env://":
        torch.set_num_threads(max(1, num_cores() // count))
        if Path("/sys/class/net/lo").exists():  # workers of one machine need no other network
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    if rank > 0:
        logging.getLogger("seq2seq_cli").setLevel(logging.ERROR)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    distributed.init_process_group(
        backend, init_method=meeting, rank=rank, world_size=count, timeout=_LONGEST_WAIT
    )
    try:
        yield Workers(rank, count)
    finally:
        distributed.destroy_process_group()


def _reason(others: Sequence[BaseProcess]) -> UserError | None:
    """Why the first dead worker died; None if all of them live."""
    for rank, process in enumerate(others, start=1):
        process.join(timeout=2)
        if process.exitcode:
            how = (
                f"was killed by signal {-process.exitcode}"
                + " (out of memory?)" * (process.exitcode == -9)
                if process.exitcode < 0
                else "failed; its traceback is above"
            )
            return UserError(
                f"worker {rank} {how}; the last checkpoint stands, and the same command continues"
            )
    return None
