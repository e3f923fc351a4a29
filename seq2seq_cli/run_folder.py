"""The folder that holds a run: what lies where, and its lock."""

import errno
import fcntl
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from seq2seq_cli.errors import UserError
from seq2seq_cli.files import MEBIBYTE, read_bounded

logger = logging.getLogger(__name__)


class RunFolder:
    """Paths of a run; `docs/run_folder.md` describes each file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.model = path / "model.safetensors"
        self.best = path / "best"
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.manifest = path / "manifest.json"
        self.statistics = path / "statistics.json"
        self.log = path / "train.log"

    @property
    def is_started(self) -> bool:
        """Whether a run began here: its config is the last thing written before training."""
        return self.config.is_file()

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / _name_of_step(step)

    def all_checkpoints(self) -> dict[int, Path]:
        """By step, the last one first."""
        return _by_step(self.checkpoints, "")

    @property
    def last_checkpoint(self) -> Path | None:
        return next(iter(self.all_checkpoints().values()), None)

    def best_model(self, step: int) -> Path:
        """Where one of several best models is kept."""
        return self.best / f"{_name_of_step(step)}.safetensors"

    def all_best_models(self) -> dict[int, Path]:
        """By step, the last one first; none but where `validation.keep_best` is more than one."""
        return _by_step(self.best, ".safetensors")

    def new_tokenizer_paths(self, *, is_one: bool) -> tuple[Path, Path]:
        """Where the source's and the target's tokenizer belong: one file when they are one."""
        if is_one:
            return self.path / "tokenizer.model", self.path / "tokenizer.model"
        return self.path / "src.model", self.path / "tgt.model"

    def tokenizer_paths(self, shared: bool) -> tuple[Path, Path]:
        """Where they are, or else should be.

        A shared vocabulary has two files where its sides normalize text differently.
        """
        two = self.new_tokenizer_paths(is_one=False)
        is_one = shared and not any(path.exists() for path in two)
        return self.new_tokenizer_paths(is_one=is_one)

    def ensure_is_run(self) -> None:
        """Raises UserError if there is none, or one whose files lie elsewhere."""
        if not self.path.is_dir():
            raise UserError(f"there is no run folder {self.path}")
        if not self.config.is_file():
            raise UserError(f"{self.path} is not a run folder: it has no {self.config.name}")
        self.reject_escaping_links()

    def reject_escaping_links(self) -> None:
        """Raises UserError at a link that leads out of the folder, or a pipe or device in it.

        Somebody else's run must not read or overwrite other files; the folder itself may be a link.
        """
        folder = os.path.realpath(self.path)
        for parent, folders, files in os.walk(folder):
            for path in (Path(parent, name) for name in (*folders, *files)):
                if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(folder):
                    raise UserError(f"{path} is a link that leads out of the run folder; remove it")
                if path.exists() and not (path.is_file() or path.is_dir()):
                    raise UserError(f"{path} is neither a file nor a folder; remove it")

    def metrics_lines(self) -> list[bytes]:
        """Of the logged points, with their ends; the last one may be half of one."""
        if not self.metrics.exists():
            return []
        return read_bounded(self.metrics, 256 * MEBIBYTE).splitlines(keepends=True)

    def weights(self, which: str = "best") -> Path:
        """Of the best model, of the last checkpoint, or of a step that was kept: best, last, 500.

        Raises UserError if they are not there.
        """
        self.ensure_is_run()
        kept = {step: path / "weights.safetensors" for step, path in self.all_checkpoints().items()}
        if which == "best" and self.model.is_file():
            return self.model
        if which == "best":
            hint = "; --model last takes the last checkpoint" if kept else ""
            raise UserError(f"{self.path} has no {self.model.name} yet{hint}")
        if which == "last" and kept:
            return next(iter(kept.values()))
        kept |= self.all_best_models()
        if which.isascii() and which.isdigit() and int(which) in kept:
            return kept[int(which)]
        steps = ", ".join(map(str, sorted(kept))) or "none"
        raise UserError(
            f"{self.path} has no model {which}; valid: best, last, or a step that was kept: {steps}"
        )

    def ensure_new_or_empty(self) -> None:
        """Raises UserError rather than write a run among somebody's other files."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file, not a run folder")
        if self.model.exists() or any(self.all_checkpoints()):  # step 0 is no loss
            raise UserError(
                f"{self.path} holds a model but no {self.config.name}; put that back, or give this "
                "run a --run-dir of its own"
            )
        own = {path.name for path in vars(self).values()}
        own |= {"tokenizer.model", "src.model", "tgt.model", "vocab"}
        names = [path.name for path in self.path.iterdir()] if self.path.exists() else []
        foreign = [name for name in names if name.removesuffix(".part") not in own]
        if foreign:
            raise UserError(
                f"{self.path} is not a run folder and not empty (it holds {foreign[0]}); "
                "give the run a --run-dir of its own"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While the block runs nobody else may train here; the lock dies with the process.

        Makes the folder, and takes it away again if it stays empty; takes away what a killed
        process left half-written. Raises UserError if another process has the lock.
        """
        if not self.is_started:
            self.ensure_new_or_empty()
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            self._lock(descriptor)
            for part in self.path.glob("**/*.part"):
                if part.is_file():
                    part.unlink()
            try:
                yield
            finally:
                with suppress(OSError):
                    self.path.rmdir()
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), self.path.stat()):
                raise BlockingIOError  # who had the lock removed the folder, and another made it
        except (BlockingIOError, FileNotFoundError):
            raise UserError(
                f"another process is training in {self.path}; stop it first, or give this run "
                "a --run-dir of its own"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            logger.warning(f"{self.path} cannot be locked here: take care that nobody else trains")


def _name_of_step(step: int) -> str:
    return f"step-{step:08}"


def _by_step(folder: Path, suffix: str) -> dict[int, Path]:
    pattern = re.compile(r"step-([0-9]{8,})" + re.escape(suffix))
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    found = {
        int(match[1]): folder / match[0] for name in names if (match := pattern.fullmatch(name))
    }
    return dict(sorted(found.items(), reverse=True))
