"""The commands: each parses its arguments, calls one function and prints the result.

Torch is imported inside commands, so that `--help` is fast.
"""

from seq2seq_cli.cli import (
    attend,
    average,
    bench,
    compare,
    diff,
    evaluate,
    export,
    find_lr,
    init,
    inspect,
    join,
    plot,
    push,
    serve,
    train,
    translate,
)
from seq2seq_cli.cli.app import app, main

__all__ = [
    "app",
    "attend",
    "average",
    "bench",
    "compare",
    "diff",
    "evaluate",
    "export",
    "find_lr",
    "init",
    "inspect",
    "join",
    "main",
    "plot",
    "push",
    "serve",
    "train",
    "translate",
]
