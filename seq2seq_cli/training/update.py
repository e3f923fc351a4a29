"""One update of the model: gradients of one or more batches, and the optimizer's step."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from seq2seq_cli.config import TrainingConfig
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import UserError
from seq2seq_cli.training.batch_sizes import BatchSizes, shape_of
from seq2seq_cli.training.memory import free_memory, is_out_of_memory
from seq2seq_cli.training.workers import Workers, without_exchange

NONE = -1  # no part of a batch failed


class Update(NamedTuple):
    """What one optimizer step saw; it was made if all of that is finite."""

    loss: float  # nats, summed over the target tokens, label smoothing included
    grad_norm: float  # before clipping

    @property
    def is_made(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def train_step(
    batch_loss: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    config: TrainingConfig,
    step: int,
    workers: Workers,
    sizes: BatchSizes | None = None,
) -> Update:
    """One update from one or more batches: the summed loss divided once, by all their tokens.

    `batch_loss` is what `workers.parallel` made of a BatchLoss. An update that is not finite is not
    made; its gradients stay for who wants to know why. Raises UserError if memory does not suffice.
    `sizes`: what earlier updates learnt of it.
    """
    batch_loss.train()
    sizes = sizes or BatchSizes()
    loss = compute_gradients(batch_loss, batches, config.seed, step, workers, sizes)
    parameters = list(batch_loss.parameters())
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    update = Update(loss, norm.item())
    if update.is_made:
        nn.utils.clip_grads_with_norm_(parameters, config.max_grad_norm or math.inf, norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return update


def compute_gradients(
    batch_loss: nn.Module,
    batches: Sequence[Batch],
    seed: int,
    step: int,
    workers: Workers,
    sizes: BatchSizes,
) -> float:
    """The gradients of an update, the same for all workers; returns the loss, summed.

    When a batch does not fit into memory, it is split and everything begins anew, so that nothing
    counts twice. As soon as workers exchange gradients, none may fail alone: they compute batches
    of a new size without, and agree before they exchange.
    """
    num_tokens = sum(batch.num_tokens for batch in batches)
    failed = 0
    while failed != NONE:
        parts = sizes.cut(batches)
        is_new = workers.count > 1 and not sizes.have_fitted(parts)
        batch_loss.zero_grad(set_to_none=True)
        seed_dropout(seed, step, workers.rank)
        loss, failed = try_batches(batch_loss, parts, num_tokens, workers, exchanges=not is_new)
        if is_new:
            failed = int(workers.greatest(failed))
        elif failed != NONE and workers.count > 1:
            raise UserError(
                f"step {step:,}: out of memory with {shape_of(parts[failed])}, as large as others "
                "before it; the last checkpoint stands, and the same command continues"
            )
        if failed != NONE:
            batch_loss.zero_grad(set_to_none=True)
            free_memory()
            sizes.note_failure(parts[failed], step, workers.count)
    if is_new:
        sizes.note_fit(parts)
        batch_loss(parts[0].every(1, len(parts[0].src_BS))).backward()  # nothing, but exchanged
    return workers.summed(loss)


def try_batches(
    batch_loss: nn.Module,
    batches: Sequence[Batch],
    num_tokens: int,
    workers: Workers,
    exchanges: bool = True,
) -> tuple[float, int]:
    """Add up this worker's gradients of all batches; its loss, and which batch was too large.

    `exchanges`: with the last batch the workers average their gradients.
    """
    total = 0.0
    for number, batch in enumerate(batches):
        is_last = number == len(batches) - 1
        try:
            with nullcontext() if exchanges and is_last else without_exchange(batch_loss):
                loss = batch_loss(workers.share(batch))
                (loss * (workers.count / num_tokens)).backward()
            total += loss.item()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return math.nan, number
    return total, NONE


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """Noise of an update that depends on nothing before it, other for every worker."""
    sequence = np.random.SeedSequence([seed, step, rank])
    torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
