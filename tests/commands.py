"""Types and paths shared by tests."""

import functools
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent


class Result(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str

    def ok(self) -> "Result":
        """Return the result of a command that must succeed."""
        assert self.exit_code == 0, self.stderr
        return self

    def error(self) -> str:
        """Return the message of a command that must exit with 2."""
        assert self.exit_code == 2, self.stderr
        return self.stderr


def logged_points(run: Path) -> list[dict[str, Any]]:
    """Return the entries of metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def last_checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").iterdir())


def free_port() -> int:
    """Return the number of a port of the loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@functools.cache
def all_commands() -> dict[str, Any]:
    """Return the Click command or group of each command of the program."""
    from typer.main import get_group

    from seq2seq_cli.cli import app

    group = get_group(app)
    return {name: group.get_command(None, name) for name in group.list_commands(None)}  # type: ignore[arg-type]


Command = Callable[..., Result]
