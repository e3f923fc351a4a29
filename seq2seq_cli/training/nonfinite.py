"""NaN or infinite loss or gradients: skips the update, or stops and reports where they began."""

import functools
import itertools
import logging
import math
from collections.abc import Sequence
from contextlib import ExitStack

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from seq2seq_cli.config.schema import MOST_SKIPPED
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.model.packing import Padded
from seq2seq_cli.model.weights import Weights
from seq2seq_cli.tokenizers.tokenizer import Tokenizers
from seq2seq_cli.training.losses.consistency import build_loss
from seq2seq_cli.training.oom import describe_shape, split_batches
from seq2seq_cli.training.run import Run
from seq2seq_cli.training.step import StepResult, seed_dropout

logger = logging.getLogger(__name__)

_SHOWN = 3  # sentences, parameters, modules


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
    report = "\n".join([what, *_report(result, module, batch, gradients), advice])
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


def _report(
    result: StepResult, module: str | None, batch: list[str], gradients: Weights
) -> list[str]:
    if module:
        began = f"{module}: its output is not finite, though its input is"
    elif math.isfinite(result.loss):
        began = "the backward pass: all outputs of modules are finite"
    else:
        began = "an operation that was not found: repeated, all outputs of modules are finite"
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
