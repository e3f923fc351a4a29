"""Writes curves as figures and as CSV."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from seq2seq_cli.extras.plot.curves import RunCurves, XAxis
from seq2seq_cli.extras.plot.curves_figure import draw_runs
from seq2seq_cli.extras.plot.figure_files import FigureKind, check_output_paths, figure_bytes
from seq2seq_cli.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SUFFIXES = (".png", ".svg", ".pdf", ".csv")


def check_outputs(paths: Sequence[Path]) -> None:
    """Raise UserError for a file that cannot be written, and for a figure without matplotlib."""
    check_output_paths(paths, _SUFFIXES)


def write_runs(runs: Sequence[RunCurves], score: str, x: XAxis, path: Path) -> None:
    """Write curves of runs: as a figure loss, score and learning rate, as CSV everything."""
    rows = (
        (run.name, name, *point)
        for run in runs
        for name, curve in run.curves.items()
        for point in curve
    )
    write_curves(path, lambda: draw_runs(runs, score, x), ("run", "name", x, "value"), rows)


def write_curves(
    path: Path,
    draw: "Callable[[], Figure]",
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
) -> None:
    """Write rows as CSV, or the figure that `draw` returns."""
    suffix = path.suffix.lower()
    if suffix == ".csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        data = text.getvalue().encode("utf-8", "surrogateescape")
    else:
        data = figure_bytes(draw(), cast(FigureKind, suffix.removeprefix(".")))
    write_atomic(path, data)
