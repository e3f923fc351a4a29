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
from seq2seq_cli.training.workers import Workers, without_exchange


class Update(NamedTuple):
    """What one optimizer step saw."""

    loss: float  # nats, summed over the target tokens, label smoothing included
    grad_norm: float  # before clipping


def train_step(
    batch_loss: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    config: TrainingConfig,
    step: int,
    workers: Workers,
) -> Update:
    """One update from one or more batches: the summed loss divided once, by all their tokens.

    `batch_loss` is what `workers.parallel` made of a BatchLoss. Raises UserError before the update
    if the gradients are not finite.
    """
    batch_loss.train()
    seed_dropout(config.seed, step, workers.rank)
    num_tokens = sum(batch.num_tokens for batch in batches)
    total = 0.0
    for number, batch in enumerate(batches, start=1):
        mine = workers.share(batch)
        with nullcontext() if number == len(batches) else without_exchange(batch_loss):
            loss = batch_loss(mine)
            (loss * (workers.count / num_tokens)).backward()
        total += loss.item()
    total = workers.summed(total)
    max_norm = config.max_grad_norm or math.inf
    grad_norm = nn.utils.clip_grad_norm_(batch_loss.parameters(), max_norm).item()
    if not math.isfinite(grad_norm) or not math.isfinite(total):
        raise UserError(
            f"step {step:,}: loss {total / num_tokens} with gradient norm {grad_norm}; the update "
            "is not made and the last checkpoint stands; lower training.lr, warm up longer, or set "
            "training.precision: fp32, in another --run-dir"
        )
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return Update(total, grad_norm)


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """Noise of an update that depends on nothing before it, other for every worker."""
    sequence = np.random.SeedSequence([seed, step, rank])
    torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
