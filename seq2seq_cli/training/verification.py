"""Whether a run that was interrupted ends as one that was not: trained twice and compared."""

import json
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from seq2seq_cli.config import Config
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.weights import read_tensors
from seq2seq_cli.run_folder import RunFolder, read_json
from seq2seq_cli.training.loop import train

TIMINGS = ("train/tokens_per_second",)  # what two runs never have in common


@dataclass(frozen=True)
class Verdict:
    """What differs between the two runs, by what was compared; empty where nothing does."""

    steps: int
    stops: Sequence[int]
    differences: dict[str, str]

    @property
    def is_equal(self) -> bool:
        return not any(self.differences.values())

    def table(self) -> str:
        """What `verify-resume` prints."""
        stops = ", ".join(map(str, self.stops))
        rows = [f"{self.steps} updates at once, and {self.steps} with a stop after {stops}"]
        rows += [f"{what:<12} {found or 'equal'}" for what, found in self.differences.items()]
        rows.append("continuing is exact here" if self.is_equal else "CONTINUING IS NOT EXACT HERE")
        return "\n".join(rows)


def verify_resume(config: Config, steps: int, interruptions: int) -> Verdict:
    """Train `steps` updates in one go and with interruptions, and compare all that is left.

    Raises UserError when the config's own run would be shorter than that.
    """
    if steps > config.training.max_steps or interruptions >= steps:
        raise UserError(
            f"--steps {steps} must be at most training.max_steps ({config.training.max_steps}) "
            f"and more than --interruptions {interruptions}"
        )
    stops = [round(steps * part / (interruptions + 1)) for part in range(1, interruptions + 1)]
    stops = [max(1, stop - (stop > 1 and stop % 2 == 0)) for stop in stops]  # off round numbers
    with tempfile.TemporaryDirectory(prefix="seq2seq-verify-") as folder:
        whole, broken = RunFolder(Path(folder) / "whole"), RunFolder(Path(folder) / "broken")
        _train_in_new_process(config, whole.path, steps)
        for stop in [*stops, steps]:
            _train_in_new_process(config, broken.path, stop)
        return Verdict(steps, stops, differences(whole, broken))


def differences(one: RunFolder, other: RunFolder) -> dict[str, str]:
    """Of the last checkpoints, the best models and the logs of two runs; "" where they agree."""
    ours, theirs = (run.checkpoint(next(iter(run.all_checkpoints()))) for run in (one, other))
    found = {
        name: _difference_of_tensors(ours / file, theirs / file)
        for name, file in (
            ("weights", "weights.safetensors"),
            ("optimizer", "optimizer.safetensors"),
        )
    }
    states = [_without_time(read_json(folder / "state.json")) for folder in (ours, theirs)]
    found["place"] = "" if states[0] == states[1] else f"{states[0]} and {states[1]}"
    if one.model.exists() or other.model.exists():
        found["best model"] = _difference_of_tensors(one.model, other.model)
    logs = [_logged(run.metrics) for run in (one, other)]
    found["metrics"] = "" if logs[0] == logs[1] else _first_difference(*logs)
    return found


def _train_in_new_process(config: Config, folder: Path, until: int) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(train, config, folder, until=until).result()


def _difference_of_tensors(one: Path, other: Path) -> str:
    ours, theirs = read_tensors(one), read_tensors(other)
    if ours.keys() != theirs.keys():
        return "not of the same parameters"
    differing = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    if not differing:
        return ""
    most = max(float((ours[name] - theirs[name]).abs().max()) for name in differing)
    return f"{len(differing)} of {len(ours)} differ, by {most:.2g} at most, first {differing[0]}"


def _without_time(state: Any) -> Any:
    del state["sha256"], state["window"]["seconds"]
    return state


def _logged(path: Path) -> list[dict[str, float]]:
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{name: line[name] for name in line if name not in TIMINGS} for line in lines]


def _first_difference(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> str:
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            return f"first at step {one['step']}: {one} and {other}"
    return f"{len(ours)} and {len(theirs)} points"
