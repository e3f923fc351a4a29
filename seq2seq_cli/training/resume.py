"""The start of a run: a new folder with all that the run depends on, or one that goes on."""

import gc
import hashlib
import json
import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from seq2seq_cli.config.loader import config_yaml, flatten, load_config, yaml_text
from seq2seq_cli.config.schema import Config
from seq2seq_cli.data.statistics import TextStatistics, write_statistics
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import write_atomic
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.tokenizer import save_tokenizers
from seq2seq_cli.training.checkpoint import (
    TrainingState,
    load_checkpoint,
    load_last_checkpoint,
    remove_later_checkpoints,
    save_checkpoint,
)
from seq2seq_cli.training.distributed import Ranks
from seq2seq_cli.training.manifest import (
    must_have_its_vocabulary,
    read_manifest,
    record_continuation,
    text_hashes,
    write_manifest,
)
from seq2seq_cli.training.optimizer import build_optimizer
from seq2seq_cli.training.setup import Prepared, prepare, settle_warmup, total_updates
from seq2seq_cli.training.warm_start import asks_for_another, start_from, with_vocabulary_of

logger = logging.getLogger(__name__)

# What a continued run may do otherwise: how long, how often it looks up, and on what device.
FREE_TO_CHANGE = {
    "training.max_steps",
    "training.max_epochs",
    "training.max_hours",
    "training.device",
    "training.processes",
    "training.on_nonfinite",
    "training.log_every",
    "training.save_every",
    "training.keep_last",
    "training.keep_every",
    "validation.every",
    "validation.unit",
    "validation.patience",
    "validation.keep_best",
    "validation.samples",
    "validation.ter",
    "decoding.tokens_per_batch",
}


# What no run can change: its weights would mean something else, or its data order.
_FIXED = ("model.", "tokenizer.", "training.freeze", "training.seed")
_NOT_FIXED = ("model.dropout", "model.attention_dropout", "model.activation_dropout")


class Beginning(NamedTuple):
    """Where a process begins; all of them alike."""

    config: Config
    prepared: Prepared
    optimizer: torch.optim.Optimizer
    state: TrainingState
    total_steps: int  # updates, those done and those to come


def begin(
    run: RunFolder,
    config: Config,
    ranks: Ranks,
    source: Path | None = None,
    allow_changed: Sequence[str] = (),
) -> Beginning:
    """Begin a run, or continue the one that the folder holds.

    The main process reads the text and puts all that the run depends on into the folder, from
    which the others take it. Raises UserError for what the user can mend.
    """
    if ranks.is_main:
        beginning = (
            resume_run(run, config, source, allow_changed, ranks)
            if run.is_started
            else start_run(run, config, source, ranks)
        )
        ranks.broadcast((beginning.state, beginning.total_steps))
    else:
        beginning = join_as_replica(run, ranks)
    gc.freeze()  # what is here now stays to the end: nothing to search for garbage
    return beginning


def join_as_replica(run: RunFolder, ranks: Ranks) -> Beginning:
    """Begin where the main process does, which may not be where its checkpoint was written."""
    state, total_steps = ranks.broadcast((TrainingState(), 0))
    config = load_config(run.config)
    prepared = prepare(config, run, reads_text=False)
    optimizer = build_optimizer(prepared.model, config.training)
    load_checkpoint(run.checkpoint(state.step), prepared.model, optimizer)
    return Beginning(config, prepared, optimizer, state, total_steps)


