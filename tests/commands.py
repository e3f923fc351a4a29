"""Types and places that tests share."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Result(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


Command = Callable[..., Result]
