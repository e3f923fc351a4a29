"""One update of the model: gradients of one or more batches, and the optimizer's step."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from seq2seq_cli.config.schema import TrainingConfig
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.training.distributed import Ranks
from seq2seq_cli.training.oom import BatchSizes, free_memory, is_out_of_memory


class StepResult(NamedTuple):
    """Loss and gradient norm of one optimizer step, which was applied if both are finite."""

    loss: float  # nats, summed over the target tokens, label smoothing included
    grad_norm: float  # before clipping

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def train_step(
    batch_loss: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    config: TrainingConfig,
    step: int,
    ranks: Ranks,
    sizes: BatchSizes | None = None,
) -> StepResult:
    """One update from one or more batches: the summed loss divided once, by all their tokens.

    `batch_loss` is a BatchLoss, of the same weights in all processes. An update with a NaN or
    infinite loss or gradient is not applied; its gradients are kept for the diagnosis. `sizes` are
    the batch sizes that ran out of memory before. Raises UserError if memory does not suffice.
    """
    batch_loss.train()
    sizes = sizes or BatchSizes()
    loss = compute_gradients(batch_loss, batches, config.seed, step, ranks, sizes)
    parameters = list(batch_loss.parameters())
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    update = StepResult(loss, norm.item())
    if update.is_finite:
        nn.utils.clip_grads_with_norm_(parameters, config.max_grad_norm or math.inf, norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return update


def compute_gradients(
    batch_loss: nn.Module,
    batches: Sequence[Batch],
    seed: int,
    step: int,
    ranks: Ranks,
    sizes: BatchSizes,
) -> float:
    """The gradients of an update, the same for all processes; returns the loss, summed.

    When a batch does not fit into the memory of a process, it is split and everything begins anew,
    so that nothing counts twice.
    """
    num_tokens = sum(batch.num_tokens for batch in batches)
    while True:
        parts = sizes.split(batches)
        batch_loss.zero_grad(set_to_none=True)
        seed_dropout(seed, step, ranks.rank)
        if ranks.world_size == 1:
            loss, failed = accumulate_gradients(batch_loss, parts, num_tokens, ranks)
        else:
            loss, failed = accumulate_gradients_together(batch_loss, parts, num_tokens, ranks)
        if failed is None:
            return loss
        batch_loss.zero_grad(set_to_none=True)
        free_memory()
        sizes.record_oom(parts[failed], step, ranks.world_size)


def accumulate_gradients_together(
    batch_loss: nn.Module, batches: Sequence[Batch], num_tokens: int, ranks: Ranks
) -> tuple[float, int | None]:
    """`accumulate_gradients` in every process, each with its sentences, and an all-reduce.

    One all-reduce for everything: the gradients, which lie one after the other, the loss, and for
    each batch how many processes it was too large for. So none waits for one that has failed.
    """
    parameters = [p for p in batch_loss.parameters() if p.requires_grad]
    sizes = [p.numel() for p in parameters]
    sums = torch.zeros(sum(sizes) + 1 + len(batches), device=parameters[0].device)
    *gradients, loss_1, failures_N = torch.split(sums, [*sizes, 1, len(batches)])
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.view_as(parameter)
    loss, failed = accumulate_gradients(batch_loss, batches, num_tokens, ranks)
    if failed is None:
        loss_1.fill_(loss)
    else:
        failures_N[failed] = 1
    ranks.all_reduce(sums)
    too_large = failures_N.nonzero()
    return loss_1.item(), int(too_large[0]) if len(too_large) else None


def accumulate_gradients(
    batch_loss: nn.Module, batches: Sequence[Batch], num_tokens: int, ranks: Ranks
) -> tuple[float, int | None]:
    """Add up this process's gradients of all batches; its loss, and which batch was too large."""
    total = 0.0
    for number, batch in enumerate(batches):
        try:
            loss = batch_loss(ranks.shard(batch))
            (loss / num_tokens).backward()
            total += loss.item()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return math.nan, number
    return total, None


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """Noise of an update that depends on nothing before it, other for every process."""
    sequence = np.random.SeedSequence([seed, step, rank])
    torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
