"""The commands, one per file: each parses its arguments, calls one function and prints the result.

Torch is imported inside commands, so that `--help` is fast. Extras register their own commands;
`plugins.py` has the table.
"""

from seq2seq_cli.cli import (  # noqa: F401 (they register commands)
    average,
    check,
    compare,
    diff,
    eval,
    init,
    join,
    preprocess,
    score,
    train,
    translate,
    verify_resume,
    vocab,
)
from seq2seq_cli.cli.app import EXTRAS_PANEL, app, main
from seq2seq_cli.plugins import register_commands

register_commands()
for _command in app.registered_commands:
    if _command.callback and _command.callback.__module__.startswith("seq2seq_cli.extras."):
        _command.rich_help_panel = EXTRAS_PANEL

__all__ = ["app", "main"]
