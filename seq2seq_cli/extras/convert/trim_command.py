"""The command trim: reduces the vocabulary of a run to what a text needs."""

from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli.app import app
from seq2seq_cli.cli.options import Fields, RunDir, WhichModel, check_fields, path_option
from seq2seq_cli.config.text import ParallelText, format_of_pairs


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq trim runs/opus --text domain.tsv --output runs/small\n\n"
    "seq2seq trim runs/opus --text domain.de --text domain.en --output runs/small"
)
def trim(
    run_dir: RunDir,
    text: Annotated[
        list[Path],
        path_option(
            "--text",
            help_text="Text whose tokens are kept: a file of pairs (.tsv, .jsonl, .tmx or .zip), "
            "or a file of sentences of either side, one per line; may be repeated.",
        ),
    ],
    output: Annotated[
        Path, path_option("--output", "-o", help_text="New or empty run folder to write.")
    ],
    fields: Fields = None,
    model: WhichModel = "best",
) -> None:
    """Reduce the vocabulary of a run to what a text needs; logits of kept entries do not change.

    Keeps the tokens of the text, tags, bytes and single characters, which spell what is dropped.
    """
    from seq2seq_cli.extras.convert.trim import trim as trim_run

    check_fields(fields, text)
    typer.echo(trim_run(run_dir, [_text_of(path, fields) for path in text], output, model))


def _text_of(path: Path, fields: tuple[str, str] | None) -> ParallelText:
    is_pairs = format_of_pairs(path) is not None
    given = {"pairs": path, "fields": fields} if is_pairs else {"src": path, "tgt": path}
    return ParallelText.of(is_given_now=True, **given)
