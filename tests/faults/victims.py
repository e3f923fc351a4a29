"""Tiny texts and trained runs to damage, and the commands as functions."""

import os
from pathlib import Path
from typing import Any

import yaml
from commands import Result
from number_task import number_pairs, write_config, write_pairs
from typer.testing import CliRunner

from seq2seq_cli.cli import app

KINDS = ("bpe", "unigram", "char", "word")
NUM_PAIRS = 40


def config_of(folder: Path, kind: str) -> dict[str, Any]:
    """Write a small text to the folder; return a config that trains on it in a second."""
    return {
        "data": {
            "train": write_pairs(folder, "train", number_pairs(NUM_PAIRS, seed=1)),
            "valid": write_pairs(folder, "valid", number_pairs(5, seed=2)),
            "max_length": 40,
        },
        "tokenizer": {"kind": kind, "vocab_size": 300},
        "model": {"d_model": 8, "heads": 2, "layers": 1, "d_ff": 8},
        "training": {"max_steps": 2, "tokens_per_batch": 512, "device": "cpu", "processes": 1},
        "validation": {"every": 1, "unit": "steps", "metric": "loss"},
        "decoding": {"max_len_factor": 0.5, "max_len_extra": 3},
    }


def make_run(folder: Path, kind: str) -> Path:
    """Create a folder with text, the config `numbers.yaml` and a run, and return the run."""
    folder.mkdir(parents=True)
    os.environ["SEQ2SEQ_CACHE"] = str(folder / "cache")
    config = write_config(folder, config_of(folder, kind))
    result = call("train", config, "--run-dir", folder / "run")
    assert result.exit_code == 0, result.stderr
    return folder / "run"


def call(*arguments: object, stdin: bytes | None = None) -> Result:
    """Run a command in this process; exceptions other than SystemExit are raised."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Result(result.exit_code, result.stdout, result.stderr)


def yaml_of(tree: object) -> bytes:
    return yaml.safe_dump(tree, sort_keys=False).encode()
