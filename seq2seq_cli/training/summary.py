"""What a run is about to do, in a page: printed at the start of `train`, and first by `check`."""

from dataclasses import asdict
from typing import Any

import torch

from seq2seq_cli.config.schema import Config
from seq2seq_cli.data.cache import MEGABYTE, cache_folder, most_bytes, total_size
from seq2seq_cli.data.token_store import SideStats
from seq2seq_cli.evaluation import HeldOut
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.model.weights import count_parameters
from seq2seq_cli.text.corpus import CorpusCounts
from seq2seq_cli.training.setup import Prepared, limit_of_updates


def summarize(config: Config, prepared: Prepared, total_steps: int, num_processes: int) -> str:
    """One aligned line for each thing worth knowing before training time is spent.

    `total_steps`: updates of the whole run.
    """
    rows = [("training text", _training_text(config, prepared))]
    if prepared.valid is not None and prepared.valid_audit is not None:
        rows.append(("validation text", _held_out_text(prepared.valid, prepared.valid_audit)))
        rows.append(("validation", _validation(config)))
    rows += [
        ("tokens", _tokens(prepared)),
        ("vocabulary", _vocabulary(config, prepared)),
        ("model", _model(config)),
        ("parameters", _parameters(prepared.model)),
        ("training", _training(config, prepared, total_steps)),
        ("device", _device(prepared, num_processes)),
        ("cache", _cache(prepared)),
    ]
    return "\n".join(f"{label:<16} {text}" for label, text in rows)


def numbers(
    config: Config, prepared: Prepared, total_steps: int, num_processes: int
) -> dict[str, Any]:
    """What `summarize` says, to be read by programs. Lengths and tokens count EOS."""
    audit, valid_audit = prepared.train_audit, prepared.valid_audit
    assert audit is not None, "only the process that read the text sums it up"
    facts, parameters = prepared.train.facts, count_parameters(prepared.model)
    valid = None
    if prepared.valid is not None and valid_audit is not None:
        valid = {
            **asdict(prepared.valid.store.facts),
            "too_long": prepared.valid.num_too_long,
            "unreadable": valid_audit.bad,
            "empty": valid_audit.empty,
            "sources_in_training_text": valid_audit.overlap,
        }
    return {
        "training_text": {**asdict(facts), "unreadable": audit.bad, "empty": audit.empty},
        "validation_text": valid,
        "vocabulary": {
            "kind": config.tokenizer.kind,
            "shared": prepared.tokenizers.is_shared,
            "src": len(prepared.tokenizers.src),
            "tgt": len(prepared.tokenizers.tgt),
        },
        "validation": None if valid is None else {"metric": config.validation.metric},
        "model": config.model.model_dump(),
        "parameters": {**parameters, "total": sum(parameters.values())},
        "training": {
            "updates": total_steps,
            "limited_by": limit_of_updates(config.training, total_steps),
            "warmup_updates": config.training.warmup_updates,
            "updates_per_epoch": prepared.updates_per_epoch,
            "batches_per_epoch": len(prepared.epochs),
            "padding": prepared.epochs.padding(),
        },
        "device": {
            "type": prepared.device.type,
            "processes": num_processes,
            "threads": torch.get_num_threads(),
            "precision": "bf16" if prepared.use_bf16 else "fp32",
        },
    }


def _training_text(config: Config, prepared: Prepared) -> str:
    audit = prepared.train_audit
    assert audit is not None, "only the process that read the text sums it up"
    dropped = [
        (audit.empty, "with an empty side"),
        (prepared.train.facts.too_long, f"over {config.data.max_length:,} tokens"),
        (audit.bad, "unreadable"),
    ]
    reasons = ", ".join(f"{count:,} {reason}" for count, reason in dropped if count)
    return f"{len(prepared.train):,} pairs; dropped: {reasons or 'none'}"


def _held_out_text(valid: HeldOut, audit: CorpusCounts) -> str:
    facts = valid.store.facts
    text = f"{len(valid.pairs):,} pairs"
    text += f", {audit.bad:,} unreadable left out" if audit.bad else ""
    text += f", {audit.empty:,} with an empty side" if audit.empty else ""
    text += f", {valid.num_too_long:,} too long for the loss" if valid.num_too_long else ""
    unknown = facts.src.unknown + facts.tgt.unknown
    text += f"; {unknown / (facts.src.tokens + facts.tgt.tokens):.2%} unknown tokens"
    if audit.overlap:
        text += f"; WARNING: {audit.overlap:,} source lines stand in the training text too"
    return text


def _tokens(prepared: Prepared) -> str:
    def side(facts: SideStats) -> str:
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


def _validation(config: Config) -> str:
    validation = config.validation
    count, unit = validation.every, validation.unit
    every = f"{count:,} {unit}" if count > 1 else unit.removesuffix("s")
    text = f"every {every}; best model by {validation.metric}"
    if validation.patience:
        text += f"; early stopping after {validation.patience:,} without a better one"
    return text


def _training(config: Config, prepared: Prepared, total_steps: int) -> str:
    training, epochs = config.training, prepared.epochs
    passes = total_steps / prepared.updates_per_epoch
    hours = f" or {training.max_hours:g} hours" if training.max_hours else ""
    return (
        f"{total_steps:,} updates ({limit_of_updates(training, total_steps)}){hours}, {passes:.1f} "
        f"epochs of {len(epochs):,} batches ({epochs.padding():.1%} padding); "
        f"{training.optimizer}, lr {training.lr:g}, {training.schedule} after "
        f"{training.warmup_updates:,} updates of warm-up"
    )


def _cache(prepared: Prepared) -> str:
    stores = [prepared.train, *([prepared.valid.store] if prepared.valid is not None else [])]
    ours = sum(store.num_bytes for store in stores) / MEGABYTE
    return (
        f"{cache_folder()}: {ours:,.1f} MB of token ids of this text, "
        f"{total_size() / MEGABYTE:,.1f} MB in all, {most_bytes() / MEGABYTE:,.0f} MB at most"
    )


def _device(prepared: Prepared, num_processes: int) -> str:
    threads = torch.get_num_threads()
    if num_processes > 1:
        where = f"{num_processes} processes"
    elif prepared.device.type == "cuda":
        where = torch.cuda.get_device_name(prepared.device)
    else:
        where = f"{threads} thread{'s' * (threads > 1)}"
    return f"{prepared.device.type} ({where}), {'bf16' if prepared.use_bf16 else 'fp32'}"
