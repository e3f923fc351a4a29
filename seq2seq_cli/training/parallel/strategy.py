"""How the processes of a run train together: alone by default, or each with a shard of every batch.

A run calls its strategy wherever several processes act differently from one. Only the main process
prepares the text, validates, logs and saves. `extras/shard` has another strategy.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor, distributed, nn

from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import Interrupted, UserError
from seq2seq_cli.machine import retain_freed_pages
from seq2seq_cli.model.device import use_threads
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.model.weights import Weights, load_weights, save_tensors
from seq2seq_cli.training.checkpoints.optimizer_state import load_optimizer, optimizer_tensors
from seq2seq_cli.training.optimizers.optimizer import trained_weights

if TYPE_CHECKING:
    from seq2seq_cli.training.checkpoints.checkpoint import Saver
    from seq2seq_cli.training.run import Run

Value = TypeVar("Value")
Accumulated = tuple[Sequence[float], int | None]  # losses; index of the batch that was too large
Accumulate = Callable[[], Accumulated]


class GatheredModel(NamedTuple):
    """What the main process evaluates and saves."""

    model: Transformer  # which `with_weights` gives the weights to evaluate
    trained: Weights  # current weights, unsharded; they share memory with the run's
    evaluated: Weights  # validated and kept, an EMA for example


class SingleProcess:
    """The strategy of a process that trains alone, and the interface of all strategies."""

    rank = 0
    world_size = 1
    lock_seconds = 0.0  # to wait for the previous trainer's lock of the run folder

    @property
    def is_main(self) -> bool:
        """True in the process that reads text, validates, logs and saves."""
        return self.rank == 0

    def shard(self, batch: Batch) -> Batch:
        """Return this process's sentences of a batch."""
        return batch

    def all_reduce_sum(self, value: float) -> float:
        """Return the sum over all processes."""
        return value

    def all_reduce_max(self, value: float) -> float:
        """Return the maximum over all processes."""
        return value

    def broadcast(self, value: Value) -> Value:
        """Return the main process's value."""
        return value

    def all_gather(self, value: Value) -> list[Value]:
        """Return the values of all processes, by rank."""
        return [value]

    def in_main(self, action: Callable[[], Value]) -> Value | None:
        """Call `action` in the main process; its UserError or Interrupted is raised in all."""
        return action()

    def barrier(self) -> None:
        """Wait until all processes have called this."""
        self.all_reduce_sum(0.0)

    def all_threads(self) -> AbstractContextManager[None]:
        """Use the threads of all processes, for work of one while the others wait."""
        return nullcontext()

    def build_model(self, build: Callable[[], Transformer], device: torch.device) -> Transformer:
        """Build the model of a run at step 0."""
        return build().to(device)

    def load_weights(self, model: nn.Module, path: Path) -> None:
        """Load the weights of a checkpoint. Raises UserError as `model/weights.py` does."""
        load_weights(model, path)

    def load_optimizer(self, checkpoint: Path, run: "Run") -> None:
        """Load the optimizer's state. Raises UserError if it is damaged or does not fit."""
        load_optimizer(checkpoint, run)

    def save_optimizer(self, checkpoint: Path, run: "Run") -> None:
        """Write the optimizer's state into the folder of a checkpoint."""
        save_tensors(optimizer_tensors(run), checkpoint / "optimizer.safetensors")

    def start(self, run: "Run", checkpoint: Path) -> None:
        """Prepare a run, loaded from its checkpoint, for training."""
        retain_freed_pages()

    def sum_gradients(
        self, loss: nn.Module, batches: Sequence[Batch], num_losses: int, accumulate: Accumulate
    ) -> Accumulated:
        """Sum gradients and losses of an update over all processes.

        `accumulate` computes them in this process, with its shard of each of the `batches`.
        """
        return accumulate()

    def grad_norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the norm of the gradients after `sum_gradients`."""
        return nn.utils.get_total_norm(gradients)

    def waiting_and_communication(self) -> tuple[float, float] | None:
        """Return the seconds lost in summing gradients since the last call; None: not known.

        Communication begins when the last process comes. The others wait before; theirs is the mean
        over all processes.
        """
        return 0.0, 0.0

    def count_update(self, batches: Sequence[Batch], seconds: float) -> None:
        """Count the tokens and seconds of an update in this process, for `speed`."""

    def speed(self) -> dict[str, float]:
        """Return scalars to log about the updates since the last call; all processes call this."""
        return {}

    def gather(self, tensors: Weights) -> Weights:
        """Return whole tensors in the main process, of which each process may hold a part."""
        return tensors

    def gather_weights(self, run: "Run") -> None:
        """Update what `gathered` returns; all processes call this."""

    def gathered(self, run: "Run") -> GatheredModel:
        """Return the model and its whole weights in the main process."""
        trained = trained_weights(run.model, run.optimizer)
        return GatheredModel(run.model, trained, run.ema.weights if run.ema else trained)

    def saver(self, saver: "Saver", run: "Run") -> "Saver":
        """Return the saver that this process uses; `saver` writes in the main process."""
        return saver


class DataParallel(SingleProcess):
    """All processes apply the same updates to the same model (gloo on CPUs, nccl on GPUs)."""

    def __init__(self, cpu_group: distributed.ProcessGroup, threads: int) -> None:
        """`cpu_group`: for numbers and objects; `threads`: of all processes of this machine."""
        self.rank, self.world_size = distributed.get_rank(), distributed.get_world_size()
        self._cpu_group, self._threads = cpu_group, threads
        self._seconds_in_all_reduce: list[float] = []
        self._tokens, self._seconds = 0, 0.0  # of this process since the last call of `speed`

    def shard(self, batch: Batch) -> Batch:
        return batch.shard(self.world_size, self.rank)

    def all_reduce_sum(self, value: float) -> float:
        return self._reduced(value, distributed.ReduceOp.SUM)

    def all_reduce_max(self, value: float) -> float:
        return self._reduced(value, distributed.ReduceOp.MAX)

    def _reduced(self, value: float, operation: "distributed.ReduceOp.RedOpType") -> float:
        numbers = torch.tensor([value], dtype=torch.float64)
        distributed.all_reduce(numbers, operation, group=self._cpu_group)
        return float(numbers)

    def broadcast(self, value: Value) -> Value:
        values = [value]
        distributed.broadcast_object_list(values, src=0, group=self._cpu_group)
        return values[0]

    def all_gather(self, value: Value) -> list[Value]:
        values = [value] * self.world_size
        distributed.all_gather_object(values, value, group=self._cpu_group)
        return values

    def in_main(self, action: Callable[[], Value]) -> Value | None:
        result, error = None, None
        if self.is_main:
            try:
                result = action()
            except (UserError, Interrupted) as raised:
                error = raised
        if (error := self.broadcast(error)) is not None:
            raise error
        return result

    def all_threads(self) -> AbstractContextManager[None]:
        return use_threads(max(torch.get_num_threads(), self._threads))

    def sum_gradients(
        self, loss: nn.Module, batches: Sequence[Batch], num_losses: int, accumulate: Accumulate
    ) -> Accumulated:
        """As in one process, by a single all-reduce, equal to the last bit in all processes.

        It carries the gradients, which are views of one tensor, the losses, and for each batch the
        number of processes that it was too large for: none waits for another that has left.
        """
        parameters = [p for p in loss.parameters() if p.requires_grad]
        sizes = [p.numel() for p in parameters]
        sums = torch.zeros(sum(sizes) + num_losses + len(batches), device=parameters[0].device)
        *gradients, losses_L, failures_N = torch.split(sums, [*sizes, num_losses, len(batches)])
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.view_as(parameter)
        losses, failed = accumulate()
        if failed is None:
            losses_L.copy_(torch.tensor(losses))
        else:
            failures_N[failed] = 1
        started = seconds_now(sums.device)
        distributed.all_reduce(sums)
        self._seconds_in_all_reduce.append(seconds_now(sums.device) - started)
        too_large = failures_N.nonzero()
        return losses_L.tolist(), int(too_large[0]) if len(too_large) else None

    def waiting_and_communication(self) -> tuple[float, float] | None:
        seconds, self._seconds_in_all_reduce = self._seconds_in_all_reduce, []
        everyone = self.all_gather(seconds)
        communication = sum(map(min, zip(*everyone, strict=True)))
        return sum(map(sum, everyone)) / len(everyone) - communication, communication

    def count_update(self, batches: Sequence[Batch], seconds: float) -> None:
        self._tokens += sum(self.shard(batch).num_tokens for batch in batches)
        self._seconds += seconds

    def speed(self) -> dict[str, float]:
        """Return what the processes lose to one another, and the speed of each in tokens a second.

        `communication`: the fraction of time in which gradients are summed after the last process
        has computed its own; `waiting`: in which the others, on average, wait for it.
        """
        own = (self._tokens, self._seconds, sum(self._seconds_in_all_reduce))
        self._tokens, self._seconds = 0, 0.0
        if (lost := self.waiting_and_communication()) is None:
            return {}
        waiting, communication = lost
        everyone = self.all_gather(own)
        total = max(seconds for _, seconds, _ in everyone)
        return {"waiting": waiting / total, "communication": communication / total} | {
            f"processes/{rank}/tokens_per_second": tokens / (seconds - exchanged)
            for rank, (tokens, seconds, exchanged) in enumerate(everyone)
        }


def seconds_now(device: torch.device) -> float:
    """Return the time, on a GPU after all queued work has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
