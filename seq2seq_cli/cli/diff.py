"""The command diff: compares two runs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq diff runs/quickstart runs/quickstart-again\n\n"
    "seq2seq diff runs/quickstart runs/deep --json"
)
def diff(
    run_dir: options.RunDir,
    other_dir: Annotated[Path, options.path_argument("OTHER", "Other run folder.")],
    as_json: options.AsJson = False,
) -> None:
    """Show the differences between two runs: options, text, versions, machine, weights, metrics.

    The exit status is 0 if they are equal and 1 if they differ. Weights are compared bit by bit;
    timings are not compared.
    """
    from seq2seq_cli.commands.diff import compare_runs

    differences = compare_runs(run_dir, other_dir)
    if as_json:
        typer.echo(json.dumps([difference._asdict() for difference in differences], indent=2))
    else:
        typer.echo("\n".join(map(str, differences)) or "no difference")
    if differences:
        raise typer.Exit(1)
