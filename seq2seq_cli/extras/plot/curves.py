"""`seq2seq plot`: what runs have logged, as curves over updates, time or tokens."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.metrics import METRICS, RENAMED_METRICS
from seq2seq_cli.errors import UserError
from seq2seq_cli.run_folder import RunFolder

XAxis = Literal["updates", "time", "tokens"]
Curve = list[tuple[float, float]]

LOSSES = ("train/loss", "valid/loss")
_RENAMED = {f"valid/{old}": f"valid/{new}" for old, new in RENAMED_METRICS.items()}
LR = "train/lr"
# What the x axis adds up or reads from the training points, and one unit of it.
_LOGGED: dict[XAxis, tuple[str, float]] = {
    "time": ("train/seconds", 3_600.0),  # since the start, so far
    "tokens": ("train/tokens", 1.0),  # since the point before
}


@dataclass(frozen=True)
class RunCurves:
    """The numbers that a run has logged, by name, each with its place on the x axis."""

    name: str
    curves: dict[str, Curve]


def read_curves(run_dirs: Sequence[Path], x: XAxis) -> list[RunCurves]:
    """Read the logged numbers of runs; `time` is in hours.

    Raises UserError for what is not a run folder, for a run that has logged nothing, and for one
    that has not logged what `x` needs.
    """
    return [_read(run_dir, x) for run_dir in run_dirs]


def choose_metric(run_dirs: Sequence[Path], runs: Sequence[RunCurves], asked: str | None) -> str:
    """Return the name of the score to draw beside the loss, or `valid/loss` for none.

    That is the one asked for, or the metric by which the first run that has another one than the
    loss chooses its best model. Raises UserError if no run has logged it.
    """
    logged = {name for run in runs for name in run.curves}
    if asked is None:
        metrics = [load_config(RunFolder(path).config).validation.metric for path in run_dirs]
        return next(
            (f"valid/{m}" for m in metrics if f"valid/{m}" in logged - {*LOSSES}), LOSSES[1]
        )
    asked = RENAMED_METRICS.get(asked, asked)
    known = [name for name in METRICS if f"valid/{name}" in logged]
    if asked not in known:
        raise UserError(
            f"--metric {asked}: no run has logged it; logged: {', '.join(known) or 'none'}"
        )
    return f"valid/{asked}"


def _read(run_dir: Path, x: XAxis) -> RunCurves:
    folder = RunFolder(run_dir)
    folder.ensure_is_run()
    points = [
        numbers for point in folder.metrics_points() if "step" in (numbers := _numbers(point))
    ]
    if not points:
        raise UserError(f"{run_dir} has logged nothing yet")
    place = _places(run_dir, points, x)
    curves: dict[str, Curve] = {}
    for point in points:
        at = place(point.pop("step"))
        for name, value in point.items():
            curves.setdefault(name, []).append((at, value))
    return RunCurves(str(run_dir), curves)


def _places(
    run_dir: Path, points: Sequence[dict[str, float]], x: XAxis
) -> Callable[[float], float]:
    """Return the function from a step to its place on the x axis; between points it is linear."""
    if x == "updates":
        return float
    name, unit = _LOGGED[x]
    steps = [point["step"] for point in points if name in point]
    values = [point[name] / unit for point in points if name in point]
    if not steps:
        raise UserError(
            f"{run_dir} has not logged {name}, as earlier versions did not: use --x updates"
        )
    if x == "tokens":
        values = list(itertools.accumulate(values))
    return lambda step: float(np.interp(step, [0.0, *steps], [0.0, *values]))


def _numbers(point: dict[str, Any]) -> dict[str, float]:
    """Return the finite numbers of an entry of metrics.jsonl."""
    return {
        _RENAMED.get(name, name): float(value)
        for name, value in point.items()
        if isinstance(value, int | float) and abs(value) < 1e300
    }
