"""The commands, one per file: each parses its arguments, calls one function and prints the result.

A command is imported when it is called, and imports torch itself. `app.py` lists the commands of
the core, `plugins.py` what extras add.
"""

from seq2seq_cli.cli.app import app, main

__all__ = ["app", "main"]
