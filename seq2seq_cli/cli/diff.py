"""The verb diff: whether two runs are the same."""

import json
from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli.app import RunDir, app, in_full


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq diff runs/quickstart runs/quickstart-again\n\n"
    "seq2seq diff runs/quickstart runs/deep --json"
)
def diff(
    run_dir: RunDir,
    other_dir: Annotated[
        Path, typer.Argument(metavar="OTHER", help="Folder of another run.", callback=in_full)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say where two runs differ: options, text, vocabulary, versions, machine, weights, metrics.

    Exit status 0: no difference; 1: they differ. Weights are equal only to the last bit; timings
    are not compared.
    """
    from seq2seq_cli.tools.run_diff import differences

    found = differences(run_dir, other_dir)
    if as_json:
        typer.echo(json.dumps([one._asdict() for one in found], indent=2))
    else:
        typer.echo("\n".join(one.line() for one in found) or "no difference")
    if found:
        raise typer.Exit(1)
