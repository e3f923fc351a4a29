"""The command verify-resume: compares an interrupted run with an uninterrupted one."""

from typing import Annotated

import typer

from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq verify-resume configs/quickstart.yaml\n\n"
    "seq2seq verify-resume configs/quickstart.yaml --steps 200 --interruptions 5"
)
def verify_resume(
    config: options.ConfigFile,
    steps: Annotated[int, typer.Option(min=2, help="Maximum number of updates of each run.")] = 24,
    interruptions: Annotated[
        int, typer.Option(min=1, help="Number of interruptions of the second run.")
    ] = 3,
    overrides: options.Overrides = None,
    device: options.Device = None,
) -> None:
    """Verify that an interrupted run gives the same result as an uninterrupted one.

    Trains twice on this machine, in temporary folders, and compares all results bit by bit. The
    exit status is 1 if they differ.
    """
    loaded = options.load_config_file(config, overrides, device)
    from seq2seq_cli.commands.verify_resume import verify_resume as verify

    is_exact, report = verify(loaded, steps, interruptions)
    typer.echo(report)
    raise typer.Exit(0 if is_exact else 1)
