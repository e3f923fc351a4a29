"""Types and paths shared by tests."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Result(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


def last_checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").iterdir())


Command = Callable[..., Result]
