"""Draws the curves of runs with matplotlib."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from seq2seq_cli.config.metrics import METRICS
from seq2seq_cli.extras.plot.curves import LOSSES, LR, RunCurves, XAxis
from seq2seq_cli.extras.plot.figure_files import default_style, fonts_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito 2008, "Color Universal Design": told apart with any kind of colour vision. Runs beyond
# these have other dashes.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", ":", "-.")
GREY = "#777777"

_X_LABELS: dict[XAxis, str] = {
    "updates": "updates",
    "time": "hours of training, validations included",
    "tokens": "target tokens trained on",
}
_WIDTH, _PANEL_HEIGHT, _LEGEND_HEIGHT = 8.0, 2.6, 0.3  # inches
_NAMES_PER_ROW = 3


@default_style()
def draw_runs(runs: Sequence[RunCurves], score: str, x: XAxis) -> "Figure":
    """Draw loss, score and learning rate of runs in panels above each other.

    `score` is the logged name of a validation score, `valid/bleu`; a loss gets no panel of its own.
    """
    from matplotlib.figure import Figure

    names = ["loss", *([score] if score not in LOSSES else []), LR]
    entries = len(runs) + 2
    rows = -(-entries // _NAMES_PER_ROW)
    height = _PANEL_HEIGHT * len(names) + _LEGEND_HEIGHT * rows
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    panels = dict(zip(names, figure.subplots(len(names), sharex=True), strict=True))
    panels["loss"].set_ylabel("loss, nats per target token")
    panels[LR].set_ylabel("learning rate")
    if score in panels:
        unit = next(facts.unit for name, facts in METRICS.items() if score == f"valid/{name}")
        panels[score].set_ylabel(f"{score.removeprefix('valid/')}, {unit}")
    for run, style in zip(runs, _styles(), strict=False):
        _plot(panels["loss"], run, LOSSES[0], linewidth=0.8, alpha=0.6, **style)
        _plot(panels["loss"], run, LOSSES[1], marker="o", markersize=4, **style)
        _plot(panels[LR], run, LR, **style)
        if score in panels:
            _plot(panels[score], run, score, marker="o", markersize=4, **style)
    for axes in panels.values():
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[LR].set_xlabel(_X_LABELS[x])
    figure.align_ylabels()
    _legend(figure, [run.name for run in runs])
    return figure


def _styles() -> Any:
    """Yield colour and dashes of one run after another."""
    for dash, color in itertools.cycle(itertools.product(DASHES, COLORS)):
        yield {"color": color, "linestyle": dash}


def _plot(axes: "Axes", run: RunCurves, name: str, **style: Any) -> None:
    if curve := run.curves.get(name):
        axes.plot(*zip(*curve, strict=True), **style)


def _legend(figure: "Figure", names: Sequence[str]) -> None:
    """Draw the one legend: what a line is, and which run has which colour."""
    from matplotlib.lines import Line2D

    fonts, replaced = fonts_for("".join(names))
    handles = [
        *(Line2D([], [], **style) for style, _ in zip(_styles(), names, strict=False)),
        Line2D([], [], color=GREY, linewidth=0.8),
        Line2D([], [], color=GREY, marker="o", markersize=4),
    ]
    shown = [f"\u200b{name}".translate(replaced) for name in names]  # "_x" would be left out
    labels = [*shown, "training (with label smoothing)", "validation"]
    legend = figure.legend(
        handles, labels, loc="outside upper left", ncols=_NAMES_PER_ROW, frameon=False
    )
    for text in legend.get_texts():
        text.set_fontfamily(fonts)
        text.set_parse_math(False)
