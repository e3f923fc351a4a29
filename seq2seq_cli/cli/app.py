"""The program around the verbs: failures, exit statuses, logging, options that verbs share."""

import atexit
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from seq2seq_cli import __version__
from seq2seq_cli.console import log_to_stderr
from seq2seq_cli.errors import Interrupted, UserError
from seq2seq_cli.machine import torch_environment
from seq2seq_cli.paths import expanded

if TYPE_CHECKING:
    from seq2seq_cli.config.schema import Config
    from seq2seq_cli.config.text import Corpus

_ORDER = [
    *("check", "vocab", "train", "verify-resume"),
    *("translate", "eval", "score", "diff", "export", "bench"),
]


class _Program(TyperGroup):
    """Turns failures into one message and an exit status: 2 the user's, 130 interrupted."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order in which they are used."""
        return sorted(super().list_commands(ctx), key=_ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            _fail(f"error: {error}", 2)
        except Interrupted as stop:
            _fail(str(stop), stop.exit_status)
        except KeyboardInterrupt:
            _fail("interrupted", 130)
        except BrokenPipeError:  # whoever read our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except OSError as error:
            if error.errno is None:  # not the system's: a bug
                raise
            _fail(f"error: {error.filename or 'system'}: {error.strerror or error}", 2)


def _fail(message: str, exit_status: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(exit_status) from None


app = typer.Typer(
    name="seq2seq",
    cls=_Program,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> NoReturn:
    """The `seq2seq` command.

    The process ends without Python's own finalization: taking PyTorch apart, object by object, is a
    fifth of the time of translating one sentence.
    """
    try:
        app()
    except SystemExit as end:
        status = end.code or 0
        assert isinstance(status, int), "commands raise typer.Exit"
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError):  # then Python tries again below, and says what is lost
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        raise
    raise AssertionError("Typer always ends by SystemExit")


@app.callback(invoke_without_command=True)
def _global_options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Train encoder-decoder Transformers on your own parallel text, and use them.

    A run begins with a YAML config (configs/quickstart.yaml is a whole one, configs/reference.yaml
    explains every option) and becomes a folder, which translate and eval take.
    """
    if version:
        typer.echo(f"seq2seq {__version__}")
        raise typer.Exit
    log_to_stderr()
    os.environ.update(torch_environment())


def in_full(given: Path | list[Path] | None) -> Path | list[Path] | None:
    """The callback of every path: `--src=~/x` and `'$HOME/x'` reach us as they are written."""
    if given is None:
        return None
    return [expanded(path) for path in given] if isinstance(given, list) else expanded(given)


ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        help="YAML file; configs/reference.yaml explains it.",
        callback=in_full,
    ),
]
RunDir = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a trained run.", callback=in_full)
]
Sources = Annotated[Path | None, typer.Option("--src", help="Source sentences.", callback=in_full)]
References = Annotated[
    Path | None, typer.Option("--ref", help="Their translations.", callback=in_full)
]
Pairs = Annotated[
    Path | None,
    typer.Option("--pairs", help="Instead: a .tsv or .jsonl file.", callback=in_full),
]
Device = Annotated[Literal["auto", "cpu", "cuda"] | None, typer.Option(help="Where to compute.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace an option; may be repeated."),
]
WhichModel = Annotated[
    str, typer.Option("--model", metavar="WHICH", help="best, last, or a step that was kept.")
]


def load_config_file(
    path: Path, overrides: list[str] | None, device: str | None = None
) -> "Config":
    from seq2seq_cli.config.loader import load_config

    given = [*(overrides or []), *([f"training.device={device}"] if device else [])]
    return load_config(path, given, is_given_now=True)


@contextlib.contextmanager
def corpus_of(src: Path | None, ref: Path | None, pairs: Path | None) -> Iterator["Corpus | None"]:
    """Text given on the command line, streams too, while the block runs; None if none is given.

    UserError if it is not there.
    """
    from pydantic import ValidationError

    from seq2seq_cli.config.text import Corpus
    from seq2seq_cli.text.streams import as_files

    if not (src or ref or pairs):
        yield None
        return
    if (src is None) != (ref is None) or (pairs and src):
        raise UserError("give --src and --ref, or --pairs alone")
    with as_files([src, ref], pairs) as ([src, ref], pairs):
        try:
            corpus = Corpus.model_validate({"src": src, "tgt": ref, "pairs": pairs})
        except ValidationError as error:
            raise UserError(str(error.errors()[0]["ctx"]["error"])) from None
        yield corpus


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty()
