"""The command import: makes a run folder from another program's model."""

from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli.app import app
from seq2seq_cli.cli.options import ModelLanguages, path_argument, text_option
from seq2seq_cli.console import printable_lines
from seq2seq_cli.errors import UserError
from seq2seq_cli.paths import expanded


@app.command(
    "import",
    epilog="**Examples**\n\n"
    "seq2seq import Helsinki-NLP/opus-mt-de-en runs/opus\n\n"
    "seq2seq import translate-de_en-1_9.argosmodel runs/argos\n\n"
    "seq2seq import marian-model runs/marian --langs de-en --text sentences.de",
)
def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Folder with a model of transformers (MarianMT), Marian or CTranslate2, an "
            ".argosmodel file, or the name of a MarianMT model on the Hugging Face Hub.",
        ),
    ],
    run_dir: Annotated[Path, path_argument("RUN", "New or empty run folder to write.")],
    langs: ModelLanguages = None,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="Compare the run's outputs with the original program's.",
            show_default="if it is installed",
        ),
    ] = None,
    text: Annotated[
        Path | None,
        text_option(
            "--text",
            help_text="File of source sentences for the comparison, instead of generated ones.",
        ),
    ] = None,
) -> None:
    """Make a run folder from a model of OPUS-MT, Marian, CTranslate2 or Argos Translate."""
    if text is not None and verify is False:
        raise UserError("--text is for the comparison, which --no-verify leaves out")
    from seq2seq_cli.extras.convert.importer import import_model

    report = import_model(str(expanded(source)), run_dir, langs, verify, text)
    typer.echo(printable_lines(report))
