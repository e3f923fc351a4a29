"""The layout of a run folder, and its lock."""

import errno
import json
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from seq2seq_cli.errors import DamagedFileError, ReplacedFileError, UserError
from seq2seq_cli.files import MEBIBYTE, is_at, lock, naming, read_json, remove

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

MOST_MEMBERS = 100  # of an ensemble
_MOST_BYTES_OF_METRICS = 16 << 30
_SECONDS_BETWEEN_TRIES = 0.5  # to lock a run


class RunFolder:
    """The paths in a run folder; `docs/run_folder.md` describes each file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.model = path / "model.safetensors"
        self.best = path / "best"
        self.checkpoints = path / "checkpoints"
        self.candidates = path / "candidates.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.manifest = path / "manifest.json"
        self.statistics = path / "statistics.json"
        self.search = path / "search.json"
        self.log = path / "train.log"
        self.lock = path / "lock"
        self.distilled = path / "distilled"
        self.diversified = path / "diversified"

    @property
    def exists(self) -> bool:
        """True if a run exists here: its config is written last before training."""
        return self.config.is_file()

    @property
    def ensemble(self) -> Path:
        """The file that makes this an ensemble, written when all of its members are trained."""
        return self.path / "ensemble.json"

    def member(self, number: int) -> "RunFolder":
        """Return the run of a member of an ensemble; the first has number 1."""
        return RunFolder(self.path / "members" / str(number))

    def members(self, which: str = "best") -> list["RunFolder"]:
        """Return the runs of an ensemble, or this one alone; `which` names their weights.

        Raises UserError for weights in a file, for links that lead out, and for a damaged record.
        """
        if not self.ensemble.is_file():
            return [self]
        if which.endswith(".safetensors"):
            raise UserError(f"--model {which} belongs to one run, but {self.path} is an ensemble")
        self.reject_escaping_links()
        record = read_json(self.ensemble)
        count = record.get("members") if isinstance(record, dict) else None
        if type(count) is not int or not 1 <= count <= MOST_MEMBERS:
            raise DamagedFileError(
                f"{self.ensemble} is damaged: it is not the record of an ensemble"
            )
        return [self.member(number) for number in range(1, count + 1)]

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / step_name(step)

    def all_checkpoints(self) -> dict[int, Path]:
        """Return all checkpoints by step, latest first."""
        return _by_step(self.checkpoints, "")

    @property
    def last_checkpoint(self) -> Path | None:
        return next(iter(self.all_checkpoints().values()), None)

    def lone_weights(self, step: int) -> Path:
        """Return the path of the weights of a step whose checkpoint is gone, kept for averages."""
        return self.checkpoints / f"{step_name(step)}.safetensors"

    def all_weights(self) -> dict[int, Path]:
        """Return the weights of all kept steps, latest first: in checkpoints, and alone.

        If a step has both, the latter counts: a crash may leave a checkpoint without weights.
        """
        lone = _by_step(self.checkpoints, ".safetensors")
        whole = {n: path / "weights.safetensors" for n, path in self.all_checkpoints().items()}
        return dict(sorted((whole | lone).items(), reverse=True))

    def best_model(self, step: int) -> Path:
        """Return the path of one of several best models."""
        return self.best / f"{step_name(step)}.safetensors"

    def all_best_models(self) -> dict[int, Path]:
        """Return the models in best/ by step, latest first: with `keep_best`, or an average."""
        return _by_step(self.best, ".safetensors")

    def new_tokenizer_paths(self, *, is_one: bool) -> tuple[Path, Path]:
        """Return the paths to write the tokenizers of source and target to, which may be equal."""
        if is_one:
            return self.path / "tokenizer.model", self.path / "tokenizer.model"
        return self.path / "src.model", self.path / "tgt.model"

    def tokenizer_paths(self, shared: bool) -> tuple[Path, Path]:
        """Return the paths to read the tokenizers of source and target from, which may be equal.

        A shared vocabulary has two files if its sides normalize text differently.
        """
        separate = self.new_tokenizer_paths(is_one=False)
        is_one = shared and not any(path.exists() for path in separate)
        return self.new_tokenizer_paths(is_one=is_one)

    def ensure_is_run(self) -> None:
        """Raise UserError if this is not a run folder, or if links lead out of it."""
        path = self.path
        if not path.is_dir():
            likely = (Path("runs", path.name), Path("runs", path.stem), path.parent)
            run = next((run for run in likely if RunFolder(run).exists), None)
            hint = f"; did you mean {run}?" if run else ""
            if path.is_file():
                raise UserError(f"{path} is a file, not a run folder{hint}")
            raise UserError(f"there is no run folder {path}{hint}")
        if not self.exists:
            first = self.member(1).path
            if self.ensemble.is_file():
                raise UserError(
                    f"{path} is an ensemble, but one model is needed: give a member, such as "
                    f"{first}"
                )
            if first.parent.is_dir():
                raise UserError(
                    f"{path} is an ensemble that is not trained yet: the same command of train "
                    "resumes it"
                )
            raise UserError(f"{path} is not a run folder: it has no {self.config.name}")
        self.reject_escaping_links()

    def reject_escaping_links(self) -> None:
        """Raise UserError for links that lead out of the folder, and for pipes and devices in it.

        A foreign run must not read or overwrite other files; the folder itself may be a link.
        """
        folder = os.path.realpath(self.path)
        for parent, folders, files in os.walk(folder):
            for path in (Path(parent, name) for name in (*folders, *files)):
                if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(folder):
                    raise UserError(f"{path} is a link that leads out of the run folder; remove it")
                with suppress(OSError):  # a training removes old checkpoints
                    mode = path.stat().st_mode
                    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                        raise UserError(f"{path} is neither a file nor a folder; remove it")

    def metrics_lines(self) -> Iterator[bytes]:
        """Yield the lines of metrics.jsonl, with line ends, in parts of at most a MiB.

        The last one may be incomplete. Raises UserError for a file larger than any run writes.
        """
        with suppress(FileNotFoundError), self.metrics.open("rb") as file:
            if os.fstat(file.fileno()).st_size > _MOST_BYTES_OF_METRICS:
                raise UserError(
                    f"{self.metrics} is larger than {_MOST_BYTES_OF_METRICS:,} bytes, the limit "
                    "for such a file"
                )
            yield from iter(lambda: file.readline(MEBIBYTE), b"")

    def metrics_points(self) -> Iterator[dict[str, Any]]:
        """Yield all complete entries of metrics.jsonl. Raises UserError for a damaged line."""
        for line in self.metrics_lines():
            try:
                point = json.loads(line) if line.endswith(b"\n") else {}
            except (ValueError, RecursionError):
                point = None
            if not isinstance(point, dict):
                raise UserError(f"{self.metrics} is damaged: {line[:40]!r} is not an entry")
            if point:
                yield point

    def weights(self, which: str = "best") -> Path:
        """Return the file of the weights that `--model` names; UserError if there is none.

        The run's model (best), the last checkpoint (last) or its EMA (ema), a step (500), or a file
        (x.safetensors).
        """
        self.ensure_is_run()
        if which.endswith(".safetensors"):
            if not Path(which).is_file():
                raise UserError(f"there is no file of weights {which}")
            return Path(which)
        by_step = self.all_weights()
        if which == "best":
            if self.model.is_file():
                return self.model
            hint = "; --model last uses the last checkpoint" if by_step else ""
            raise UserError(f"{self.path} has no best model, {self.model.name}{hint}")
        if which == "last" and by_step:
            return next(iter(by_step.values()))
        if which == "ema" and self.last_checkpoint is not None:
            path = self.last_checkpoint / "ema.safetensors"
            if path.is_file():
                return path
        by_step = self.all_best_models() | by_step  # with an EMA, the best models are its weights
        if which.isascii() and which.isdigit() and int(which) in by_step:
            return by_step[int(which)]
        steps = ", ".join(map(str, sorted(by_step))) or "none"
        raise UserError(
            f"{self.path} has no model {which}; valid: best, last, ema (of a run with "
            f"training.ema_decay), a .safetensors file, or a kept step: {steps}"
        )

    def with_weights(self, which: str, read: Callable[[Path], Result]) -> Result:
        """Return what `read` makes of `weights(which)`, again if a training has replaced them."""
        path = self.weights(which)
        while True:
            try:
                return read(path)
            except (ReplacedFileError, DamagedFileError) as error:
                before, path = path, self.weights(which)
                if path == before and isinstance(error, DamagedFileError):
                    raise

    def ensure_new_or_empty(self) -> None:
        """Raise UserError if the folder has other files, which a run must not mix with."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file, not a run folder")
        if self.model.exists() or any(self.all_checkpoints()):  # step 0 may be lost
            raise UserError(
                f"{self.path} contains a model but no {self.config.name}; put that back, or choose "
                "another --run-dir"
            )
        if self.member(1).path.parent.is_dir():
            raise UserError(
                f"{self.path} is an ensemble, which train --ensemble continues; choose another "
                "--run-dir"
            )
        for path in self.path.iterdir() if self.path.exists() else ():
            if not self._is_known(path):
                raise UserError(
                    f"{self.path} is not a run folder and not empty (it contains {path.name}); "
                    "choose another --run-dir"
                )

    def _is_known(self, path: Path) -> bool:
        """Return True for a file or folder that belongs into the folder itself, or a part of it."""
        known = {"tokenizer.model", "src.model", "tgt.model", "vocab"}
        known |= {each.name for each in vars(self).values()}
        return re.sub(r"(\.[0-9a-f]{8})?\.part$", "", path.name) in known

    @contextmanager
    def locked(self, patience: float = 0.0) -> Iterator[None]:
        """Lock the run against other trainers in the block; remove what a killed one has left.

        Creates the folder, and removes it again if it stays empty. Raises UserError for other files
        in it, for links that lead out of it, and if the lock is not free within `patience` seconds.
        """
        if self.exists:
            self.reject_escaping_links()
        else:
            self.ensure_new_or_empty()
        deadline, is_waiting = time.monotonic() + patience, False
        while (descriptor := self._try_lock()) is None:
            if time.monotonic() >= deadline:
                raise UserError(
                    f"another process is training in {self.path} or averaging its checkpoints: "
                    "wait for it, or stop it"
                )
            if not is_waiting:
                is_waiting = True
                logger.info(f"waiting for another process to leave {self.path}")
            time.sleep(_SECONDS_BETWEEN_TRIES)
        try:
            here = [part for part in self.path.glob("*.part") if self._is_known(part)]
            inside = [*self.checkpoints.glob("**/*.part"), *self.best.glob("*.part")]
            for part in (*here, *inside):  # of a training, not of `translate`
                remove(part)
            yield
        finally:
            with suppress(OSError):
                if [*self.path.iterdir()] == [self.lock]:
                    self.lock.unlink()
                self.path.rmdir()
            os.close(descriptor)

    def _try_lock(self) -> int | None:
        """Return the descriptor of the locked run; None if another process has the lock."""
        self.path.mkdir(parents=True, exist_ok=True)
        locked = self.lock  # a file: NFS shares no locks on folders
        try:
            descriptor = os.open(locked, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS):
                raise
            locked = self.path  # a run of somebody else, which is only read
            descriptor = os.open(locked, os.O_RDONLY)
        is_held = False
        try:
            with suppress(BlockingIOError), naming(locked):
                has_locks = lock(descriptor)
                # Another trainer removes file and folder when it leaves a folder that stayed empty.
                is_held = is_at(locked, descriptor)
        finally:
            if not is_held:
                os.close(descriptor)
        if not is_held:
            return None
        if not has_locks:
            logger.warning(
                f"{self.path} is on a file system without locks: make sure that no other process "
                "trains in it"
            )
        return descriptor


def step_name(step: int) -> str:
    """Return the name of the checkpoint of a step."""
    return f"step-{step:08}"


def _by_step(folder: Path, suffix: str) -> dict[int, Path]:
    pattern = re.compile(r"step-([0-9]{8,})" + re.escape(suffix))
    paths = {}
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in folder.iterdir():
            if match := pattern.fullmatch(path.name):
                paths[int(match[1])] = path
    return dict(sorted(paths.items(), reverse=True))
