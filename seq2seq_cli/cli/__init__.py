"""The verbs: parse, call one function, print, exit status. Torch is imported inside commands."""

from seq2seq_cli.cli import bench, comparing, exporting, scoring, training, translating
from seq2seq_cli.cli.program import ENVIRONMENT, app, main

__all__ = [
    "ENVIRONMENT",
    "app",
    "bench",
    "comparing",
    "exporting",
    "main",
    "scoring",
    "training",
    "translating",
]
