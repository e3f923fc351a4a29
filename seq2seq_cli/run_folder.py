"""The folder that holds a run: what lies where, and writing that a crash cannot halve."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seq2seq_cli.errors import UserError


class RunFolder:
    """Paths of a run; `runs/README.md` tells users what each file is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.model = path / "model.safetensors"
        self.checkpoint = path / "checkpoint"
        self.old_checkpoint = path / "checkpoint.old"
        self.metrics = path / "metrics.jsonl"
        self.manifest = path / "manifest.json"
        self.log = path / "train.log"

    @property
    def is_started(self) -> bool:
        """Whether a run began here: its config is the last thing written before training."""
        return self.config.is_file()

    @property
    def last_checkpoint(self) -> Path | None:
        """The newest whole one: a crash while the two are swapped leaves only the old one."""
        for folder in (self.checkpoint, self.old_checkpoint):
            if (folder / "state.json").is_file():
                return folder
        return None

    def tokenizer_paths(self, shared: bool) -> tuple[Path, Path]:
        """Where the source's and the target's tokenizer are: one file when they are one."""
        if shared:
            return self.path / "tokenizer.model", self.path / "tokenizer.model"
        return self.path / "src.model", self.path / "tgt.model"

    def must_hold_a_model(self) -> None:
        """Raises UserError unless there is something to translate with."""
        if not self.path.is_dir():
            raise UserError(f"there is no run folder {self.path}")
        for file in (self.config, self.model):
            if not file.is_file():
                raise UserError(
                    f"{self.path} is not the folder of a trained run: it has no {file.name}"
                )


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """A crash leaves the old file or the new one, never half of one."""
    part = path.with_name(path.name + ".part")
    try:
        write(part)
        sync(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Return when a file, or a folder's list of names, is on the disk for certain."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> Any:
    """Raises UserError when the file is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except ValueError:
        raise UserError(f"{path} is damaged: it is not JSON") from None
