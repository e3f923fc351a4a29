"""The start of a run: a new folder with all that the run depends on, or one that may go on."""

import datetime
import importlib.metadata
import platform
import subprocess
import sys
from typing import Any

import torch

from seq2seq_cli.config import Config
from seq2seq_cli.config_file import flatten, load_config, save_config, yaml_text
from seq2seq_cli.errors import UserError
from seq2seq_cli.run_folder import RunFolder, read_json, write_atomically, write_json
from seq2seq_cli.training.preparation import Prepared, must_be_same_data

# What a continued run may do otherwise: how long, how often it looks up, and on what device.
FREE_TO_CHANGE = (
    "training.max_steps",
    "training.max_epochs",
    "training.device",
    "training.log_every",
    "training.save_every",
    "validation.",
)

_RECORDED_PACKAGES = ("torch", "numpy", "sentencepiece", "sacrebleu", "safetensors")


def may_continue(run: RunFolder, config: Config) -> bool:
    """True if the folder holds a run of this config, False if there is none.

    Raises UserError naming the options that differ if it holds a run of another config,
    and rather than train over a model whose checkpoint is gone.
    """
    if not run.is_started:
        if run.path.exists() and not run.path.is_dir():
            raise UserError(f"{run.path} is a file, not a run folder")
        return False
    begun, wanted = flatten(load_config(run.config)), flatten(config)
    differing = [
        f"  {name}: {yaml_text(begun.get(name))} in the run, {yaml_text(wanted.get(name))} now"
        for name in dict.fromkeys([*wanted, *begun])
        if begun.get(name) != wanted.get(name) and not name.startswith(FREE_TO_CHANGE)
    ]
    if differing:
        raise UserError(
            "\n".join(
                [
                    f"{run.path} holds a run of another config; give this one a --run-dir of "
                    "its own, or undo the change",
                    *differing,
                ]
            )
        )
    if run.model.exists() and run.last_checkpoint is None:
        raise UserError(
            f"{run.path} holds a trained model but no checkpoint to continue from; "
            "start another run with --run-dir"
        )
    return True


def begin_run(
    run: RunFolder, config: Config, prepared: Prepared, device: torch.device, is_continued: bool
) -> None:
    """Write what the run depends on; the config comes last, so that it marks a whole beginning."""
    if is_continued:
        must_be_same_data(prepared, read_json(run.manifest))
    else:
        run.path.mkdir(parents=True, exist_ok=True)
        paths = run.tokenizer_paths(config.tokenizer.shared)
        for path, tokenizer in zip(paths, prepared.tokenizers, strict=True):
            write_atomically(path, lambda part, model=tokenizer.model: part.write_bytes(model))  # type: ignore[misc]
        write_json(run.manifest, _manifest(config, prepared, device))
    write_atomically(run.config, lambda part: save_config(config, part))


def _manifest(config: Config, prepared: Prepared, device: torch.device) -> dict[str, Any]:
    packages = {name: importlib.metadata.version(name) for name in _RECORDED_PACKAGES}
    return {
        "begun": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "seed": config.training.seed,
        "data": prepared.data_hashes,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "seq2seq_cli": importlib.metadata.version("seq2seq-cli"),
        "packages": packages,
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
