"""One update of the model: the gradients of one or more batches, and the optimizer's step.

Batch shapes that ran out of memory are remembered, and such batches are split in advance. After a
NaN or infinite loss or gradient, the update is skipped, or a report says where they began.
"""

import functools
import gc
import itertools
import logging
import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from seq2seq_cli.config.schema import MOST_SKIPPED
from seq2seq_cli.console import counted
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.packing import Padded
from seq2seq_cli.model.weights import Weights
from seq2seq_cli.tokenizers.tokenizer import Tokenizers
from seq2seq_cli.training.losses.consistency import build_loss
from seq2seq_cli.training.losses.cross_entropy import BatchLoss
from seq2seq_cli.training.run import BatchShape, Run

logger = logging.getLogger(__name__)

_OUT_OF_MEMORY = ("DefaultCPUAllocator", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_SHOWN = 3  # sentences, parameters, modules


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


def split_batches(batches: Iterable[Batch], too_large: Sequence[BatchShape]) -> list[Batch]:
    """Return the same pairs in batches that are not known to be too large, halving the others."""
    parts = []
    for batch in batches:
        if any(_covers(_shape(batch), failed) for failed in too_large):
            parts += split_batches([batch.shard(2, 0), batch.shard(2, 1)], too_large)
        else:
            parts.append(batch)
    return parts


def record_oom(run: Run, batch: Batch) -> None:
    """Remember the shape of a batch that ran out of memory. UserError if it cannot be split."""
    state, shape = run.state, _shape(batch)
    what = f"step {state.step + 1:,}: out of memory with {describe_shape(batch)}"
    if shape[0] <= run.parallel.world_size:
        raise UserError(
            f"{what}, which cannot be split; lower data.max_length, or make the model smaller "
            "(model.layers, d_model, d_ff)"
        )
    logger.log(
        logging.DEBUG if state.too_large else logging.WARNING,
        f"{what}: it is split in half, and so are later ones of this size; the gradient "
        "stays the same, but updates take longer (training.tokens_per_batch: auto avoids it)",
    )
    state.too_large = [seen for seen in state.too_large if not _covers(seen, shape)] + [shape]


def describe_shape(batch: Batch) -> str:
    sentences, src_positions = batch.src_BS.shape
    return (
        f"a batch of {counted(sentences, 'sentence')}, {src_positions:,} source and "
        f"{batch.labels_BT.size(1):,} target positions each"
    )


def _shape(batch: Batch) -> BatchShape:
    return [len(batch.src_BS), max(batch.src_BS.size(1), batch.labels_BT.size(1))]


def _covers(a: BatchShape, b: BatchShape) -> bool:
    """Return True if `a` has at least as many sentences as `b`, and is at least as long."""
    return a[0] >= b[0] and a[1] >= b[1]


def is_out_of_memory(error: Exception) -> bool:
    """Return True if an allocation failed on a GPU or here. (Linux mostly kills the process.)"""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def free_memory() -> None:
    """Return unused memory to the system or the GPU."""
    gc.collect()
    torch.cuda.empty_cache()


def handle_nonfinite(run: Run, batches: Sequence[Batch], result: StepResult) -> None:
    """Skip the update with a warning, or diagnose it and stop (`training.on_nonfinite`).

    The diagnosis needs the update's gradients, and repeats its forward passes. Raises UserError, in
    all processes alike, to stop, or when too many updates in a row were skipped.
    """
    state, action = run.state, run.config.training.on_nonfinite
    loss = result.loss / sum(batch.num_tokens for batch in batches)
    what = f"step {state.step + 1:,}: loss {loss:g}, gradient norm {result.grad_norm:g}"
    state.skipped_in_a_row += 1
    if action == "skip" and state.skipped_in_a_row <= MOST_SKIPPED:
        logger.warning(
            f"{what}: the update is skipped ({state.skipped_in_a_row} in a row, at most "
            f"{MOST_SKIPPED})"
        )
        return
    own = {n: p.grad for n, p in run.model.named_parameters() if p.grad is not None}
    gradients = run.parallel.gather(own)  # before the forward passes, which gather the weights
    sources = run.parallel.all_gather(find_nonfinite_source(run, batches))
    module, batch = next((source for source in sources if source[0]), sources[0])
    advice = (
        "The update was not applied, and the last checkpoint is unaffected. Lower training.lr, "
        "warm up longer, or set training.precision: fp32, in another --run-dir"
    )
    if action == "stop":
        advice += "; or skip such updates with --set training.on_nonfinite=skip"
    report = "\n".join([what, *_report(module, batch, gradients), advice])
    logger.debug("%s", report)
    raise UserError(report if run.parallel.is_main else what)


def find_nonfinite_source(run: Run, batches: Sequence[Batch]) -> tuple[str | None, list[str]]:
    """Repeat this process's forward passes with the same dropout, and check every output.

    Returns the dotted name of the first module whose output is not finite, None if all are; and the
    shape and first sentences of its batch.
    """
    training, tokenizers = run.config.training, run.data.tokenizers
    batch_loss = run.loss  # if it is sharded, it gathers the weights
    if training.compile:
        uncompiled = training.model_copy(update={"compile": False})
        batch_loss = build_loss(run.model, uncompiled, run.device)
        batch_loss.layout = Padded
    modules: list[str] = []  # the first whose output is not finite

    def check(name: str, module: nn.Module, inputs: object, output: object) -> None:
        if not modules and _is_finite(inputs) and not _is_finite(output):
            modules.append(name)

    shards = [run.parallel.shard(part) for part in split_batches(batches, run.state.too_large)]
    seed_dropout(batch_loss, training.seed, run.state.step + 1, run.parallel.rank)
    source = None
    with ExitStack() as hooks:
        for name, module in run.model.named_modules():
            hooks.enter_context(module.register_forward_hook(functools.partial(check, name)))
        for shard in shards:  # all of them: other processes may wait for this one's weights
            loss = batch_loss(shard)  # with gradients, as without them dropout draws other numbers
            if source is None and (modules or not _is_finite(loss)):
                source = (modules or ["projection"])[0], _describe(shard, tokenizers)
    return source or (None, _describe(shards[0], tokenizers))


def _is_finite(values: object) -> bool:
    """Return True if all numbers of all tensors are finite."""
    return all(
        bool(leaf.isfinite().all()) for leaf in tree_leaves(values) if isinstance(leaf, Tensor)
    )


def _report(module: str | None, batch: list[str], gradients: Weights) -> list[str]:
    began = "the backward pass: all outputs of modules are finite"
    if module:
        began = f"{module}: its output is not finite, though its input is"
    bad = [name for name, gradient in gradients.items() if not _is_finite(gradient)]
    names = ", ".join(bad[:_SHOWN]) + (", ..." if len(bad) > _SHOWN else "")
    norms: dict[str, float] = {}
    for name, items in itertools.groupby(gradients, lambda name: name.rpartition(".")[0]):
        norm = nn.utils.get_total_norm([gradients[item] for item in items]).item()
        if math.isfinite(norm):
            norms[name] = norm
    shown = sorted(norms, key=norms.__getitem__, reverse=True)[:_SHOWN]
    largest = ", ".join(f"{name} {norms[name]:.3g}" for name in shown)
    return [
        f"  began in    {began}",
        f"  gradients   not finite: {len(bad)} of {len(gradients)} parameters ({names})",
        f"  norms       largest finite ones: {largest or 'none'}",
        f"  in          {batch[0]}",
        *(f"              {line}" for line in batch[1:]),
    ]


def _describe(batch: Batch, tokenizers: Tokenizers) -> list[str]:
    pairs = zip(batch.src_BS.tolist(), batch.labels_BT.tolist(), strict=True)
    lines = [describe_shape(batch)]
    for src, labels in itertools.islice(pairs, _SHOWN):
        tgt = tokenizers.tgt.to_text([label for label in labels if label >= 0])
        lines.append(f"{short(tokenizers.src.to_text(src))} → {short(tgt)}")
    return lines
