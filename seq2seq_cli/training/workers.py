"""One or many processes that train one model; everything else is written for one.

Every worker makes the same updates of the same model, each from its share of a batch's sentences
(torch.distributed; gloo on CPUs, nccl on GPUs). The first one alone prepares the text, validates,
logs and saves. They are started by `torchrun`, or from here, as many as `training.workers` says.

When one dies, an exchange with it fails in the others: those end in silence, and the first one says
why. While the first one exchanges nothing, for it validates, a thread watches the others.
"""

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from seq2seq_cli.config import Config
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import Interrupted, UserError
from seq2seq_cli.model.device import choose_device

logger = logging.getLogger(__name__)

_WHAT_NOW = "the last checkpoint stands, and the same command continues"

Value = TypeVar("Value")
Result = TypeVar("Result")

_LONGEST_WAIT = timedelta(days=7)  # for a validation; a dead worker is noticed in other ways
_SECONDS_TO_FAIL = 3.0  # for the exchange with a dead worker, before the watching thread acts
_LOST = 3  # exit status of a worker that ends because another one is gone
_CORES_EACH = 2  # one thread each would be some 7 % faster, in a third more memory
_TOKENS_EACH = 1_024  # of a batch; with fewer, a worker is busier with overhead than with products
_EXCHANGEABLE = 20_000_000  # parameters whose gradients are exchanged in a small part of an update


class Workers:
    """This process among those that train together; alone by default."""

    def __init__(self, rank: int = 0, count: int = 1, threads: int = 1) -> None:
        """`threads`: of all workers of this machine together."""
        self.rank = rank
        self.count = count
        self._threads = threads

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
    def all_threads(self) -> Iterator[None]:
        """For work that the first worker does while the others wait."""
        before = torch.get_num_threads()
        torch.set_num_threads(max(before, self._threads))
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
    worker died; but only in the first worker: the others end their process.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return _work_under_torchrun(work)
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


def _work_under_torchrun(work: Work[Result]) -> Result:
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    threads = torch.get_num_threads()
    local_count = int(os.environ["LOCAL_WORLD_SIZE"])
    workers = Workers(rank, count, threads * local_count)
    try:
        with _group("env://", workers, threads, int(os.environ["LOCAL_RANK"])):
            return work(workers)
    except (UserError, Interrupted) as error:
        if rank == 0:
            raise
        raise SystemExit(error.exit_status if isinstance(error, Interrupted) else 2) from None
    except RuntimeError as error:
        if not _is_lost_connection(error):
            raise
        if rank > 0:
            raise SystemExit(_LOST) from None
        raise UserError(f"another worker is gone; {_WHAT_NOW}") from None


def _work_locally(work: Work[Result], count: int) -> Result:
    spawn = multiprocessing.get_context("spawn")
    threads = torch.get_num_threads()
    workers = Workers(0, count, threads)
    with tempfile.TemporaryDirectory(prefix="seq2seq-workers-") as folder:
        meeting = Path(folder) / "meeting"
        others = [
            spawn.Process(
                target=_follow,
                args=(work, meeting, Workers(rank, count, threads), threads),
                daemon=True,
            )
            for rank in range(1, count)
        ]
        for process in others:
            process.start()
        is_over = threading.Event()
        threading.Thread(target=_watch, args=(others, is_over), daemon=True).start()
        try:
            _wait_for_start(meeting, others)
            with _group(meeting.as_uri(), workers, threads // count, 0):
                return work(workers)
        except RuntimeError as error:
            if not _is_lost_connection(error):
                raise
            for process in others:  # each of them loses the same connection
                process.join(timeout=2)
            raise _reason(others) or error from None
        finally:
            is_over.set()
            torch.set_num_threads(threads)
            for process in others:
                process.join(timeout=5)
                process.kill()


def _follow(work: Work[object], meeting: Path, workers: Workers, threads: int) -> None:
    """The life of a worker that is not the first; the first one tells the user what happened."""
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    try:
        _started(meeting, workers.rank).touch()
        with _group(meeting.as_uri(), workers, threads // workers.count, workers.rank):
            work(workers)
    except (UserError, Interrupted, KeyboardInterrupt):
        pass
    except RuntimeError as error:
        if _is_lost_connection(error):
            raise SystemExit(_LOST) from None
        traceback.print_exc()
        raise SystemExit(1) from None


def _started(meeting: Path, rank: int) -> Path:
    """The file by which a worker says that it is there."""
    return meeting.with_name(f"started-{rank}")


def _wait_for_start(meeting: Path, others: Sequence[BaseProcess]) -> None:
    """Until every worker can connect: a connection with one that died before waits for ever."""
    while not all(_started(meeting, rank).exists() for rank in range(1, len(others) + 1)):
        if reason := _reason(others):
            raise reason
        others[0].join(timeout=0.02)


def _watch(others: Sequence[BaseProcess], is_over: threading.Event) -> None:
    """End this process when a worker died and no exchange noticed it in time."""
    alive = {process.sentinel: process for process in others}
    while alive:
        for sentinel in multiprocessing.connection.wait(list(alive)):
            alive.pop(cast(int, sentinel)).join()
        if (reason := _reason(others)) and not is_over.wait(_SECONDS_TO_FAIL):
            logger.error("error: %s", reason)
            os._exit(2)


def _end_with_the_first() -> None:
    """End this worker when the process that started it is gone, whatever it is waiting for."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "the first worker started this one"
    parent.join()
    os._exit(_LOST)


@contextmanager
def _group(meeting: str, workers: Workers, threads: int, local_rank: int) -> Iterator[None]:
    torch.set_num_threads(max(1, threads))
    if not workers.is_first:
        logging.getLogger("seq2seq_cli").setLevel(logging.ERROR)
    if meeting != "env://" and Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one machine needs no other network
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        init_method=meeting,
        rank=workers.rank,
        world_size=workers.count,
        timeout=_LONGEST_WAIT,
    )
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _is_lost_connection(error: RuntimeError) -> bool:
    """Whether an exchange failed because another worker is gone."""
    return isinstance(error, distributed.DistError) or "gloo" in str(error)


def _reason(others: Sequence[BaseProcess]) -> UserError | None:
    """Why a worker died by itself; None if none did."""
    for rank, process in enumerate(others, start=1):
        status = process.exitcode
        if status in (None, 0, _LOST):
            continue
        how = "failed; its traceback is above" if status > 0 else f"was killed by signal {-status}"
        how += " (out of memory?)" * (status == -signal.SIGKILL)
        return UserError(f"worker {rank} {how}; {_WHAT_NOW}")
    return None
