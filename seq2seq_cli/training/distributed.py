"""The processes that train one model together, as each of them sees it; by default it is alone.

Every process makes the same updates of the same model, each from its share of a batch's sentences
(torch.distributed; gloo on CPUs, nccl on GPUs). The first one alone prepares the text, validates,
logs and saves. `launcher.py` starts them.
"""

from contextlib import AbstractContextManager
from typing import TypeVar

import torch
from torch import Tensor, distributed

from seq2seq_cli.config.schema import FEWEST_BATCHES, MOST_TOKENS, Config
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.device import choose_device, use_threads

Value = TypeVar("Value")

_TOKENS_EACH = 512  # of a batch; with fewer, a process is busier with overhead than with products
_BYTES_OF_A_TOKEN = 4  # nearly
_BYTES_EACH = 1 << 30  # of memory; half of it is PyTorch and the model, or less
_EXCHANGEABLE = 20_000_000  # parameters whose gradients are exchanged in a small part of an update


class Ranks:
    """This process among those that train together; alone by default."""

    def __init__(self, rank: int = 0, world_size: int = 1, threads: int = 1) -> None:
        """`threads`: of all processes of this machine together."""
        self.rank = rank
        self.world_size = world_size
        self._threads = threads

    @property
    def is_main(self) -> bool:
        """Whether this one reads text, validates, logs and saves."""
        return self.rank == 0

    def shard(self, batch: Batch) -> Batch:
        """This process's sentences of a batch; neighbours are of like length."""
        return batch if self.world_size == 1 else batch.shard(self.world_size, self.rank)

    def all_reduce(self, numbers: Tensor) -> None:
        """All-reduce: every process then has the sum, of the same bits."""
        if self.world_size > 1:
            distributed.all_reduce(numbers)

    def all_reduce_sum(self, value: float) -> float:
        """Over all processes."""
        return self._reduced(value, distributed.ReduceOp.SUM)

    def all_reduce_max(self, value: float) -> float:
        """Of all processes: what every one of them then knows."""
        return self._reduced(value, distributed.ReduceOp.MAX)

    def broadcast(self, value: Value) -> Value:
        """What the main process has; the others' own values are ignored."""
        values = [value]
        if self.world_size > 1:
            distributed.broadcast_object_list(values, src=0)
        return values[0]

    def all_gather(self, value: Value) -> list[Value]:
        """What each process has, the first one's first."""
        values = [value] * self.world_size
        if self.world_size > 1:
            distributed.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Until all processes are here."""
        self.all_reduce_sum(0.0)

    def all_threads(self) -> AbstractContextManager[None]:
        """For work that the main process does while the others wait."""
        return use_threads(max(torch.get_num_threads(), self._threads))

    def _reduced(self, value: float, operation: "distributed.ReduceOp.RedOpType") -> float:
        if self.world_size == 1:
            return value
        numbers = torch.tensor([value], dtype=torch.float64)
        distributed.all_reduce(numbers, operation)
        return float(numbers)


def choose_num_processes(config: Config, cores: int, memory: int) -> int:
    """Processes to start on this machine; `auto`: one for each core where that is no slower.

    Threads meet in every operation, processes once in an update: beside another busy program
    processes keep 60 % of their speed and more, threads a third. But each needs tokens enough to
    work on, and its share of the `memory` (bytes); and large models lose more by exchanging
    gradients. Fewer processes of more threads are started where that leaves no core idle. On GPUs
    only what is asked for is started.
    """
    asked = config.training.processes
    is_cpu = choose_device(config.training.device).type == "cpu"
    if asked == "auto":
        if not is_cpu or _num_weights(config) > _EXCHANGEABLE:
            return 1
        text = max(path.stat().st_size for path in config.data.train.files) // _BYTES_OF_A_TOKEN
        budget = config.training.tokens_per_batch
        tokens = min(MOST_TOKENS, text // FEWEST_BATCHES) if budget == "auto" else budget
        most = min(cores, tokens // _TOKENS_EACH, text // _TOKENS_EACH, memory // _BYTES_EACH)
        return max(range(1, max(1, most) + 1), key=lambda count: (count * (cores // count), count))
    check_gpus(config, asked)
    return asked


def check_gpus(config: Config, num_processes: int) -> None:
    """Raises UserError if so many processes of this machine want a GPU each and there are fewer."""
    is_gpu = choose_device(config.training.device).type == "cuda"
    if is_gpu and num_processes > torch.cuda.device_count():
        raise UserError(
            f"{num_processes} processes, but this machine has {torch.cuda.device_count()} GPUs"
        )


def _num_weights(config: Config) -> int:
    """Of the model's matrices, nearly."""
    model = config.model
    square, feed_forward = model.d_model**2, 2 * model.d_model * model.d_ff
    encoder = model.layers.encoder * (4 * square + feed_forward)
    decoder = model.layers.decoder * (8 * square + feed_forward)
    return encoder + decoder + model.d_model * config.tokenizer.vocab_size
