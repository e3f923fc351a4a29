"""The command diversify: trains a model on its text and on translations of both sides of it."""

import json
from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app
from seq2seq_cli.cli.translate import NumProcesses

Output = Annotated[
    Path,
    options.path_option("--output", "-o", help_text="Run folder of the final model to write."),
]
BeamSize = Annotated[
    int, typer.Option("--beam-size", "-b", min=1, help="Beam size of the translations.")
]


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq diversify configs/multi30k_en_de.yaml --output runs/diversified\n\n"
    "seq2seq diversify mine.yaml --output runs/mine --set training.max_steps=4000"
)
def diversify(
    config: options.ConfigFile,
    output: Output,
    beam_size: BeamSize = 5,
    processes: NumProcesses = None,
    as_json: options.AsJson = False,
    overrides: options.Overrides = None,
    device: options.Device = None,
) -> None:
    """Train a better model on the same text (data diversification); rerun the command to resume.

    Trains a model for each direction, adds their translations to the training text, trains on all
    of it, continues with less dropout, and compares the models on the validation text. The folder
    diversified in the run keeps all intermediate files.
    """
    loaded = options.load_config_file(config, overrides, device)
    from seq2seq_cli.extras.distill import diversification

    search = [*options.decoding_overrides(beam_size=beam_size, n_best=1)]
    # Report options that exclude this search before hours of training.
    options.load_config_file(config, [*(overrides or ()), *search], device)
    made = diversification.diversify(loaded, output, search, processes)
    typer.echo(json.dumps(made["report"], indent=2) if as_json else made["table"])
