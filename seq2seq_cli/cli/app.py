"""The Typer app: error handling, exit statuses and logging."""

import atexit
import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from seq2seq_cli import __version__, plugins
from seq2seq_cli.console import log_to_stderr, printable_lines
from seq2seq_cli.errors import Interrupted, UserError, of_system, shortages_reported
from seq2seq_cli.files import naming
from seq2seq_cli.machine import torch_environment
from seq2seq_cli.processes import ending_at_signals

_CORE = [  # in the order in which they are typically used
    *("init", "check", "vocab", "preprocess", "train", "average", "verify-resume", "translate"),
    *("join", "eval", "compare", "score", "diff"),
]
_COMMANDS = [*_CORE, *sorted(plugins.COMMANDS)]
_SEVERAL_REFERENCES = (
    "; eval and compare take several references as further lines with the same source and "
    "--set validation.merge_references=true"
)


class _Program(TyperGroup):
    """Imports the command that is called, without the others, which would take a tenth of a second.

    Turns exceptions into one message and an exit status: 2 for user errors, 130 for Ctrl-C, and 143
    for SIGTERM.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """List the core's commands in the order of their use, then the commands of extras."""
        self._import(_COMMANDS)
        for name in plugins.COMMANDS:
            cast(TyperCommand, self.commands[name]).rich_help_panel = "Commands of extras"
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        self._import([cmd_name] if cmd_name in _COMMANDS else _COMMANDS)  # all, to suggest one
        return super().get_command(ctx, cmd_name)

    def _import(self, names: Iterable[str]) -> None:
        if missing := set(names) - set(self.commands):
            for name in missing:
                plugins.register_command(name)
            self.commands.update(get_group(app).commands)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _errors_reported():  # of printing --help
            return super().make_context(*args, **kwargs)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Refuse a second text where one is read: Click would silently take the last."""
        name, command, rest = super().resolve_command(ctx, args)
        given = [arg.partition("=")[0] for arg in rest]
        for option in command.params if command and not ctx.resilient_parsing else ():
            is_text = option.name in ("src", "ref", "pairs") and not option.multiple
            if is_text and given.count(f"--{option.name}") > 1:
                several = _SEVERAL_REFERENCES if option.name == "ref" else ""
                raise UserError(f"--{option.name} is given twice, but one text is read{several}")
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        with _errors_reported(), ending_at_signals():
            return super().invoke(ctx)


@contextlib.contextmanager
def _errors_reported() -> Iterator[None]:
    def fail(message: str, exit_status: int) -> NoReturn:
        with contextlib.suppress(OSError):  # a full disk; Ctrl-C has also ended `| tee`
            typer.echo(printable_lines(message), err=True)
        raise typer.Exit(exit_status) from None

    try:
        with shortages_reported():
            yield
    except UserError as error:
        fail(f"error: {error}", 2)
    except typer.BadParameter as error:
        error.message = error.message.removeprefix("Value error, ")  # pydantic's
        raise
    except Interrupted as stop:
        fail(str(stop), stop.exit_status)
    except (KeyboardInterrupt, typer.Abort):  # Abort: in answer to a question
        fail("interrupted", 130)
    except (BrokenPipeError, SystemExit) as error:
        # The reader of the output is gone, as with `| head`; Rich, which prints --help, exits.
        if BrokenPipeError not in (type(error), type(error.__context__)):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(141) from None
    except OSError as error:
        if error.errno is None:  # not raised by the system: a bug
            raise
        fail(f"error: {of_system(error)}", 2)


class _Stdout(io.FileIO):
    """Standard output, whose errors have a name."""

    @naming(Path("standard output"))
    def write(self, data: Any) -> int:
        return super().write(data)


app = typer.Typer(
    name="seq2seq",
    cls=_Program,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> NoReturn:
    """Run the `seq2seq` command.

    The process exits without Python's finalization: destroying PyTorch's objects takes a fifth of
    the time of translating one sentence.
    """
    _open_standard_streams()
    try:
        app()
    except SystemExit as end:
        status = end.code or 0
        assert isinstance(status, int), "commands raise typer.Exit"
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # nohup
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C from here on: no traceback
        atexit._run_exitfuncs()
        try:
            sys.stdout.flush()
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                status = status or 141
            elif not status:
                status = 2
                with contextlib.suppress(OSError):
                    typer.echo(f"error: {of_system(error)}", err=True)
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(status)
    raise AssertionError("Typer always ends by SystemExit")


def _open_standard_streams() -> None:
    """Replace standard streams that the caller has closed; other files would get their numbers.

    Input is empty, messages are lost, and results cannot be written. Errors of output get a name.
    """
    for name, mode, access in (
        ("stdin", "r", os.O_RDONLY),
        ("stdout", "w", os.O_RDONLY),
        ("stderr", "w", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, access), mode))
    out = sys.stdout
    binary = getattr(out, "buffer", None)
    raw = getattr(binary, "raw", binary)  # which is unbuffered with python -u
    if isinstance(out, io.TextIOWrapper) and type(raw) is io.FileIO:
        sys.__stdout__ = out  # type: ignore[misc]  # which would close its descriptor
        named = _Stdout(out.fileno(), "w", closefd=False)
        flush = (out.line_buffering, out.write_through)
        binary = named if raw is binary else io.BufferedWriter(named)
        sys.stdout = io.TextIOWrapper(binary, out.encoding, out.errors, None, *flush)


@app.callback(invoke_without_command=True)
def _global_options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Train encoder-decoder Transformers on your own parallel text, and translate with them.

    Training reads a YAML config (for example configs/quickstart.yaml; configs/reference.yaml
    documents all options) and writes a run folder, which translate, eval and other commands read.
    """
    if version:
        from seq2seq_cli.native.library import kernels_name

        typer.echo(f"seq2seq {__version__} (kernels: {kernels_name() or 'not compiled'})")
        raise typer.Exit
    log_to_stderr()
    if isinstance(sys.stdout, io.TextIOWrapper):  # which may not be in UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, io.TextIOWrapper):  # answers to questions, and sentences
        sys.stdin.reconfigure(errors="surrogateescape")
    os.environ.update(torch_environment())