def start_run(run: RunFolder, config: Config, source: Path | None, ranks: Ranks) -> Beginning:
    """Write what the run depends on; the config comes last, so that it marks a whole beginning."""
    if source is not None:
        config = with_vocabulary_of(source, config)
    prepared = prepare(config, num_processes=ranks.world_size)
    total_steps = total_updates(config.training, prepared.epochs, TrainingState())
    config = settle_warmup(prepared.config, total_steps)
    if source is not None:
        start_from(source, config, prepared)
    optimizer = build_optimizer(prepared.model, config.training)
    state = TrainingState(
        text=prepared.train.key,
        tokens_per_batch=config.training.batch_budget,
        scored_by=_scored_by(config, text_hashes(config), prepared.statistics),
    )
    run.path.mkdir(parents=True, exist_ok=True)
    save_tokenizers(run, prepared.tokenizers)
    write_manifest(run, config, prepared.device, source)
    write_statistics(run, prepared.statistics)
    save_checkpoint(run, prepared.model, optimizer, state, config.training)
    _write_config(run, config)
    return Beginning(config, prepared, optimizer, state, total_steps)


def resume_run(
    run: RunFolder,
    config: Config,
    source: Path | None,
    allow_changed: Sequence[str],
    ranks: Ranks,
) -> Beginning:
    """Put model and optimizer back to the last checkpoint.

    Raises UserError, and then nothing is written, when a file is damaged or the text has changed;
    when an option has changed that may not; when the run did not start from `source`.
    """
    begun, manifest = load_config(run.config), read_manifest(run)
    hashes = text_hashes(config)
    names = dict.fromkeys([*hashes, *manifest["data"]])
    changed = [f"data.{name}" for name in names if manifest["data"].get(name) != hashes.get(name)]
    config = config_to_resume(run, begun, config, allow_changed, changed)
    _must_be_allowed(changed, allow_changed)
    must_have_its_vocabulary(run, config, manifest)
    _must_have_started_from(run, source, manifest)
    prepared = prepare(config, run, num_processes=ranks.world_size)
    optimizer = build_optimizer(prepared.model, config.training)
    state = load_last_checkpoint(run, prepared.model, optimizer)
    _follow_changes(state, prepared.config, prepared, hashes)
    total_steps = total_updates(config.training, prepared.epochs, state)
    config = settle_warmup(prepared.config, total_steps)
    record_continuation(run, begun, config, prepared.device, state.step, hashes)
    write_statistics(run, prepared.statistics)
    _write_config(run, config)
    remove_later_checkpoints(run, state.step)
    return Beginning(config, prepared, optimizer, state, total_steps)


def config_to_resume(
    run: RunFolder,
    begun: Config,
    config: Config,
    allow_changed: Sequence[str],
    changed_text: Collection[str],
) -> Config:
    """The config with which the run that began with `begun` goes on.

    What is `auto` keeps the run's value, and so does a vocabulary taken from another run where the
    config asks for no other. Text that is not among `changed_text` is the same under any path.
    Raises UserError naming the options that differ and may not.
    """
    config = _with_values_of(begun, config)
    before, now = flatten(begun), flatten(config)
    names = list(dict.fromkeys([*now, *before]))
    for key in allow_changed:
        if not any(_is_within(name, key) for name in names):
            raise UserError(f"--allow-changed {key}: there is no such option")
    differing = [
        f"  {name}: {yaml_text(before.get(name))} in the run, {yaml_text(now.get(name))} now"
        + ("; this cannot change in a run" if _is_fixed(name) else "")
        for name in names
        if before.get(name) != now.get(name)
        and name not in FREE_TO_CHANGE
        and not _is_path_of_same_text(name, begun, config, changed_text)
        and (_is_fixed(name) or not any(_is_within(name, key) for key in allow_changed))
    ]
    if differing:
        message = (
            f"{run.path} holds a run of another config; undo the change, allow it with "
            "--allow-changed OPTION, or give this run a --run-dir of its own"
        )
        raise UserError("\n".join([message, *differing]))
    return config


