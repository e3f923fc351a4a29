"""The summary of a run, which `train` and `check` print before anything else."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.text import Corpus
from seq2seq_cli.console import counted
from seq2seq_cli.data.cache import MEGABYTE, cache_folder, most_bytes, total_size
from seq2seq_cli.evaluation import HeldOut
from seq2seq_cli.model.device import has_fast_bf16
from seq2seq_cli.model.parameters import count_parameters
from seq2seq_cli.native.model_code import is_edited
from seq2seq_cli.training.plan import limit_of_updates
from seq2seq_cli.training.run import Run, TrainingData


def summarize(run: Run) -> str:
    """Return one aligned line for each thing worth knowing before training time is spent."""
    config, data, shape = run.config, run.data, run.config.model
    limit = data.statistics.length_limit.resolve(config.decoding)
    counts = count_parameters(run.model)
    parts = ", ".join(f"{part} {count:,}" for part, count in counts.items() if count)
    notes = "" if counts["projection"] else "; projection tied"
    if frozen := config.training.freeze:
        notes += f"; frozen: {', '.join(frozen)}"
    src, tgt = (
        f"{side.tokens:,} (mean {side.tokens / len(data.train):.1f}, longest {side.longest:,})"
        for side in (data.train.facts.src, data.train.facts.tgt)
    )
    cached = sum(store.num_bytes for store in data.stores) / MEGABYTE
    rows = [("training text", _training_text(config, data))]
    rows += [("corpus", text) for text in _corpora(config, data)]
    for name, held_out in (("validation text", data.valid), ("general text", data.general)):
        if held_out is not None:
            rows.append((name, _held_out_text(config, data, held_out)))
    if data.valid is not None:
        rows.append(("validation", _validation(config)))
    rows += [
        ("tokens", f"source {src}, target {tgt}"),
        ("vocabulary", _vocabulary(config, data)),
        (
            "model",
            f"{shape.layers.encoder}+{shape.layers.decoder} layers, d_model {shape.d_model}, "
            f"d_ff {shape.d_ff}, {shape.heads} heads, {shape.norm}-norm, dropout {shape.dropout:g}"
            + ("" if config.preset == "none" else f" (preset {config.preset})"),
        ),
        ("parameters", f"{sum(counts.values()):,} ({parts}{notes})"),
        ("training", _training(run)),
        (
            "translations",
            f"at most {limit.max_len_factor:g} × source tokens + {limit.max_len_extra:,}",
        ),
        ("device", _device(run)),
        (
            "cache",
            f"{cache_folder()}: {cached:,.1f} MB of token ids of this text, "
            f"{total_size() / MEGABYTE:,.1f} MB in all, {most_bytes() / MEGABYTE:,.0f} MB at most",
        ),
    ]
    return "\n".join(f"{label:<16} {text}" for label, text in rows)


def summary_json(run: Run) -> dict[str, Any]:
    """Return the content of `summarize` for programs to read. Lengths and tokens include EOS."""
    config, data, counts = run.config, run.data, run.data.train_counts
    assert counts is not None, "only the process that read the text sums it up"
    valid, parameters = _held_out_json(data.valid), count_parameters(run.model)
    return {
        "training_text": {
            **asdict(data.train.facts),
            "unreadable": counts.bad,
            "empty": counts.empty,
            "direction": config.data.direction,
            "corpora": [
                {"files": [*map(str, corpus.paths)], "tag": corpus.tag}
                | {"pairs": size, "pairs_per_epoch": drawn}
                for corpus, size, drawn in _parts(config, data)
            ],
        },
        "validation_text": valid,
        "general_text": _held_out_json(data.general),
        "vocabulary": {
            "kind": {"src": data.tokenizers.src.kind, "tgt": data.tokenizers.tgt.kind},
            "shared": data.tokenizers.is_shared,
            "src": len(data.tokenizers.src),
            "tgt": len(data.tokenizers.tgt),
        },
        "validation": valid and config.validation.model_dump(include={"metric", "every", "unit"}),
        "preset": config.preset,
        "model": config.model.model_dump(),
        "parameters": {**parameters, "total": sum(parameters.values())},
        "training": {
            "updates": run.total_steps,
            "limited_by": limit_of_updates(config.training, run.state.plan),
            "warmup_updates": run.state.plan.warmup,
            "updates_per_epoch": run.updates_per_epoch,
            "batches_per_epoch": len(run.data.batches),
            "padding": run.data.batches.first_buffer().padding(),
        },
        "length_limit": run.data.statistics.length_limit.resolve(config.decoding).model_dump(
            include={"max_len_factor", "max_len_extra"}
        ),
        "device": {
            "type": run.device.type,
            "processes": run.parallel.world_size,
            "threads": torch.get_num_threads(),
            "precision": "bf16" if run.use_bf16 else "fp32",
        },
    }


def _parts(config: Config, data: TrainingData) -> Iterator[tuple[Corpus, int, int]]:
    """Yield each corpus of the training text, its pairs, and those that an epoch draws from it."""
    return zip(config.data.train, data.train.sizes, data.batches.drawn, strict=True)


def _corpora(config: Config, data: TrainingData) -> Iterator[str]:
    """Describe every corpus, unless there is but one, which is trained on as it is."""
    if len(config.data.train) == 1 and not config.train_text.options and not data.batches.is_mixed:
        return
    direction = config.data.direction
    turned = {"forward": "", "reverse": ", reversed", "both": ", in both directions"}[direction]
    for corpus, size, drawn in _parts(config, data):
        text = f"{' and '.join(map(str, corpus.paths))}: {counted(size, 'pair')}{turned}"
        text += f", {drawn:,} an epoch" if drawn != size else ""
        yield text + (f", tag {corpus.tag}" if corpus.tag else "")


def _training_text(config: Config, data: TrainingData) -> str:
    counts = data.train_counts
    assert counts is not None, "only the process that read the text sums it up"
    dropped = [
        (counts.empty, "with an empty side"),
        (data.train.facts.too_long, f"over {config.data.max_length:,} tokens"),
        (counts.bad, "unreadable"),
    ]
    reasons = ", ".join(f"{count:,} {reason}" for count, reason in dropped if count)
    return f"{counted(len(data.train), 'pair')}; dropped: {reasons or 'none'}"


def _held_out_json(text: HeldOut | None) -> dict[str, Any] | None:
    if text is None:
        return None
    assert text.counts is not None, "it was read with the training text"
    return {
        **asdict(text.store.facts),
        "too_long": text.num_too_long,
        "unreadable": text.counts.bad,
        "empty": text.counts.empty,
        "sources_in_training_text": text.counts.overlap,
    }


def _held_out_text(config: Config, data: TrainingData, held_out: HeldOut) -> str:
    facts, counts = held_out.store.facts, held_out.counts
    has_tag = data.tokenizers.src.begins_with_tag
    assert counts is not None, "it was read with the training text"
    found = [
        (counts.bad, "unreadable left out"),
        (counts.empty, "with an empty side"),
        (held_out.num_too_long, "too long for the loss"),
    ]
    numbers = [f"{count:,} {what}" for count, what in found if count]
    text = ", ".join([counted(len(held_out.pairs), "pair"), *numbers])
    unknown = facts.src.unknown + facts.tgt.unknown
    text += f"; {unknown / (facts.src.tokens + facts.tgt.tokens):.2%} unknown tokens"
    if counts.overlap:
        lines = "line also occurs" if counts.overlap == 1 else "lines also occur"
        text += f"; WARNING: {counts.overlap:,} source {lines} in the training text"
    if config.train_text.is_tagged and not all(p.tag or has_tag(p.src) for p in held_out.pairs):
        text += "; WARNING: pairs without a tag, which all training pairs have"
    return text


def _vocabulary(config: Config, data: TrainingData) -> str:
    tokenizers, sampling = data.tokenizers, config.training.subword_sampling
    if tokenizers.is_shared:
        text = f"{len(tokenizers.src):,} {tokenizers.src.kind}, shared by both sides"
    else:
        src, tgt = (f"{len(tokenizer):,} {tokenizer.kind}" for tokenizer in tokenizers)
        text = f"source {src}, target {tgt}"
    if features := data.tokenizers.src.features:
        text += f", {len(features):,} of them features"
    sides = {"source": sampling.src, "target": sampling.tgt}
    sampled = [f"{side} {value:g}" for side, value in sides.items() if value is not None]
    return text + (f"; subword sampling: {', '.join(sampled)}" if sampled else "")


def _validation(config: Config) -> str:
    validation = config.validation
    count, unit = validation.interval, validation.unit
    every = f"{count:,} {unit}" if count > 1 else unit.removesuffix("s")
    text = f"every {every}; best model by {validation.metric}"
    if validation.patience:
        text += f"; early stopping after {validation.patience:,} without a better one"
    return text


def _training(run: Run) -> str:
    training, batches, plan = run.config.training, run.data.batches, run.state.plan
    limit = limit_of_updates(training, plan)
    padding = batches.first_buffer().padding()
    hours = f" or as many as fit into {plan.hours:g} hours" if plan.hours else ""
    averages = f"; EMA {training.ema_decay:g}" if training.ema_decay is not None else ""
    if training.average_checkpoints is not None:
        averages += f"; average of the last {training.average_checkpoints} checkpoints"
    return (
        f"{plan.total:,} updates ({limit}){hours}, {_num_epochs(run, limit):.1f} "
        f"epochs of {len(batches):,} batches ({padding:.1%} padding); "
        f"{training.optimizer}, lr {training.lr:g}, {training.schedule} after "
        f"{plan.warmup:,} updates of warm-up{averages}"
    )


def _num_epochs(run: Run, limit: str) -> float:
    """Return how many epochs the run will have; epochs of mixed corpora differ in their updates."""
    training, state, batches = run.config.training, run.state, run.data.batches
    if limit == "max_epochs":
        return float(training.max_epochs or 0)
    left = batches.num_left(state.epoch, state.earlier_parts) - state.position
    later = state.plan.total - state.step - -(-left // training.gradient_accumulation)
    return state.epoch + later / run.updates_per_epoch  # also of another size of batches


def _device(run: Run) -> str:
    if (num_processes := run.parallel.world_size) > 1:
        sharded = ", sharded" if run.config.training.shard == "full" else ""
        where = f"{num_processes} processes{sharded}"
    elif run.device.type == "cuda":
        where = torch.cuda.get_device_name(run.device)
    else:
        where = counted(torch.get_num_threads(), "thread")
    precision = "bf16" if run.use_bf16 else "fp32"
    if run.use_bf16 and not has_fast_bf16(run.device):
        precision += "; WARNING: slow, without instructions for it; fp32 is faster here"
    if run.device.type == "cpu" and is_edited():
        precision += "; WARNING: slower, as the model's code has been edited: PyTorch trains it"
    return f"{run.device.type} ({where}), {precision}"
