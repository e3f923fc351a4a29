"""The commands: each parses its arguments, calls one function and prints the result.

Torch is imported inside commands, so that `--help` is fast. The commands of extras are in their
folders; `plugins.py` has the table.
"""

from seq2seq_cli.cli import average, bench, compare, diff, evaluate, init, join, train, translate
from seq2seq_cli.cli.app import app, main
from seq2seq_cli.plugins import register_commands

register_commands()

__all__ = [
    "app",
    "average",
    "bench",
    "compare",
    "diff",
    "evaluate",
    "init",
    "join",
    "main",
    "train",
    "translate",
]