def _with_values_of(begun: Config, config: Config) -> Config:
    """The config, with the run's values where its own are found anew in each run."""
    training: dict[str, Any] = {}
    if config.training.warmup_steps == "auto":
        training["warmup_steps"] = begun.training.warmup_steps
    if config.training.tokens_per_batch == "auto":
        training["tokens_per_batch"] = begun.training.batch_budget
    validation: dict[str, Any] = {}
    is_measured = config.validation.decode or not begun.validation.needs_translations
    if config.validation.metric == "auto" and is_measured:
        validation["metric"] = begun.validation.metric
    is_reused = begun.tokenizer.reuse and not asks_for_another(config.tokenizer, begun.tokenizer)
    return config.model_copy(
        update={
            "training": config.training.model_copy(update=training),
            "validation": config.validation.model_copy(update=validation),
            "tokenizer": begun.tokenizer if is_reused else config.tokenizer,
        }
    )


def _is_path_of_same_text(
    name: str, begun: Config, config: Config, changed_text: Collection[str]
) -> bool:
    """Whether the option is a path to text that has the bytes, and the form, that it had."""
    section, text, *path = name.split(".")
    if section != "data" or not path or f"data.{text}" in changed_text:
        return False
    before, now = getattr(begun.data, text), getattr(config.data, text)
    return before is not None and now is not None and before.forms == now.forms


def _is_fixed(name: str) -> bool:
    return name.startswith(_FIXED) and name not in _NOT_FIXED


def _is_within(name: str, key: str) -> bool:
    """Whether the option is the one that `key` names, or one of its section."""
    return name == key or name.startswith(f"{key}.")


def _must_be_allowed(changed_text: Sequence[str], allow_changed: Sequence[str]) -> None:
    refused = [
        name
        for name in changed_text
        if not any(_is_within(name, key) or _is_within(key, name) for key in allow_changed)
    ]
    if refused:
        raise UserError(
            f"the text of {' and '.join(refused)} changed since this run began; put it back, "
            f"go on with --allow-changed {refused[0]}, or start another run with --run-dir"
        )


def _must_have_started_from(run: RunFolder, source: Path | None, manifest: dict[str, Any]) -> None:
    if source is not None and manifest.get("from") != str(source):
        raise UserError(
            f"the run in {run.path} did not start from {source}; leave out --from to continue it, "
            "or start another run with --run-dir"
        )


def _follow_changes(
    state: TrainingState, config: Config, prepared: Prepared, hashes: dict[str, str]
) -> None:
    """Keep the meaning of where the run is, and say what is not as without the change.

    Compared is what the checkpoint was written with, whenever the change was made.
    """
    is_midway = bool(state.position or state.earlier_parts)
    budget = config.training.batch_budget
    scored_by = _scored_by(config, hashes, prepared.statistics)
    state.awaits_validation = state.awaits_validation and config.data.valid is not None
    if state.text != prepared.train.key:
        if is_midway:
            state.epoch, state.position, state.earlier_parts = state.epoch + 1, 0, []
        logger.info("the training data changed; a new epoch starts")
    elif state.tokens_per_batch != budget and is_midway:
        state.earlier_parts.append([state.tokens_per_batch, state.position])
        state.position = 0
        logger.info(
            "training.tokens_per_batch changed; this epoch continues with the pairs not used yet"
        )
    if state.scored_by != scored_by:
        state.best_models, state.validations_without_best = [], 0
        logger.info("validation changed; the best score so far is reset")
    state.text, state.tokens_per_batch, state.scored_by = prepared.train.key, budget, scored_by


def _scored_by(config: Config, hashes: dict[str, str], statistics: TextStatistics) -> str:
    """A hash of what a validation score depends on: text, metric, decoding, where lines are cut."""
    validation = config.validation
    parts = [
        hashes.get("valid"),
        config.data.on_bad_line,
        *(validation.metric, validation.decode, validation.bleu_tokenize, validation.lowercase),
        config.decoding.model_dump(mode="json", exclude={"tokens_per_batch"}),
        statistics.model_dump(),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _write_config(run: RunFolder, config: Config) -> None:
    write_atomic(run.config, config_yaml(config).encode("utf-8"))
