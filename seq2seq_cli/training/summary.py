"""What a run is about to do, in a page: printed by `check` and at the start of `train`."""

import torch

from seq2seq_cli.config import Config
from seq2seq_cli.data.store import SideFacts
from seq2seq_cli.evaluation import HeldOut
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.model.weights import count_parameters
from seq2seq_cli.text.parallel import Audit
from seq2seq_cli.training.preparation import Prepared, prepare
from seq2seq_cli.training.workers import choose_workers


def preview(config: Config) -> str:
    """The summary of a run that does not begin. Raises UserError for what would stop it."""
    num_workers = choose_workers(config)
    prepared = prepare(config, num_workers=num_workers)
    return summarize(prepared.config, prepared, num_workers)


def summarize(config: Config, prepared: Prepared, num_workers: int) -> str:
    """One aligned line for each thing worth knowing before training time is spent."""
    rows = [("training text", _training_text(config, prepared))]
    if prepared.valid is not None and prepared.valid_audit is not None:
        rows.append(("validation text", _held_out_text(prepared.valid, prepared.valid_audit)))
    rows += [
        ("tokens", _tokens(prepared)),
        ("vocabulary", _vocabulary(config, prepared)),
        ("model", _model(config)),
        ("parameters", _parameters(prepared.model)),
        ("training", _training(config, prepared)),
        ("device", _device(prepared, num_workers)),
    ]
    return "\n".join(f"{label:<16} {text}" for label, text in rows)


def _training_text(config: Config, prepared: Prepared) -> str:
    audit = prepared.train_audit
    assert audit is not None, "only the worker that read the text sums it up"
    dropped = [
        (audit.empty, "with an empty side"),
        (prepared.train.facts.too_long, f"over {config.data.max_length:,} tokens"),
        (audit.bad, "unreadable"),
    ]
    reasons = ", ".join(f"{count:,} {reason}" for count, reason in dropped if count)
    return f"{len(prepared.train):,} pairs; dropped: {reasons or 'none'}"


def _held_out_text(valid: HeldOut, audit: Audit) -> str:
    facts = valid.store.facts
    text = f"{len(valid.pairs):,} pairs"
    text += f", {audit.bad:,} unreadable left out" if audit.bad else ""
    text += f", {audit.empty:,} with an empty side" if audit.empty else ""
    unknown = facts.src.unknown + facts.tgt.unknown
    text += f"; {unknown / (facts.src.tokens + facts.tgt.tokens):.2%} unknown tokens"
    if audit.overlap:
        text += f"; WARNING: {audit.overlap:,} source lines stand in the training text too"
    return text


def _tokens(prepared: Prepared) -> str:
    def side(facts: SideFacts) -> str:
        mean = facts.tokens / len(prepared.train)
        return f"{facts.tokens:,} (mean {mean:.1f}, longest {facts.longest:,})"

    return f"source {side(prepared.train.facts.src)}, target {side(prepared.train.facts.tgt)}"


def _vocabulary(config: Config, prepared: Prepared) -> str:
    tokenizers = prepared.tokenizers
    if tokenizers.is_shared:
        return f"{len(tokenizers.src):,} {config.tokenizer.kind}, shared by both sides"
    sizes = f"source {len(tokenizers.src):,}, target {len(tokenizers.tgt):,}"
    return f"{sizes} {config.tokenizer.kind}"


def _model(config: Config) -> str:
    shape = config.model
    return (
        f"{shape.layers.encoder}+{shape.layers.decoder} layers, d_model {shape.d_model}, "
        f"d_ff {shape.d_ff}, {shape.heads} heads, {shape.norm}-norm, dropout {shape.dropout:g}"
    )


def _parameters(model: Transformer) -> str:
    counts = count_parameters(model)
    parts = ", ".join(f"{part} {count:,}" for part, count in counts.items() if count)
    tied = "" if counts["projection"] else "; projection tied"
    return f"{sum(counts.values()):,} ({parts}{tied})"


def _training(config: Config, prepared: Prepared) -> str:
    training, epochs = config.training, prepared.epochs
    passes = prepared.total_steps / prepared.updates_per_epoch
    return (
        f"{prepared.total_steps:,} updates, {passes:.1f} epochs of {len(epochs):,} batches "
        f"({epochs.padding():.1%} padding); {training.optimizer}, lr {training.lr:g}, "
        f"{training.schedule} after {training.warmup_steps:,} updates of warm-up"
    )


def _device(prepared: Prepared, num_workers: int) -> str:
    threads = torch.get_num_threads()
    if num_workers > 1:
        where = f"{num_workers} workers"
    elif prepared.device.type == "cuda":
        where = torch.cuda.get_device_name(prepared.device)
    else:
        where = f"{threads} thread{'s' * (threads > 1)}"
    return f"{prepared.device.type} ({where}), {'bf16' if prepared.use_bf16 else 'fp32'}"
