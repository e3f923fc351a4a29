"""One update of the model: the gradients of one or more batches, and the optimizer's step."""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from seq2seq_cli.data.batches import Batch
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.training.losses.cross_entropy import BatchLoss
from seq2seq_cli.training.oom import free_memory, is_out_of_memory, record_oom, split_batches
from seq2seq_cli.training.run import Run


class StepResult(NamedTuple):
    """The result of an optimizer step, which was applied if loss and gradient norm are finite."""

    loss: float  # nats, summed over the target tokens of the update, label smoothing included
    grad_norm: float  # before gradient clipping
    metrics: dict[str, float]  # further sums of the loss, by name

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
    loss, *further = compute_gradients(run, batches)
    parameters = list(run.model.parameters())
    norm = run.parallel.grad_norm([p.grad for p in parameters if p.grad is not None])
    metrics = dict(zip(run.loss.metrics, further, strict=True))
    result = StepResult(loss, norm.item(), metrics)
    if result.is_finite:
        max_norm = run.config.training.max_grad_norm or math.inf
        nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        run.optimizer.step()
        if run.ema is not None:
            run.ema.update(run.model, run.state.step + 1)
        run.optimizer.zero_grad(set_to_none=True)
    return result


def compute_gradients(run: Run, batches: Sequence[Batch]) -> Sequence[float]:
    """Compute the gradients of an update; return the summed loss and its further metrics.

    After a batch that runs out of memory the update starts over, so that no sentence counts twice.
    """
    num_tokens = sum(batch.num_tokens for batch in batches)
    while True:
        parts = split_batches(batches, run.state.too_large)
        shards = [run.parallel.shard(part) for part in parts]
        run.loss.zero_grad(set_to_none=True)
        seed_dropout(run.loss, run.config.training.seed, run.state.step + 1, run.parallel.rank)
        accumulate = functools.partial(accumulate_gradients, run.loss, shards, num_tokens)
        num_sums = 1 + len(run.loss.metrics)
        sums, failed = run.parallel.sum_gradients(run.loss, parts, num_sums, accumulate)
        if failed is None:
            return sums
        run.loss.zero_grad(set_to_none=True)
        free_memory()
        record_oom(run, parts[failed])


def accumulate_gradients(
    batch_loss: BatchLoss, batches: Sequence[Batch], num_tokens: int
) -> tuple[list[float], int | None]:
    """Add up the gradients of all batches; return the sums of the loss and its further metrics.

    Also returns the index of the batch that ran out of memory, if one did.
    """
    sums = [0.0] * (1 + len(batch_loss.metrics))
    for index, batch in enumerate(batches):
        try:
            losses = batch_loss(batch)
            (losses.total / num_tokens).backward()
            values = (losses.total, *losses.metrics.values())
            sums = [total + value.item() for total, value in zip(sums, values, strict=True)]
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return sums, index
    return sums, None


def seed_dropout(loss: nn.Module, seed: int, step: int, rank: int) -> None:
    """Seed the dropout of one update, independently of everything before it.

    The keys of fused operations are the same in all processes; the seed of PyTorch's generator is
    not. `torch.manual_seed` is slow: it records a stack trace for devices that come later.
    """
    modules = [module for module in loss.modules() if isinstance(module, Dropout)]
    keys = np.random.SeedSequence([seed, step]).generate_state(len(modules), np.uint64)
    for module, key in zip(modules, keys, strict=True):
        module.key = int(key)
    of_process = np.random.SeedSequence([seed, step, rank])
    is_on_cpu = next(loss.parameters()).device.type == "cpu"
    set_seed = torch.default_generator.manual_seed if is_on_cpu else torch.manual_seed
    set_seed(int(of_process.generate_state(1, np.uint64)[0]))
