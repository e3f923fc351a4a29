"""One update of the model: the gradients of one or more batches, and the optimizer's step."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import torch
from torch import nn

from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import UserError
from seq2seq_cli.training.losses.cross_entropy import BatchLoss
from seq2seq_cli.training.oom import (
    describe_shape,
    free_memory,
    is_out_of_memory,
    record_oom,
    split_batches,
)
from seq2seq_cli.training.parallel.distributed import Ranks
from seq2seq_cli.training.run import Run

if TYPE_CHECKING:  # its import takes time
    from torch.distributed.tensor import DTensor


class LossSums(NamedTuple):
    """Nats, summed over the target tokens of an update, label smoothing included."""

    loss: float
    divergence: float  # its part that is between two passes


class StepResult(NamedTuple):
    """Loss and gradient norm of one optimizer step, which was applied if both are finite."""

    loss: float  # as LossSums
    grad_norm: float  # before gradient clipping
    divergence: float = 0.0  # as LossSums

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def train_step(run: Run, batches: Sequence[Batch]) -> StepResult:
    """Update the model from one or more batches (gradient accumulation).

    The loss is summed over all batches and divided once, by all their target tokens. An update with
    a NaN or infinite loss or gradient is not applied; its gradients are kept for the diagnosis.
    Raises UserError when out of memory even with the batches split.
    """
    run.loss.train()
    loss, divergence = compute_gradients(run, batches)
    parameters = list(run.model.parameters())
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if run.is_sharded:
        norm = cast("DTensor", norm).full_tensor()
    result = StepResult(loss, norm.item(), divergence)
    if result.is_finite:
        max_norm = run.config.training.max_grad_norm or math.inf
        nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        run.optimizer.step()
        if run.ema is not None:
            run.ema.update(run.model, run.state.step + 1)
        run.optimizer.zero_grad(set_to_none=True)
    return result


def compute_gradients(run: Run, batches: Sequence[Batch]) -> LossSums:
    """Compute the gradients of an update, equal in all processes; return the summed loss.

    When a batch runs out of memory in any process, it is split and the update starts over, so that
    no sentence counts twice.
    """
    num_tokens = sum(batch.num_tokens for batch in batches)
    accumulate = accumulate_gradients if run.ranks.world_size == 1 else all_reduce_gradients
    accumulate = reduce_scatter_gradients if run.is_sharded else accumulate
    while True:
        parts = split_batches(batches, run.state.too_large)
        run.loss.zero_grad(set_to_none=True)
        seed_dropout(run.config.training.seed, run.state.step + 1, run.ranks.rank)
        sums, failed = accumulate(run.loss, parts, num_tokens, run.ranks)
        if failed is None:
            return sums
        run.loss.zero_grad(set_to_none=True)
        free_memory()
        record_oom(run, parts[failed])


def all_reduce_gradients(
    batch_loss: BatchLoss, batches: Sequence[Batch], num_tokens: int, ranks: Ranks
) -> tuple[LossSums, int | None]:
    """Call `accumulate_gradients` in every process, each with its shard, and sum the results.

    A single all-reduce carries everything: the gradients, which are views of one tensor, the loss,
    and for each batch the number of processes that it was too large for. So no process waits in a
    collective that another one has left.
    """
    parameters = [p for p in batch_loss.parameters() if p.requires_grad]
    sizes = [p.numel() for p in parameters]
    sums = torch.zeros(sum(sizes) + 2 + len(batches), device=parameters[0].device)
    *gradients, losses_2, failures_N = torch.split(sums, [*sizes, 2, len(batches)])
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.view_as(parameter)
    losses, failed = accumulate_gradients(batch_loss, batches, num_tokens, ranks)
    if failed is None:
        losses_2.copy_(torch.tensor(losses))
    else:
        failures_N[failed] = 1
    ranks.all_reduce(sums)
    too_large = failures_N.nonzero()
    return LossSums(*losses_2.tolist()), int(too_large[0]) if len(too_large) else None


def reduce_scatter_gradients(
    batch_loss: BatchLoss, batches: Sequence[Batch], num_tokens: int, ranks: Ranks
) -> tuple[LossSums, None]:
    """Call `accumulate_gradients` in every process, each with its shard of the batches.

    The model is sharded, and its backward pass sums the gradients. As every layer waits for all
    processes, none can start over. Raises UserError when out of memory.
    """
    losses, failed = accumulate_gradients(batch_loss, batches, num_tokens, ranks)
    if failed is not None:
        raise UserError(
            f"out of memory with {describe_shape(batches[failed])}, which training.shard: full "
            "does not split; lower training.tokens_per_batch; the same command resumes from the "
            "last checkpoint"
        )
    sums = torch.tensor(losses, device=batch_loss.model.device)
    ranks.all_reduce(sums)
    return LossSums(*sums.tolist()), None


def accumulate_gradients(
    batch_loss: BatchLoss, batches: Sequence[Batch], num_tokens: int, ranks: Ranks
) -> tuple[LossSums, int | None]:
    """Add up this process's gradients of all batches.

    Returns its loss, and the index of the batch that ran out of memory, if one did.
    """
    total = divergence = 0.0
    for index, batch in enumerate(batches):
        try:
            losses = batch_loss(ranks.shard(batch))
            (losses.total / num_tokens).backward()
            total += losses.total.item()
            divergence += float(losses.divergence)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return LossSums(math.nan, math.nan), index
    return LossSums(total, divergence), None


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """Seed the dropout of one update in one process, independently of everything before it."""
    sequence = np.random.SeedSequence([seed, step, rank])
    torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
