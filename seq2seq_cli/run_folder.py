"""The folder that holds a run: what lies where, and writing that a crash cannot halve."""

import json
import os
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

    def weights(self, *, last: bool) -> Path:
        """The best model's weights, or the last checkpoint's; UserError if they are not there."""
        if not self.path.is_dir():
            raise UserError(f"there is no run folder {self.path}")
        if not self.config.is_file():
            raise UserError(f"{self.path} is not a run folder: it has no {self.config.name}")
        checkpoint = self.last_checkpoint
        if last and checkpoint is None:
            raise UserError(f"{self.path} has no checkpoint: leave out --last")
        if last and checkpoint is not None:
            return checkpoint / "weights.safetensors"
        if not self.model.is_file():
            hint = "; --last takes the last checkpoint" if checkpoint is not None else ""
            raise UserError(f"{self.path} has no {self.model.name} yet{hint}")
        return self.model

    def must_be_free(self) -> None:
        """Raises UserError rather than write a run among somebody's other files."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file, not a run folder")
        own = {path.name for path in vars(self).values()} | {"vocab", "src.model", "tgt.model"}
        own |= {"tokenizer.model"}
        names = [path.name for path in self.path.iterdir()] if self.path.exists() else []
        foreign = [name for name in names if name.removesuffix(".part") not in own]
        if foreign:
            raise UserError(
                f"{self.path} is not a run folder and not empty (it holds {foreign[0]}); "
                "give the run a --run-dir of its own"
            )


def write_bytes(path: Path, data: bytes) -> None:
    """A crash leaves the old file or the new one, never half of one; an error names the file."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        sync(part)
        part.replace(path)
        sync(path.parent)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Return when a file, or a folder's list of names, is on the disk for certain."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_bytes(path, text.encode("utf-8"))


def read_json(path: Path) -> Any:
    """Raises UserError when the file is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is damaged: it is not JSON") from None
