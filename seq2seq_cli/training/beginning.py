"""The start of a run: a new folder with all that the run depends on, or one that goes on."""

import datetime
import gc
import importlib.metadata
import platform
import subprocess
import sys
from typing import Any, NamedTuple

import torch

from seq2seq_cli import __version__
from seq2seq_cli.config import Config
from seq2seq_cli.config_file import config_yaml, flatten, load_config, yaml_text
from seq2seq_cli.errors import UserError
from seq2seq_cli.run_folder import RunFolder, read_json, write_bytes, write_json
from seq2seq_cli.text.parallel import hash_of_files
from seq2seq_cli.text.tokenizer import save_tokenizers
from seq2seq_cli.training.checkpoint import TrainingState, load_checkpoint, save_checkpoint
from seq2seq_cli.training.optimizer import build_optimizer
from seq2seq_cli.training.preparation import Prepared, prepare
from seq2seq_cli.training.workers import Workers

# What a continued run may do otherwise: how long, how often it looks up, and on what device.
FREE_TO_CHANGE = {
    "training.max_steps",
    "training.max_epochs",
    "training.device",
    "training.workers",
    "training.on_nonfinite",
    "training.log_every",
    "training.save_every",
    "validation.every",
    "validation.unit",
    "validation.patience",
    "validation.samples",
}

_RECORDED_PACKAGES = ("torch", "numpy", "sentencepiece", "sacrebleu", "safetensors")


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
        prepared = prepare(config, run if continued else None, num_workers=workers.count)
        config = prepared.config
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

    An option that was left out and whose default depends on others keeps the run's value, and so
    does tokens_per_batch if it is auto. Raises UserError naming the options that differ if the
    folder holds a run of another config, and rather than train over a model whose checkpoint is
    gone, or among other files.
    """
    if not run.is_started:
        run.must_be_free()
        return None
    begun = load_config(run.config)
    kept = {}
    if "warmup_steps" not in config.training.model_fields_set:
        kept["warmup_steps"] = begun.training.warmup_steps
    if config.training.tokens_per_batch == "auto":
        kept["tokens_per_batch"] = begun.training.batch_budget
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
    write_json(run.manifest, _manifest(config, prepared.device))
    save_checkpoint(run, prepared.model, optimizer, state)
    _write_config(run, config)
    return state


def continue_run(
    run: RunFolder, config: Config, prepared: Prepared, optimizer: torch.optim.Optimizer
) -> TrainingState:
    """Put model and optimizer back to the last checkpoint.

    Raises UserError when a file is damaged or the text has changed; then nothing is written.
    """
    _must_be_the_same_text(run, config)
    assert run.last_checkpoint is not None
    state = load_checkpoint(run.last_checkpoint, prepared.model, optimizer)
    _write_config(run, config)
    return state


def _write_config(run: RunFolder, config: Config) -> None:
    write_bytes(run.config, config_yaml(config).encode("utf-8"))


def _must_be_the_same_text(run: RunFolder, config: Config) -> None:
    manifest = read_json(run.manifest)
    begun_with = manifest.get("data") if isinstance(manifest, dict) else None
    if not isinstance(begun_with, dict):
        raise UserError(f"{run.manifest} is damaged: it does not say what text the run began with")
    found = _hashes(config)
    changed = [f"data.{name}" for name, value in found.items() if begun_with.get(name) != value]
    if changed:
        raise UserError(
            f"the text of {' and '.join(changed)} changed since this run began; "
            "put it back, or start another run with --run-dir"
        )


def _hashes(config: Config) -> dict[str, str]:
    data = config.data
    corpora = {"train": data.train, "valid": data.valid}
    return {name: hash_of_files(c.files) for name, c in corpora.items() if c is not None}


def _manifest(config: Config, device: torch.device) -> dict[str, Any]:
    return {
        "begun": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "seed": config.training.seed,
        "data": _hashes(config),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "seq2seq_cli": __version__,
        "packages": {name: importlib.metadata.version(name) for name in _RECORDED_PACKAGES},
        "git": _git_state(),
    }


def _git_state() -> str | None:
    """The commit of the working directory, `-dirty` if it has changes; None outside of git."""
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
