"""The command tune: searches the values of a config's options."""

from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli import plugins
from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app
from seq2seq_cli.console import printable

Hours = Annotated[
    float,
    typer.Option(min=0, help="Hours for all trials, summed over restarts."),
]
Output = Annotated[
    Path,
    options.path_option("--output", "-o", help_text="Folder for the trials and best.yaml."),
]
Search = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=LOW..HIGH",
        help="Option to search, in a range (x0.5..x2: factors of the config's value), among values "
        "(KEY=A,B,C) or in its default range (KEY); may be repeated.",
        show_default="thirteen options, see docs/training.md",
    ),
]


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq tune configs/quickstart.yaml --hours 1 --output runs/tuned\n\n"
    "seq2seq tune mine.yaml --hours 8 --output runs/tuned --search training.lr --search "
    "model.dropout=0.1..0.4 --search training.ema_decay=null,0.999\n\n"
    "seq2seq train runs/tuned/best.yaml --run-dir runs/best"
)
def tune(
    config: options.ConfigFile,
    hours: Hours,
    output: Output,
    search: Search = None,
    as_json: options.AsJson = False,
    overrides: options.Overrides = None,
    device: options.Device = None,
) -> None:
    """Search for good values of a config's options; rerun the command to resume.

    Trials are runs, compared by the validation metric. Optuna chooses their values, and the worst
    are stopped early. The config with the best values is written to best.yaml.
    """
    loaded = options.load_config_file(config, overrides, device)
    tuning = plugins.load("tune", "tuning")
    results = plugins.load("tune", "results")
    study = tuning.tune(loaded, output, hours, search or [])
    typer.echo(results.as_json(study) if as_json else results.table_of(study))
    typer.echo(f"wrote {printable(str(results.best_config(study)))}", err=as_json)
