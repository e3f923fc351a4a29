"""The command init: writes the config of a first run for a training text."""

import functools
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from seq2seq_cli import plugins
from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app
from seq2seq_cli.console import printable
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import write_atomic
from seq2seq_cli.paths import check_utf8, expanded

if TYPE_CHECKING:
    from seq2seq_cli.config.schema import Config
    from seq2seq_cli.config.text import ParallelText

Answer = TypeVar("Answer")

EXAMPLES = (
    "**Examples**\n\n"
    "seq2seq init data/quickstart/train.de data/quickstart/train.en\n\n"
    "seq2seq init all.tsv --valid-size 500 --test-size 500 --hours 2 --yes\n\n"
    "seq2seq init train.de train.en --valid valid.de --valid valid.en --output mine.yaml --yes\n\n"
    "seq2seq init --example"
)

Files = Annotated[
    list[Path] | None,
    options.path_argument(
        "FILE",
        "Training text: two files of sentences or one file of pairs; with --example, a folder.",
    ),
]
Output = Annotated[Path, options.path_option("--output", "-o", help_text="Config to write.")]
Valid = Annotated[
    list[Path] | None,
    options.path_option(
        help_text="Validation text: a file of pairs, or two files (give the option twice)."
    ),
]
ValidSize = Annotated[
    int | None, typer.Option(min=0, help="Number of pairs to hold out for validation; 0 for none.")
]
TestSize = Annotated[int | None, typer.Option(min=0, help="Number of pairs to hold out for tests.")]
Hours = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Maximum training time in hours (training.max_hours); some updates are timed to "
        "adapt the config. 0 for no limit.",
    ),
]
PresetName = Annotated[
    str | None,
    typer.Option(
        "--preset", help="Preset: small, medium, large.", show_default="by number of pairs"
    ),
]
_MINE = Path("mine.yaml")
Example = Annotated[
    bool,
    typer.Option("--example", help="Write the quickstart's config and text to a folder instead."),
]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Accept all defaults without asking; overwrite nothing.")
]


@app.command(epilog=EXAMPLES)
def init(
    files: Files = None,
    output: Output = _MINE,
    fields: options.Fields = None,
    features: options.Features = None,
    valid: Valid = None,
    valid_size: ValidSize = None,
    test_size: TestSize = None,
    hours: Hours = None,
    preset: PresetName = None,
    yes: Yes = False,
    example: Example = False,
) -> None:
    """Analyze a training text, ask for missing information, and write the config of a first run.

    Held-out pairs and the remaining training pairs are written to a folder with the name of the
    config. All pairs with the same source are in one part, and the split is deterministic.
    """
    if example:
        others = (fields, features, valid, valid_size, test_size, hours, preset)
        if any(given is not None for given in others) or output != _MINE:
            raise UserError("--example takes a folder, and no other option than --yes")
        _write_example(files or [], yes=yes)
        return
    if not files:
        raise UserError("give a training text: two files, or a file of pairs; or --example")
    if valid and valid_size:
        raise UserError("give --valid or --valid-size, not both")
    if output.suffix not in (".yaml", ".yml"):
        raise UserError(f"--output {output}: the name of a config ends in .yaml")
    if parent := next(filter(Path.is_file, output.parents), None):
        raise UserError(f"--output {output}: {parent} is not a folder")
    check_utf8(output)
    from seq2seq_cli.commands.init.init import NewRun, choose_preset, look_at, text_of

    options.check_fields(fields, [*files, *(valid or ())])
    train = text_of(files, fields if len(files) == 1 else None, features)
    held_out = _held_out_text(valid, fields, features) if valid else None
    text = look_at(train)
    name = choose_preset(preset, text.counts.pairs)
    for label, found in (*text.rows(), ("preset", name)):
        typer.echo(f"{label:<16} {found}")
    if valid_size is None:
        valid_size = 0 if held_out else text.held_out
        if not (held_out or yes):
            held_out, valid_size = _ask(
                "Validation text: one or two files, or the number of pairs to hold out",
                valid_size,
                functools.partial(_text_or_size, fields=fields, features=features),
            )
    if test_size is None:
        test_size = min(text.held_out, valid_size)
        if test_size and not yes:
            test_size = _ask("Number of pairs to hold out for tests", test_size, _size)
    if hours is None:
        hours = 0.0 if yes else _ask("Maximum training time in hours (0: no limit)", 0, _hours)
    new = NewRun(output, train, held_out, {"valid": valid_size, "test": test_size})
    _ask_to_overwrite(new.existing_files(), "choose another --output", yes=yes)
    _report(output, *new.write(text, name, hours))


