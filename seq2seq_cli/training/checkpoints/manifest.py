"""manifest.json: what a run started with, and what it was resumed with each time."""

import datetime
import hashlib
import importlib.metadata
import logging
import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from seq2seq_cli import __version__
from seq2seq_cli.config.loader import config_yaml, differing_options
from seq2seq_cli.config.schema import Config
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import read_json, write_json
from seq2seq_cli.native.model_code import model_code_hash
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.corpus import hash_of_files
from seq2seq_cli.tokenizers.tokenizer import tokenizer_hashes

logger = logging.getLogger(__name__)

_RECORDED_PACKAGES = ("torch", "numpy", "sentencepiece", "sacrebleu", "safetensors")
_CONTINUATIONS = 100  # the last ones are kept; earlier ones are only counted
_LONGEST = 500  # characters of a recorded value
_SECONDS_FOR_GIT = 5.0  # it reads two or three small files


def write_manifest(
    run: RunFolder,
    config: Config,
    device: torch.device,
    source: Path | None,
    hashes: dict[str, str],
) -> None:
    """Record the start of a run with the `hashes` of its text; its tokenizers are in the folder."""
    manifest = {
        "begun": _now(),
        "from": None if source is None else str(source),
        **(imported_from(source) if source is not None else {}),
        "seed": config.training.seed,
        "data": hashes,
        "tokenizer": tokenizer_hashes(run, config.tokenizer),
        **_environment(config, device),
        "num_continuations": 0,
        "continuations": [],
    }
    write_json(run.manifest, manifest)


def imported_from(run_dir: Path) -> dict[str, Any]:
    """Return the entry about the import of a run or of one that it comes from; empty if none."""
    try:
        manifest = read_json(RunFolder(run_dir).manifest)
    except (UserError, OSError):  # a model is usable without
        return {}
    record = manifest.get("imported") if isinstance(manifest, dict) else None
    return {} if record is None else {"imported": record}


def record_continuation(
    run: RunFolder,
    before: Config,
    config: Config,
    device: torch.device,
    step: int,
    hashes: dict[str, str],
) -> None:
    """Append when and how a run is resumed, the changed options, and the `hashes` of its text."""
    manifest = read_manifest(run)
    changed = {
        name: {"from": _short(old), "to": _short(new)}
        for name, (old, new) in differing_options(before, config).items()
    }
    here = _environment(config, device)
    last = [manifest, *continuations(manifest)][-1]  # start
    names = [n for n in ("device", "threads", "processes", "packages") if last.get(n) != here[n]]
    if names:
        counts = ("threads", "processes")
        changes = [f"{n} {last.get(n)} → {here[n]}" if n in counts else n for n in names]
        noise = "rounding and dropout" if "processes" in names else "rounding"
        what = f"the environment changed ({', '.join(changes)}): data order is unaffected"
        logger.info(f"{what}; results may differ by {noise}")
    entry = {"continued": _now(), "step": step, **here, "changed": changed}
    manifest["num_continuations"] = count_starts(run)
    manifest["data"] = hashes
    manifest["continuations"] = [*continuations(manifest), entry][-_CONTINUATIONS:]
    write_json(run.manifest, manifest)


def read_manifest(run: RunFolder) -> dict[str, Any]:
    """Read the manifest. Raises UserError if it is missing or damaged."""
    manifest = read_json(run.manifest)
    if isinstance(manifest, dict) and isinstance(manifest.get("data"), dict):
        return manifest
    raise UserError(f"{run.manifest} is damaged: it does not say what text the run started with")


def continuations(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of a manifest, which may be damaged."""
    entries = manifest.get("continuations")
    return [e for e in entries if isinstance(e, dict)] if isinstance(entries, list) else []


def count_starts(run: RunFolder) -> int:
    """Return how often the run was started, this time included."""
    count = read_manifest(run).get("num_continuations", 0)
    return 1 + (count if isinstance(count, int) else 0)


def _environment(config: Config, device: torch.device) -> dict[str, Any]:
    """Return what may differ between two runs of the same config.

    `git`: the commit of the working directory, or None. Finding uncommitted changes would run what
    the repository's own configuration names.
    """
    command, commit = ["git", "rev-parse", "--verify", "HEAD"], None
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_SECONDS_FOR_GIT
        )
        commit = done.stdout.strip()
    return {
        "command": [_short(argument) for argument in sys.argv[:100]],
        "config": hashlib.sha256(config_yaml(config).encode("utf-8")).hexdigest(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "processes": distributed.get_world_size() if distributed.is_initialized() else 1,
        "python": platform.python_version(),
        "seq2seq_cli": __version__,
        "model_code": model_code_hash(),
        "packages": {name: importlib.metadata.version(name) for name in _RECORDED_PACKAGES},
        "git": commit,
    }


def text_hashes(config: Config) -> dict[str, str]:
    """Return the hash of each text of the config, by the name of its option in `data`."""
    return {name: hash_of_files(text.files) for name, text in config.texts.items()}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
