"""The command export: writes a model in the format of another program."""

from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli.app import app
from seq2seq_cli.cli.options import ModelLanguages, RunDir, Tag, WhichModel, path_option
from seq2seq_cli.extras.export.limits import FormatName

License = Annotated[
    str,
    typer.Option(
        "--license",
        help="License for the model card: a Hugging Face Hub identifier, such as apache-2.0.",
    ),
]


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq export runs/quickstart --format ctranslate2 --output runs/quickstart-ct2\n\n"
    "seq2seq export runs/quickstart --format huggingface --output runs/quickstart-hf\n\n"
    "seq2seq export runs/quickstart --format argos --output quickstart.argosmodel\n\n"
    "seq2seq export runs/imported --format marian --output runs/imported-marian"
)
def export(
    run_dir: RunDir,
    output: Annotated[
        Path,
        path_option("--output", "-o", help_text="Folder to write, or file for an Argos package."),
    ],
    file_format: Annotated[FormatName, typer.Option("--format", help="Target format.")],
    model: WhichModel = "best",
    langs: ModelLanguages = None,
    tag: Tag = None,
    license_name: License = "unknown",
) -> None:
    """Export a trained model to another program's format, and check that its translations agree."""
    from seq2seq_cli.extras.export.exporter import export as export_run

    typer.echo(export_run(run_dir, file_format, output, model, langs, tag, license_name))