def _report(output: Path, written: Sequence[Path], config: "Config") -> None:
    """Print what was written, what is missing, and the next commands."""
    limits = plugins.load("export", "limits")
    for path in written:
        typer.echo(f"wrote {printable(str(path))}")
    typer.echo(f"{'exports':<16} {limits.exports_text(limits.exports(config))}")
    if config.data.valid is None:
        typer.echo(
            f"{'note':<16} no validation text, so the best model cannot be chosen. Name one with "
            "--valid, or hold out pairs with --valid-size"
        )
    typer.echo("Next, check the text for problems, then train:")
    for command in ("check", "train"):
        typer.echo(f"  seq2seq {command} {shlex.quote(printable(str(output)))}")


def _write_example(folders: Sequence[Path], *, yes: bool) -> None:
    """Write the quickstart to a folder, and print how to train and use it."""
    from seq2seq_cli.commands.init.init import example_files

    if len(folders) > 1:
        raise UserError("--example writes to one folder")
    folder = folders[0] if folders else Path()
    files = example_files(folder)
    differing = [
        path
        for path, content in files.items()
        if path.exists() and (not path.is_file() or path.read_bytes() != content)
    ]
    _ask_to_overwrite(differing, "name another folder", yes=yes)
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
        typer.echo(f"wrote {printable(str(path))}")
    typer.echo("Next, train for two minutes, and translate:")
    if folder != Path():
        typer.echo(f"  cd {shlex.quote(printable(str(folder)))}")
    typer.echo("  seq2seq train configs/quickstart.yaml")
    typer.echo('  seq2seq translate runs/quickstart "Ich möchte ein Bier trinken."')


def _ask_to_overwrite(existing: Sequence[Path], otherwise: str, *, yes: bool) -> None:
    """Raise UserError if existing files are to be kept; `yes` keeps them without asking."""
    names = " and ".join(map(str, existing))
    if existing and (yes or not typer.confirm(f"Overwrite {printable(names)}?")):
        raise UserError(f"{names} would be overwritten: {otherwise}")


def _ask(question: str, suggested: object, parse: Callable[[str], Answer]) -> Answer:
    """Ask until the answer is valid; without a terminal, raise UserError for one that is not."""

    def parsed(answer: str) -> Answer:
        try:
            return parse(answer.strip())
        except (UserError, ValueError) as error:
            if not sys.stdin.isatty():
                raise UserError(
                    f"an answer in the input cannot be used ({error}): use options, or --yes"
                ) from None
            raise typer.BadParameter(str(error)) from None

    try:
        return typer.prompt(question, str(suggested), value_proc=parsed)
    except typer.Abort:
        if sys.stdin.isatty():  # Ctrl-C or Ctrl-D
            raise
        raise UserError(
            "the input ended before all questions were answered: use options, or --yes"
        ) from None


def _text_or_size(
    answer: str, fields: tuple[str, str] | None, features: str | None
) -> "tuple[ParallelText | None, int]":
    """Return the validation text, or the number of pairs to hold out."""
    if answer.replace(",", "").isdecimal():
        return None, _size(answer)
    files = [answer] if expanded(answer).exists() else answer.split()
    paths = [expanded(file) for file in files]
    return _held_out_text(paths, fields, features), 0


def _held_out_text(
    files: Sequence[Path], fields: tuple[str, str] | None, features: str | None
) -> "ParallelText":
    """Return a text in a file of pairs with the training text's fields, or in two files."""
    from seq2seq_cli.commands.init.init import text_of

    if len(files) == 1:
        return text_of(files, fields, features)
    return text_of(files, features="2" if features else None)


def _size(answer: str) -> int:
    digits = answer.replace(",", "")
    if not digits.isdecimal() or answer not in (digits, f"{int(digits):,}"):
        raise ValueError(f"{answer} is not a number of pairs")
    return int(digits)


def _hours(answer: str) -> float:
    with suppress(ValueError):
        if (hours := float(answer)) >= 0:  # unlike NaN
            return hours
    raise ValueError(f"{answer} is not a number of hours")
