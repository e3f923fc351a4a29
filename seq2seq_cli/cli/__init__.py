"""The verbs: parse, call one function, print, exit status. Torch is imported inside commands."""

from seq2seq_cli.cli import bench, diff, evaluate, export, train, translate
from seq2seq_cli.cli.app import app, main

__all__ = ["app", "bench", "diff", "evaluate", "export", "main", "train", "translate"]
