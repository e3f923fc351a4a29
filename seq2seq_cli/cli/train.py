"""The command train: trains a model."""

import functools
from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app
from seq2seq_cli.run_folder import MOST_MEMBERS


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq train configs/quickstart.yaml\n\n"
    "seq2seq train configs/quickstart.yaml --run-dir runs/deep --set model.layers=4\n\n"
    "seq2seq train configs/quickstart.yaml --run-dir runs/four --ensemble 4\n\n"
    "tensorboard --logdir runs"
)
def train(
    config: options.ConfigFile,
    run_dir: Annotated[
        Path | None,
        options.path_option(
            help_text="Run folder to write.", show_default="runs/<name of the config>"
        ),
    ] = None,
    source: options.From = None,
    ensemble: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_MEMBERS,
            metavar="N",
            help="Train N models with different seeds, one on each core, as one run.",
        ),
    ] = 1,
    allow_changed: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION", help="Option that may change when resuming; may be repeated."
        ),
    ] = None,
    overrides: options.Overrides = None,
    device: options.Device = None,
) -> None:
    """Train a model; rerun the command to resume an interrupted run."""
    loaded = options.load_config_file(config, overrides, device)
    from seq2seq_cli.training.ensemble import train_ensemble
    from seq2seq_cli.training.loop import train as train_model

    work = train_model if ensemble == 1 else functools.partial(train_ensemble, num_members=ensemble)
    work(
        loaded,
        run_dir or Path("runs") / config.stem,
        source=source,
        allow_changed=allow_changed or (),
    )
