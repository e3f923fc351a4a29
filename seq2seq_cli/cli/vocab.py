"""The command vocab: learns the tokenizers only."""

from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq vocab configs/quickstart.yaml\n\n"
    "seq2seq vocab configs/quickstart.yaml --set tokenizer.kind=char --output runs/vocabulary"
)
def vocab(
    config: options.ConfigFile,
    output: Annotated[
        Path | None,
        options.path_option(
            help_text="Folder to write to.", show_default="runs/<name of the config>/vocab"
        ),
    ] = None,
    overrides: options.Overrides = None,
) -> None:
    """Learn the tokenizers without training, to inspect them or share them between runs."""
    loaded = options.load_config_file(config, overrides)
    from seq2seq_cli.tokenizers.vocabulary import build_vocabulary

    report = build_vocabulary(loaded, output or Path("runs") / config.stem / "vocab")
    typer.echo("\n".join(report))
