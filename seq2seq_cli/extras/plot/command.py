"""The commands find-lr and plot: a learning rate for a config, and what runs have logged."""

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app
from seq2seq_cli.console import printable


@app.command(
    "find-lr",
    epilog="**Examples**\n\n"
    "seq2seq find-lr configs/quickstart.yaml\n\n"
    "seq2seq find-lr configs/quickstart.yaml --output lr.png\n\n"
    "seq2seq find-lr configs/quickstart.yaml --updates 300 --start-lr 1e-5 --end-lr 0.1 --json",
)
def find_lr(
    config: options.ConfigFile,
    updates: Annotated[
        int,
        typer.Option(
            min=20, help="Maximum number of updates; the test ends when the loss diverges."
        ),
    ] = 100,
    start_lr: Annotated[
        float, typer.Option("--start-lr", min=1e-12, help="Learning rate of the first update.")
    ] = 1e-6,
    end_lr: Annotated[
        float, typer.Option("--end-lr", max=1e6, help="Learning rate of the last update.")
    ] = 1.0,
    output: Annotated[
        list[Path] | None,
        options.path_option(
            "--output",
            "-o",
            help_text="File to write the curve to: .png, .svg, .pdf or .csv; may be repeated.",
        ),
    ] = None,
    as_json: options.AsJson = False,
    overrides: options.Overrides = None,
    device: options.Device = None,
) -> None:
    """Suggest a learning rate: train briefly while the rate rises until the loss diverges.

    This is the learning-rate range test (Smith 2017), with the suggestions of fastai. Only the
    files given as --output are kept.
    """
    loaded = options.load_config_file(config, overrides, device)
    from seq2seq_cli.extras.plot.figures import check_output_paths, write_curves
    from seq2seq_cli.extras.plot.find_lr import Point, draw_range_test
    from seq2seq_cli.extras.plot.find_lr import find_lr as run_test

    paths = output or []
    check_output_paths(paths)
    if (found := run_test(loaded, start_lr, end_lr, updates)) is None:
        return
    dot = "•" if (sys.stdout.encoding or "").lower().startswith("utf") else "*"
    text = found.as_text(shutil.get_terminal_size().columns, dot)
    typer.echo(json.dumps(found.report(), indent=2) if as_json else text)
    for path in paths:
        write_curves(path, lambda: draw_range_test(found), Point._fields, found.points)
        typer.echo(f"wrote {printable(str(path))}", err=as_json)


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq plot runs/quickstart\n\n"
    "seq2seq plot runs/quickstart runs/deep --metric chrf --x time --output curves.svg\n\n"
    "seq2seq plot runs/quickstart --output curves.csv"
)
def plot(
    run_dirs: Annotated[list[Path], options.path_argument("RUN", "Run folders written by train.")],
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Validation score to draw: bleu, chrf, accuracy, ...",
            show_default="the one that chose the best model",
        ),
    ] = None,
    x: Annotated[
        Literal["updates", "time", "tokens"], typer.Option("--x", help="Quantity on the x axis.")
    ] = "updates",
    output: Annotated[
        list[Path] | None,
        options.path_option(
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
