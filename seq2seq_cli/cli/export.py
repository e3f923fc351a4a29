"""The command export: writes a model in the format of another program."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from seq2seq_cli.cli.app import RunDir, WhichModel, app, path_option


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq export runs/quickstart --format ctranslate2 --output runs/quickstart-ct2\n\n"
    "seq2seq export runs/quickstart --format huggingface --output runs/quickstart-hf"
)
def export(
    run_dir: RunDir,
    output: Annotated[Path, path_option("--output", "-o", help_text="Folder to write to.")],
    file_format: Annotated[
        Literal["ctranslate2", "huggingface"],
        typer.Option("--format", help="Target format."),
    ],
    model: WhichModel = "best",
) -> None:
    """Export a trained model to another program's format, and check that its translations agree."""
    from seq2seq_cli.export.exporter import export as export_run

    typer.echo(export_run(run_dir, file_format, output, which=model))
