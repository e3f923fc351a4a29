"""The verbs: parse, call one function, print, exit status. Torch is imported inside commands."""

from seq2seq_cli.cli import bench, comparing, exporting, scoring, training, translating
from seq2seq_cli.cli.program import app, main

__all__ = [
    "app",
    "bench",
    "comparing",
    "exporting",
    "main",
    "scoring",
    "training",
    "translating",
]
