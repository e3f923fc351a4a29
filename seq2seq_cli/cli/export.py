"""The verb export: a run for other programs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from seq2seq_cli.cli.app import RunDir, WhichModel, app, in_full


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq export runs/quickstart --format ctranslate2 --output runs/quickstart-ct2\n\n"
    "seq2seq export runs/quickstart --format huggingface --output runs/quickstart-hf"
)
def export(
    run_dir: RunDir,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder to write.", callback=in_full)
    ],
    file_format: Annotated[
        Literal["ctranslate2", "huggingface"],
        typer.Option("--format", help="Target format."),
    ],
    model: WhichModel = "best",
) -> None:
    """Write a trained model for another program, and check that it translates the same there."""
    from seq2seq_cli.export.exporter import export as export_run

    typer.echo(export_run(run_dir, file_format, output, which=model))
