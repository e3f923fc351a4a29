"""The command init: looks at a text, asks what it cannot know, and writes a config."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli.app import Fields, app, path_argument, path_option
from seq2seq_cli.console import printable
from seq2seq_cli.errors import UserError
from seq2seq_cli.paths import expanded

EXAMPLES = (
    "**Examples**\n\n"
    "seq2seq init data/quickstart/train.de data/quickstart/train.en\n\n"
    "seq2seq init all.tsv --valid-size 500 --test-size 500 --hours 2 --yes\n\n"
    "seq2seq init train.de train.en --valid valid.de --valid valid.en --output mine.yaml --yes"
)

Files = Annotated[
    list[Path],
    path_argument("FILE...", "Training text: two files of sentences, or one file of pairs."),
]
Output = Annotated[Path, path_option("--output", "-o", help_text="Config to write.")]
Valid = Annotated[
    list[Path] | None,
    path_option(
        help_text="Validation text: one file of pairs, or two files by giving the option twice."
    ),
]
ValidSize = Annotated[
    int | None, typer.Option(min=0, help="Pairs to set aside for validation; 0: no validation.")
]
TestSize = Annotated[int | None, typer.Option(min=0, help="Pairs to set aside for tests.")]
Hours = Annotated[
    float | None,
    typer.Option(min=0, help="Hours that training may take on this machine; 0: no limit."),
]
PresetName = Annotated[
    str | None,
    typer.Option("--preset", help="small, medium or large.", show_default="by the pairs"),
]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Ask nothing: use the defaults, overwrite nothing.")
]


@app.command(epilog=EXAMPLES)
def init(
    files: Files,
    output: Output = Path("mine.yaml"),
    fields: Fields = None,
    valid: Valid = None,
    valid_size: ValidSize = None,
    test_size: TestSize = None,
    hours: Hours = None,
    preset: PresetName = None,
    yes: Yes = False,
) -> None:
    """Look at a training text, ask what it cannot tell, and write the config of a first run.

    Pairs that are set aside, and those left to train on, are written to a folder with the name of
    the config. No source is in two parts, and the same text is always split in the same way.
    """
    if valid and valid_size:
        raise UserError("give --valid or --valid-size, not both")
    from seq2seq_cli.tools.new_run import NewRun, choose_preset, look_at, text_of

    train = text_of(files, fields)
    text = look_at(train)
    name = choose_preset(preset, text.counts.pairs)
    for label, found in (*text.rows(), ("preset", name)):
        typer.echo(f"{label:<16} {found}")
    if valid is None and valid_size is None:
        valid, valid_size = (None, text.held_out) if yes else _ask_for_validation(text.held_out)
    if test_size is None:
        suggested = min(text.held_out, valid_size or 0)
        asks = suggested and not yes
        test_size = typer.prompt("Pairs to set aside for tests", suggested) if asks else suggested
    if hours is None:
        question = "Hours that training may take on this machine (0: no limit)"
        hours = 0.0 if yes else typer.prompt(question, 0.0, type=float)
    sizes = {"valid": valid_size or 0, "test": test_size}
    held_out = text_of(valid, fields if len(valid) == 1 else None) if valid else None
    new = NewRun(output, train, held_out, sizes)
    if existing := " and ".join(map(str, new.existing_files())):
        if yes:
            raise UserError(f"{existing} would be overwritten: choose another --output")
        typer.confirm(f"Overwrite {printable(existing)}?", abort=True)
    for path in new.write(text, name, hours):
        typer.echo(f"wrote {printable(str(path))}")
    typer.echo("Next, look for mistakes in the text, then train:")
    for command in ("check", "train"):
        typer.echo(f"  seq2seq {command} {shlex.quote(printable(str(output)))}")


def _ask_for_validation(suggested: int) -> tuple[list[Path] | None, int | None]:
    """Ask for files, or for the number of pairs to set aside."""
    question = "Validation text: its file or two files, or the number of pairs to set aside"
    answer = typer.prompt(question, str(suggested))
    if answer.strip().isdecimal():
        return None, int(answer)
    files = [answer] if expanded(answer).exists() else answer.split()
    return [expanded(file) for file in files], None
