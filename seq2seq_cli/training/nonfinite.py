"""When loss or gradient is not finite: skip the update, or stop and say where it began."""

import functools
import itertools
import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from seq2seq_cli.config.schema import MOST_SKIPPED, Config
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.packing import Packed, Padded
from seq2seq_cli.text.tokenizer import Tokenizers
from seq2seq_cli.training.checkpoint import TrainingState
from seq2seq_cli.training.distributed import Ranks
from seq2seq_cli.training.loss import BatchLoss
from seq2seq_cli.training.oom import BatchSizes, shape_of
from seq2seq_cli.training.setup import Prepared
from seq2seq_cli.training.step import StepResult, seed_dropout

logger = logging.getLogger(__name__)

_SHOWN = 3  # sentences, parameters, modules
_WIDTH = 70  # characters of a sentence


class NonfiniteSource(NamedTuple):
    """Where the first number that is not finite came from."""

    module: str | None  # its dotted name; None: from no output of a module
    batch: list[str]  # its shape and first sentences


def handle_nonfinite(
    update: StepResult,
    batches: Sequence[Batch],
    config: Config,
    state: TrainingState,
    prepared: Prepared,
    ranks: Ranks,
    sizes: BatchSizes,
) -> None:
    """Answer to an update that was not made, from its gradients and a repetition of its outputs.

    With `training.on_nonfinite: skip` a warning, until too many in a row were skipped. Raises
    UserError otherwise: the same for all processes.
    """
    step = state.step + 1
    loss = update.loss / sum(batch.num_tokens for batch in batches)
    what = f"step {step:,}: loss {loss:g}, gradient norm {update.grad_norm:g}"
    state.skipped_in_a_row += 1
    if config.training.on_nonfinite == "skip" and state.skipped_in_a_row <= MOST_SKIPPED:
        logger.warning(
            f"{what}: the update is skipped ({state.skipped_in_a_row} in a row, at most "
            f"{MOST_SKIPPED})"
        )
        return
    origins = ranks.all_gather(find_nonfinite_source(config, prepared, batches, step, ranks, sizes))
    origin = next((found for found in origins if found.module), origins[0])
    report = "\n".join([what, *_report(origin, prepared.model), _advice(config)])
    logger.debug("%s", report)
    raise UserError(report if ranks.is_main else what)


def find_nonfinite_source(
    config: Config,
    prepared: Prepared,
    batches: Sequence[Batch],
    step: int,
    ranks: Ranks,
    sizes: BatchSizes,
) -> NonfiniteSource:
    """Repeat this process's part of an update, with the same noise, and look at every output."""
    training = config.training
    batch_loss = BatchLoss(prepared.model, training.label_smoothing, prepared.use_bf16)
    batch_loss.layout = Padded if training.compile else Packed
    found: list[str] = []

    def look(name: str, module: nn.Module, inputs: object, output: object) -> None:
        if not found and _is_finite(inputs) and not _is_finite(output):
            found.append(name)

    hooks = [
        module.register_forward_hook(functools.partial(look, name))
        for name, module in prepared.model.named_modules()
    ]
    shares = [ranks.shard(part) for part in sizes.split(batches)]
    seed_dropout(training.seed, step, ranks.rank)
    try:
        with torch.no_grad():
            for share in shares:
                loss = batch_loss(share)
                if found or not _is_finite(loss):
                    name = found[0] if found else "projection"
                    return NonfiniteSource(name, _describe(share, prepared.tokenizers))
    finally:
        for hook in hooks:
            hook.remove()
    return NonfiniteSource(None, _describe(shares[0], prepared.tokenizers))


def _is_finite(values: object) -> bool:
    """All numbers of all tensors."""
    return all(
        bool(leaf.isfinite().all()) for leaf in tree_leaves(values) if isinstance(leaf, Tensor)
    )


def _report(origin: NonfiniteSource, model: nn.Module) -> list[str]:
    began = (
        f"{origin.module}: its output is not finite, though its input is"
        if origin.module
        else "the backward pass: all outputs of modules are finite"
    )
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    bad = [name for name, gradient in gradients.items() if not _is_finite(gradient)]
    names = ", ".join(bad[:_SHOWN]) + (", ..." if len(bad) > _SHOWN else "")
    greatest = ", ".join(f"{name} {norm:.3g}" for name, norm in _greatest_norms(gradients))
    return [
        f"  began in    {began}",
        f"  gradients   not finite: {len(bad)} of {len(gradients)} parameters ({names})",
        f"  norms       greatest finite ones: {greatest or 'none'}",
        f"  in          {origin.batch[0]}",
        *(f"              {line}" for line in origin.batch[1:]),
    ]


def _greatest_norms(gradients: dict[str, Tensor]) -> list[tuple[str, float]]:
    """By module; those that are finite."""
    norms = []
    owners = itertools.groupby(gradients.items(), key=lambda item: item[0].rpartition(".")[0])
    for owner, items in owners:
        norm = nn.utils.get_total_norm([gradient for _, gradient in items]).item()
        norms += [(owner, norm)] if math.isfinite(norm) else []
    return sorted(norms, key=lambda named: -named[1])[:_SHOWN]


def _advice(config: Config) -> str:
    skip = "; or let this run go on with --set training.on_nonfinite=skip"
    return (
        "The update is not made and the last checkpoint stands. Lower training.lr, warm up longer, "
        "or set training.precision: fp32, in another --run-dir"
        + skip
        * (config.training.on_nonfinite == "stop")
    )


def _describe(batch: Batch, tokenizers: Tokenizers) -> list[str]:
    pairs = zip(batch.src_BS.tolist(), batch.labels_BT.tolist(), strict=True)
    return [
        shape_of(batch),
        *(
            f"{_cut(tokenizers.src.to_text(src))} → "
            f"{_cut(tokenizers.tgt.to_text([label for label in labels if label >= 0]))}"
            for src, labels in itertools.islice(pairs, _SHOWN)
        ),
    ]


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
