"""Stages of a command: a finished one is made again only if its inputs change."""

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.errors import GOES_ON, Interrupted, Terminated, UserError
from seq2seq_cli.files import read_json, replacing, write_json
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.corpus import hash_of_files

Facts = dict[str, Any]  # what a stage tells those after it and the report, as JSON


def text_inputs(text: ParallelText) -> Facts:
    """Return everything that the pairs of a text depend on."""
    return {"files": hash_of_files(text.files), "options": text.options}


@contextmanager
def resumable() -> Iterator[None]:
    """Raise Interrupted on Ctrl-C or SIGTERM: the same command goes on."""
    try:
        yield
    except Terminated as ended:
        raise Interrupted(GOES_ON, ended.exit_status) from None
    except KeyboardInterrupt:
        raise Interrupted(GOES_ON, 128 + signal.SIGINT) from None


@dataclass(frozen=True)
class Stage:
    """A stage, and everything that its files depend on, as JSON."""

    record: Path
    inputs: Facts

    def facts(self) -> Facts | None:
        """Return what the finished stage recorded; None if its inputs or its files differ."""
        try:
            found, folder = read_json(self.record), self.record.parent
            is_same = found["inputs"] == json.loads(json.dumps(self.inputs)) and all(
                hash_of_files([folder / name]) == sha256 for name, sha256 in found["files"].items()
            )
            facts: Facts = found["facts"]
        except (UserError, FileNotFoundError, KeyError, TypeError, AttributeError):
            return None
        return facts if is_same else None

    def ensure_kept(self, run: RunFolder) -> None:
        """Raise UserError if the run has begun to learn from what this stage would change."""
        if run.exists and self.facts() is None:
            raise UserError(
                f"{run.path} has learned from another source, from other translations or with "
                "other options, or its files have changed: choose another --output"
            )

    def finish(self, make: Callable[[], tuple[Sequence[Path], Facts]]) -> Facts:
        """Return the facts of the stage; `make` writes its files first, unless it is finished."""
        if (facts := self.facts()) is not None:
            return facts
        self.record.unlink(missing_ok=True)
        files, facts = make()
        folder = self.record.parent
        hashes = {str(os.path.relpath(path, folder)): hash_of_files([path]) for path in files}
        write_json(self.record, {"inputs": self.inputs, "files": hashes, "facts": facts})
        return facts


@contextmanager
def written(path: Path) -> Iterator[Callable[[Any], None]]:
    """Yield a function that writes an object as a line of JSON; the file is complete or absent."""
    with (
        replacing(path) as part,
        part.open("w", encoding="utf-8", errors="replace", newline="\n") as file,
    ):
        yield lambda value: print(json.dumps(value, ensure_ascii=False), file=file)
