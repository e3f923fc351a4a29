"""The start of a run: a new folder with all that the run depends on, or one that goes on."""

import gc
from typing import NamedTuple

import torch

from seq2seq_cli.config import Config
from seq2seq_cli.config_file import config_yaml, flatten, load_config, yaml_text
from seq2seq_cli.errors import UserError
from seq2seq_cli.run_folder import RunFolder, write_bytes
from seq2seq_cli.text.tokenizer import save_tokenizers
from seq2seq_cli.training.checkpoint import TrainingState, load_checkpoint, save_checkpoint
from seq2seq_cli.training.manifest import (
    must_be_the_same_text,
    record_continuation,
    write_manifest,
)
from seq2seq_cli.training.optimizer import build_optimizer
from seq2seq_cli.training.preparation import Prepared, prepare
from seq2seq_cli.training.workers import Workers

# What a continued run may do otherwise: how long, how often it looks up, and on what device.
FREE_TO_CHANGE = {
    "training.max_steps",
    "training.max_epochs",
    "training.device",
    "training.workers",
    "training.log_every",
    "training.save_every",
    "validation.every",
    "validation.unit",
    "validation.patience",
    "validation.samples",
}


class Beginning(NamedTuple):
    """Where a worker begins; all of them alike."""

    config: Config
    prepared: Prepared
    optimizer: torch.optim.Optimizer
    state: TrainingState


def begin(run: RunFolder, config: Config, workers: Workers) -> Beginning:
    """Begin a run, or continue the one that the folder holds.

    The first worker reads the text and puts all that the run depends on into the folder, from
    which the others take it. Raises UserError for what the user can mend.
    """
    if workers.is_first:
        continued = config_to_continue(run, config)
        config = continued or config
        prepared = prepare(config, run if continued else None)
        optimizer = build_optimizer(prepared.model, config.training)
        state = (continue_run if continued else begin_run)(run, config, prepared, optimizer)
        workers.wait()
    else:
        workers.wait()
        config = load_config(run.config)
        prepared = prepare(config, run, reads_text=False)
        optimizer = build_optimizer(prepared.model, config.training)
        assert run.last_checkpoint is not None, "the first worker has written one"
        state = load_checkpoint(run.last_checkpoint, prepared.model, optimizer)
    gc.collect()
    gc.freeze()  # what is here now stays to the end: nothing to search for garbage
    return Beginning(config, prepared, optimizer, state)


def config_to_continue(run: RunFolder, config: Config) -> Config | None:
    """The config with which the folder's run goes on; None if there is no run yet.

    An option that was left out and whose default depends on others keeps the run's value. Raises
    UserError naming the options that differ if the folder holds a run of another config, and
    rather than train over a model whose checkpoint is gone, or among other files.
    """
    if not run.is_started:
        run.must_be_free()
        return None
    begun = load_config(run.config)
    if "warmup_steps" not in config.training.model_fields_set:
        kept = {"warmup_steps": begun.training.warmup_steps}
        config = config.model_copy(update={"training": config.training.model_copy(update=kept)})
    before, now = flatten(begun), flatten(config)
    differing = [
        f"  {name}: {yaml_text(before.get(name))} in the run, {yaml_text(now.get(name))} now"
        for name in dict.fromkeys([*now, *before])
        if before.get(name) != now.get(name) and name not in FREE_TO_CHANGE
    ]
    if differing:
        message = f"{run.path} holds a run of another config; undo the change, or give this one a "
        raise UserError("\n".join([message + "--run-dir of its own", *differing]))
    if run.last_checkpoint is None:
        raise UserError(
            f"{run.path} holds a run but no checkpoint to continue from; "
            "start another one with --run-dir"
        )
    return config


def begin_run(
    run: RunFolder, config: Config, prepared: Prepared, optimizer: torch.optim.Optimizer
) -> TrainingState:
    """Write what the run depends on; the config comes last, so that it marks a whole beginning."""
    state = TrainingState()
    run.path.mkdir(parents=True, exist_ok=True)
    save_tokenizers(run, prepared.tokenizers)
    write_manifest(run, config, prepared.device)
    save_checkpoint(run, prepared.model, optimizer, state)
    _write_config(run, config)
    return state


def continue_run(
    run: RunFolder, config: Config, prepared: Prepared, optimizer: torch.optim.Optimizer
) -> TrainingState:
    """Put model and optimizer back to the last checkpoint.

    Raises UserError when a file is damaged or the text has changed; then nothing is written.
    """
    must_be_the_same_text(run, config)
    assert run.last_checkpoint is not None
    state = load_checkpoint(run.last_checkpoint, prepared.model, optimizer)
    record_continuation(run, load_config(run.config), config, prepared.device, state.step)
    _write_config(run, config)
    return state


def _write_config(run: RunFolder, config: Config) -> None:
    write_bytes(run.config, config_yaml(config).encode("utf-8"))
