"""The command preprocess: tokenizes the training text ahead of training."""

from typing import Annotated

import typer

from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app
from seq2seq_cli.console import counted


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq preprocess configs/quickstart.yaml\n\n"
    "seq2seq preprocess configs/quickstart.yaml --shard 3/20"
)
def preprocess(
    config: options.ConfigFile,
    shard: Annotated[
        str,
        typer.Option(metavar="K/N", help="Tokenize shard K of N of the files."),
    ] = "1/1",
    overrides: options.Overrides = None,
) -> None:
    """Tokenize the training text ahead of training, on one machine or several that share a cache.

    Training tokenizes whatever is missing. With --shard, machines divide the files of a text.
    """
    loaded = options.load_config_file(config, overrides)
    from seq2seq_cli.decoding.lines.shards import Shard
    from seq2seq_cli.training.setup import preprocess as tokenize

    num_segments, num_missing = tokenize(loaded, *Shard.parse(shard))
    typer.echo(f"{counted(num_segments, 'segment')} of text, {num_missing:,} of them tokenized now")
