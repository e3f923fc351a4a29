"""The command plot: draws loss and score curves of runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from seq2seq_cli.cli.app import app
from seq2seq_cli.cli.options import path_argument, path_option
from seq2seq_cli.console import printable


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq plot runs/quickstart\n\n"
    "seq2seq plot runs/quickstart runs/deep --metric chrf --x time --output curves.svg\n\n"
    "seq2seq plot runs/quickstart --output curves.csv"
)
def plot(
    run_dirs: Annotated[list[Path], path_argument("RUN", "Run folders written by train.")],
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Validation score to draw: bleu, chrf, accuracy, ...",
            show_default="the one that chose the best model",
        ),
    ] = None,
    x: Annotated[
        Literal["updates", "time", "tokens"],
        typer.Option("--x", help="Quantity on the x axis."),
    ] = "updates",
    output: Annotated[
        list[Path] | None,
        path_option(
            "--output",
            "-o",
            help_text="File to write: .png, .svg, .pdf, or .csv for the numbers; may be repeated.",
            show_default="curves.png",
        ),
    ] = None,
) -> None:
    """Draw loss, validation score and learning rate of one or more runs, finished or not."""
    from seq2seq_cli.extras.plot.curves import choose_metric, draw_runs, read_curves
    from seq2seq_cli.extras.plot.figures import check_output_paths, write_curves

    paths = output or [Path("curves.png")]
    check_output_paths(paths)
    runs = [read_curves(run_dir, x) for run_dir in run_dirs]
    score = choose_metric(run_dirs, runs, metric)
    for path in paths:
        rows = (
            (run.name, name, *point)
            for run in runs
            for name, curve in run.curves.items()
            for point in curve
        )
        write_curves(path, lambda: draw_runs(runs, score, x), ("run", "name", x, "value"), rows)
        typer.echo(f"wrote {printable(str(path))}")
