"""A task that a tiny model learns in seconds: digits are translated to their names."""

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import yaml

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# With these options of `training`, the task is learned in half as many updates.
FAST = {"optimizer": "muon", "lr": 2e-2, "warmup_steps": 10}
WORDS = dict(zip("0123456789", NAMES, strict=True))


def number_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Random digits with their names: `3 1 4` → `three one four`."""
    generator = random.Random(seed)
    lines = [generator.choices("0123456789", k=generator.randint(1, 6)) for _ in range(count)]
    return [(" ".join(digits), " ".join(WORDS[digit] for digit in digits)) for digits in lines]


def write_pairs(folder: Path, name: str, pairs: list[tuple[str, str]]) -> dict[str, str]:
    for side, lines in zip(("src", "tgt"), zip(*pairs, strict=True), strict=True):
        (folder / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines))
    return {side: str(folder / f"{name}.{side}") for side in ("src", "tgt")}


def numbers_config(folder: Path, num_pairs: int = 800, **training: object) -> dict:
    return {
        "data": {
            "train": write_pairs(folder, "train", number_pairs(num_pairs, seed=1)),
            "valid": write_pairs(folder, "valid", number_pairs(60, seed=2)),
        },
        "tokenizer": {"kind": "word", "shared": False},
        "model": {"d_model": 64, "heads": 4, "layers": 1, "d_ff": 64, "dropout": 0.0},
        "training": {
            "max_steps": 240,
            "tokens_per_batch": 512,
            "lr": 5e-3,
            "warmup_steps": 40,
            "schedule": "linear",
            "log_every": 20,
        }
        | training,
        "validation": {"every": 120, "unit": "steps", "metric": "loss"},
    }


def write_config(folder: Path, config: dict, name: str = "numbers.yaml") -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(config))
    return path


def as_ensemble(folder: Path, runs: Sequence[Path]) -> Path:
    """Copy runs to a folder that has them as its members."""
    for number, run in enumerate(runs, 1):
        shutil.copytree(run, folder / "members" / str(number))
    (folder / "ensemble.json").write_text(json.dumps({"members": len(runs)}))
    return folder
