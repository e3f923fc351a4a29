"""`seq2seq plot`: what runs have logged, as curves over updates, time or tokens."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.metrics import METRICS, RENAMED_METRICS, with_current_names
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.plot.figures import COLORS, DASHES, GRAY, default_style, fonts_for
from seq2seq_cli.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

XAxis = Literal["updates", "time", "tokens"]

LOSSES = ("train/loss", "valid/loss")
LR = "train/lr"
# What the x axis adds up or reads from the training points, one unit of it, and its label.
_AXES: dict[XAxis, tuple[str, float, str]] = {
    "updates": ("step", 1.0, "updates"),
    # Since the start, so far, and since the point before.
    "time": ("train/seconds", 3_600.0, "hours of training, validations included"),
    "tokens": ("train/tokens", 1.0, "target tokens trained on"),
}
_WIDTH, _PANEL_HEIGHT, _LEGEND_HEIGHT = 8.0, 2.6, 0.3  # inches
_NAMES_PER_ROW = 3


class RunCurves(NamedTuple):
    """The numbers that a run has logged, by name, as points (x, value)."""

    name: str
    curves: dict[str, list[tuple[float, float]]]


def read_curves(run_dir: Path, x: XAxis) -> RunCurves:
    """Read the logged numbers of a run; between points, `time` (in hours) and `tokens` are linear.

    Raises UserError if the folder is no run, or has not logged anything, or not what `x` needs.
    """
    folder = RunFolder(run_dir)
    folder.ensure_is_run()
    points = [
        {
            name: float(value)
            for name, value in with_current_names(point).items()
            if isinstance(value, int | float) and abs(value) < 1e300
        }
        for point in folder.metrics_points()
    ]
    points = [point for point in points if "step" in point]
    if not points:
        raise UserError(f"{run_dir} has logged nothing yet")
    name, unit, _ = _AXES[x]
    steps = [point["step"] for point in points if name in point]
    places = [point[name] / unit for point in points if name in point]
    if not steps:
        raise UserError(
            f"{run_dir} has not logged {name}, as earlier versions did not: use --x updates"
        )
    if x == "tokens":
        places = list(itertools.accumulate(places))
    curves: dict[str, list[tuple[float, float]]] = {}
    ats = np.interp([point.pop("step") for point in points], [0.0, *steps], [0.0, *places])
    for point, at in zip(points, ats.tolist(), strict=True):
        for name, value in point.items():
            curves.setdefault(name, []).append((at, value))
    return RunCurves(str(run_dir), curves)


def choose_metric(run_dirs: Sequence[Path], runs: Sequence[RunCurves], asked: str | None) -> str:
    """Return the name of the validation score to draw, or `valid/loss` for none.

    Without `asked` it is the metric by which the first run that has another one than the loss
    chooses its best model. Raises UserError if no run has logged the one asked for.
    """
    logged = {name for run in runs for name in run.curves}
    if asked is None:
        metrics = [load_config(RunFolder(path).config).validation.metric for path in run_dirs]
        found = (f"valid/{name}" for name in metrics if f"valid/{name}" in logged - {*LOSSES})
        return next(found, LOSSES[1])
    asked = RENAMED_METRICS.get(asked, asked)
    known = [name for name in METRICS if f"valid/{name}" in logged]
    if asked not in known:
        raise UserError(
            f"--metric {asked}: no run has logged it; logged: {', '.join(known) or 'none'}"
        )
    return f"valid/{asked}"


@default_style()
def draw_runs(runs: Sequence[RunCurves], score: str, x: XAxis) -> "Figure":
    """Draw loss, score and learning rate of runs in panels above each other, with one legend.

    `score` is the logged name of a validation score, `valid/bleu`; a loss gets no panel of its own.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    names = ["loss", *([score] if score not in LOSSES else []), LR]
    rows = -(-(len(runs) + 2) // _NAMES_PER_ROW)
    height = _PANEL_HEIGHT * len(names) + _LEGEND_HEIGHT * rows
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    panels = dict(zip(names, figure.subplots(len(names), sharex=True), strict=True))
    panels["loss"].set_ylabel("loss, nats per target token")
    panels[LR].set_ylabel("learning rate")
    training: dict[str, Any] = {"linewidth": 0.8}
    validation: dict[str, Any] = {"marker": "o", "markersize": 4}
    drawn = [("loss", LOSSES[0], training | {"alpha": 0.6}), ("loss", LOSSES[1], validation)]
    drawn.append((LR, LR, {}))
    if score in panels:
        unit = next(facts.unit for name, facts in METRICS.items() if score == f"valid/{name}")
        panels[score].set_ylabel(f"{score.removeprefix('valid/')}, {unit}")
        drawn.append((score, score, validation))
    handles = []
    looks = itertools.cycle(itertools.product(DASHES, COLORS))
    for run, (dash, color) in zip(runs, looks, strict=False):
        style: dict[str, Any] = {"color": color, "linestyle": dash}
        handles.append(Line2D([], [], **style))
        for panel, name, kind in drawn:
            if curve := run.curves.get(name):
                panels[panel].plot(*zip(*curve, strict=True), **style, **kind)
    for axes in panels.values():
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[LR].set_xlabel(_AXES[x][2])
    figure.align_ylabels()
    fonts, replaced = fonts_for("".join(run.name for run in runs))
    handles += [Line2D([], [], color=GRAY, **kind) for kind in (training, validation)]
    labels = [f"\u200b{run.name}".translate(replaced) for run in runs]  # "_x" would be left out
    labels += ["training (with label smoothing, if any)", "validation"]
    where = "outside upper left"
    legend = figure.legend(handles, labels, loc=where, ncols=_NAMES_PER_ROW, frameon=False)
    for text in legend.get_texts():
        text.set_fontfamily(fonts)
        text.set_parse_math(False)
    return figure
