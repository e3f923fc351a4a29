"""The verbs: parse, call one function, print, exit status. Torch is imported inside commands."""

from seq2seq_cli.cli import bench, exporting, scoring, training, translating
from seq2seq_cli.cli.program import ENVIRONMENT, app, main

__all__ = ["ENVIRONMENT", "app", "bench", "exporting", "main", "scoring", "training", "translating"]
