"""Writes a learning-rate range test: as a figure, as CSV, and for TensorBoard."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from seq2seq_cli.extras.plot.curve_files import write_curves
from seq2seq_cli.extras.plot.curves_figure import COLORS, DASHES, GREY
from seq2seq_cli.extras.plot.figure_files import default_style
from seq2seq_cli.extras.plot.lr_range_test import Point, RangeTest
from seq2seq_cli.training.logging.tensorboard import EventFile
from seq2seq_cli.training.run import Hooks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_range_test(test: RangeTest, paths: Sequence[Path], logdir: Path | None) -> list[Path]:
    """Write a range test to files, and for TensorBoard to a folder; return what was written."""
    for path in paths:
        write_curves(path, lambda: draw_range_test(test), Point._fields, test.points)
    if logdir is None:
        return list(paths)
    logdir.mkdir(parents=True, exist_ok=True)
    events = EventFile(logdir, 1, Hooks())
    for number, point in enumerate(test.points, 1):
        events.scalars(number, {f"find_lr/{n}": value for n, value in point._asdict().items()})
    suggested = "\n".join(f"* {name}: {lr:.2g}" for name, lr in test.suggestions.items())
    events.text(0, "find_lr/suggestions", suggested)
    events.sync()
    return [*paths, logdir]


@default_style()
def draw_range_test(test: RangeTest) -> "Figure":
    """Draw the loss by learning rate, with the suggested rates as vertical lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    axes = figure.subplots()
    lrs = [point.lr for point in test.points]
    axes.semilogx(lrs, [point.loss for point in test.points], color=GREY, alpha=0.4, label="loss")
    axes.semilogx(lrs, [p.smoothed for p in test.points], color=COLORS[0], label="smoothed loss")
    for (name, lr), color, dash in zip(
        test.suggestions.items(), COLORS[1:], DASHES[1:], strict=False
    ):
        axes.axvline(lr, color=color, linestyle=dash, label=f"{name} {lr:.2g}")
    axes.axvline(test.lr, color="black", linewidth=1, label=f"training.lr {test.lr:.2g}")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("loss, nats per target token")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend()
    return figure
