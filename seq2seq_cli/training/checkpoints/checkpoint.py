"""Checkpoints and best models: what a run writes while it trains, and what resuming it reads.

A checkpoint (docs/run_folder.md) is written whole or not at all, and is checked when it is read. If
the disk is full, training continues with a warning, and best models and logged points are written
with the next checkpoint that can be written. Random numbers need nothing: every update seeds them
by its number.
"""

import errno
import hashlib
import itertools
import json
import logging
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from seq2seq_cli.config.metrics import Metric
from seq2seq_cli.config.schema import TrainingConfig
from seq2seq_cli.errors import DamagedFileError, UserError
from seq2seq_cli.files import fsync, read_json, reading, write_atomic, write_json
from seq2seq_cli.model.weights import Weights, facts_of, save_tensors
from seq2seq_cli.run_folder import RunFolder, step_name
from seq2seq_cli.training.checkpoints.averaging import averaged_steps
from seq2seq_cli.training.run import BestModel, Run, TrainingState, nothing, quality

logger = logging.getLogger(__name__)

FULL = (errno.ENOSPC, errno.EDQUOT)
_SHARE = 0.1  # maximum share of the time spent on saving before validations
_FORMAT = 4  # of state.json; counted up when earlier states cannot be read any more


def save_checkpoint(folder: RunFolder, run: Run) -> None:
    """Write a checkpoint; once it is whole, remove those that are too old."""
    checkpoint = folder.checkpoint(run.state.step)
    run.hooks.before_write(checkpoint)
    part = checkpoint.with_name(f"{checkpoint.name}.part")
    if part.exists():
        shutil.rmtree(part)
    part.mkdir(parents=True)
    try:
        save_tensors(run.gathered.trained, part / "weights.safetensors")
        if run.ema is not None:
            save_tensors(run.gathered.evaluated, part / "ema.safetensors")
        _write_state(part, run.state)
        run.parallel.save_optimizer(part, run)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    shutil.rmtree(checkpoint, ignore_errors=True)  # step 0 again, of a start that was not whole
    part.rename(checkpoint)
    fsync(checkpoint.parent)
    _remove_old(folder, run.config.training)


def shards_part(checkpoint: Path) -> Path:
    """Return the folder into which all processes first write a sharded optimizer's state."""
    return checkpoint.with_name(f"{checkpoint.name}.optimizer.part")


def _write_state(folder: Path, state: TrainingState) -> None:
    write_json(folder / "state.json", _with_hash({"format": _FORMAT, **asdict(state)}))


def load_last_checkpoint(folder: RunFolder, run: Run) -> None:
    """Load the last checkpoint that is whole into the run; others are skipped with a warning.

    Raises UserError if none is whole or that one is of another version, model or optimizer, and
    OSError if a file cannot be read.
    """
    damage: DamagedFileError | None = None
    for checkpoint in folder.all_checkpoints().values():
        try:
            return load_checkpoint(checkpoint, run)
        except DamagedFileError as error:
            damage = error
            logger.warning("%s; looking for the checkpoint before it", error)
    if damage is not None:
        raise UserError(f"no checkpoint of {folder.path} can be resumed from: {damage}")
    raise UserError(
        f"{folder.path} holds a run but no checkpoint to resume from; "
        "start another one with --run-dir"
    )


def load_checkpoint(folder: Path, run: Run) -> None:
    """Load model, EMA, optimizer and state. Raises DamagedFileError if a file is damaged.

    An EMA that the checkpoint does not have starts from its weights.
    """
    state = read_state(folder)
    run.parallel.load_weights(run.model, folder / "weights.safetensors")
    if run.ema is not None and state.has_ema:
        run.ema.load(folder / "ema.safetensors", run.model)
    elif run.ema is not None:
        run.ema.start(run.model)
        logger.info("the EMA of the weights starts at step %s", f"{state.step:,}")
    run.parallel.load_optimizer(folder, run)
    state.has_ema = run.state.has_ema  # from now on
    run.state = state


def set_aside_later(folder: RunFolder, step: int) -> None:
    """Rename the damaged files of updates after `step`, from which the run resumes.

    Otherwise a damaged checkpoint would count for `training.keep_last`, and a worse model could
    replace the best one. Nothing is removed.
    """

    def free_name(path: Path, what: str) -> Path:  # such as model.later.safetensors
        numbers = itertools.chain([""], itertools.count(2))
        names = (path.with_name(f"{path.stem}.{what}{number}{path.suffix}") for number in numbers)
        return next(name for name in names if not name.exists())

    damaged = [path for number, path in folder.all_checkpoints().items() if number > step]
    if not damaged:
        return
    if folder.model.is_file():  # perhaps of a later step; it stays until the run has a better one
        aside = free_name(folder.model, "later")
        with reading(folder.model):
            write_atomic(aside, folder.model.read_bytes())
        logger.warning(f"{aside.name} is a copy of {folder.model}, which may be of a later step")
    weights = [*folder.all_weights().items(), *folder.all_best_models().items()]
    later = [path for number, path in weights if number > step and path.parent not in damaged]
    for path in (*later, *damaged):
        aside = path.rename(free_name(path, "damaged" if path in damaged else "later"))
        logger.warning(f"{path} was renamed to {aside.name}; it is not used any more")


def make_room(folder: RunFolder, config: TrainingConfig, step: int) -> bool:
    """Remove checkpoints as `_remove_old` with `keep_last: 1`; return True if there were any.

    What has been written of the checkpoint of `step` stays.
    """
    before = len(folder.all_checkpoints())
    config = config.model_copy(update={"keep_last": 1})
    _remove_old(folder, config, kept_part=shards_part(folder.checkpoint(step)))
    return len(folder.all_checkpoints()) < before


def _remove_old(folder: RunFolder, config: TrainingConfig, kept_part: Path | None = None) -> None:
    """Remove parts, and checkpoints not to be kept, except weights that an average needs."""
    for part in folder.checkpoints.glob("*.part"):
        if part != kept_part:
            shutil.rmtree(part, ignore_errors=True)
    checkpoints, weights = folder.all_checkpoints(), folder.all_weights()
    averaged = averaged_steps(weights, config)
    for number, checkpoint in list(checkpoints.items())[config.keep_last :]:
        if config.keep_every is not None and number > 0 and number % config.keep_every == 0:
            continue
        if number in averaged:
            with suppress(DamagedFileError), reading(weights[number]):  # gone since a crash
                weights[number].replace(folder.lone_weights(number))
        shutil.rmtree(checkpoint, ignore_errors=True)
    for number, path in weights.items():
        if number not in averaged and path == folder.lone_weights(number):
            path.unlink()


def read_state(checkpoint: Path) -> TrainingState:
    """Read the state. Raises DamagedFileError, or UserError if another version has written it."""
    path = checkpoint / "state.json"
    values = read_json(path)
    if not isinstance(values, dict) or values != _with_hash(values):
        raise DamagedFileError(f"{path} is damaged: its content does not match its hash")
    with suppress(ValidationError):
        if values.pop("format", None) == _FORMAT:
            del values["sha256"]
            state = TypeAdapter(TrainingState).validate_python(values)
            if checkpoint.name != step_name(state.step):  # copied into another's folder
                raise DamagedFileError(f"{path} is damaged: it is of step {state.step:,}")
            return state
    raise UserError(f"{path} was written by another version of this program; resume with that one")


def _with_hash(values: dict[str, Any]) -> dict[str, Any]:
    content = {name: value for name, value in values.items() if name != "sha256"}
    text = json.dumps(content, sort_keys=True)
    return {**content, "sha256": hashlib.sha256(text.encode()).hexdigest()}


class SaveBudget:
    """Limits the share of the time that is spent on saving."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._paid = clock()  # the time at which the work so far is no more than its share

    @contextmanager
    def spent(self) -> Iterator[None]:
        """Count the time that the block takes."""
        started = self._clock()
        try:
            yield
        finally:
            self._paid = max(self._paid, started) + (self._clock() - started) / _SHARE

    @property
    def available(self) -> bool:
        """True if there is time to save now."""
        return self._clock() >= self._paid


class Saver:
    """Writes checkpoints and best models, in the main process; in the others it does nothing.

    A best model is always on disk before a checkpoint refers to it.
    """

    def __init__(
        self, folder: RunFolder, run: Run, sync_logs: Callable[[], None] = nothing
    ) -> None:
        self.folder, self.run, self._sync_logs = folder, run, sync_logs
        self._last = run.state.step  # of the last whole checkpoint
        # Best models not yet on disk, with their scores.
        self._waiting: dict[int, tuple[Weights, Mapping[Metric, float]]] = {}
        self._unsaved: dict[int, Weights] = {}  # of checkpoints to average that could not be saved
        self.budget = SaveBudget(run.hooks.monotonic)

    def save(self, *, is_end: bool) -> None:
        """Write a checkpoint if one is due; at the end of training, in any case.

        One is due at multiples of `save_every` and `keep_every`, and before a validation if there
        is time. At the end, raises OSError if it cannot be written.
        """
        if self.is_due(is_end=is_end):
            self.write_checkpoint(is_end=is_end)

    def is_due(self, *, is_end: bool) -> bool:
        """Return True if `save` is to write a checkpoint."""
        training, state = self.run.config.training, self.run.state
        intervals = (training.save_every, training.keep_every)
        is_regular = any(steps is not None and state.step % steps == 0 for steps in intervals)
        is_wanted = is_end or is_regular or (state.awaits_validation and self.budget.available)
        return is_wanted and self.run.parallel.is_main

    def write_checkpoint(self, *, is_end: bool) -> None:
        """Write a checkpoint; without validation text, the last model as the best one too."""
        run, step = self.run, self.run.state.step
        if not run.parallel.is_main:
            return
        if run.config.data.valid is None:
            self._waiting = {step: (run.gathered.evaluated, {})}
        try:
            self._write(lambda: save_checkpoint(self.folder, run))
        except OSError as error:
            if is_end:
                raise
            logger.warning(
                f"cannot write the checkpoint of step {step:,} ({error}); training continues, and "
                f"the last checkpoint is of step {self._last:,}"
            )
            averaged = averaged_steps({*self._unsaved, step}, run.config.training)
            if step in averaged:
                self._unsaved[step] = _copied(run.gathered.trained)
            self._unsaved = {number: self._unsaved[number] for number in averaged}
        else:
            self._last = step

    @property
    def is_saved(self) -> bool:
        """True if there is a checkpoint of the last update."""
        return self._last == self.run.state.step

    def record_validation(
        self, metrics: Mapping[Metric, float], *, is_kept: bool, is_end: bool
    ) -> None:
        """Add a validation to the checkpoint of its step, and keep one of the best models.

        If that step has no checkpoint, the model waits in memory for the next one. At the end of
        training there always is one: raises OSError if it cannot be written.
        """
        state = self.run.state
        if not self.run.parallel.is_main:
            return
        best = {model.step for model in state.best_models}
        self._waiting = {step: kept for step, kept in self._waiting.items() if step in best}
        if is_kept:
            self._waiting[state.step] = self.run.gathered.evaluated, metrics
        checkpoint = self.folder.checkpoint(state.step)

        def update_state() -> None:
            self.run.hooks.before_write(checkpoint)
            has_ema = (checkpoint / "ema.safetensors").is_file()  # not yet if it was just added
            _write_state(checkpoint, replace(state, has_ema=has_ema))

        if self.is_saved:
            try:
                self._write(update_state)
            except OSError as error:
                if is_end:
                    raise
                logger.warning(f"cannot write the best model yet ({error}); it is kept in memory")
        elif is_end:
            self.write_checkpoint(is_end=True)
        if state.step in self._waiting:
            weights, metrics = self._waiting[state.step]
            self._waiting[state.step] = _copied(weights), metrics

    def _write(self, write: Callable[[], None]) -> None:
        """Write what waits, then call `write`; if the disk is full, make room and try again."""
        training, step = self.run.config.training, self.run.state.step
        with self.budget.spent():
            while True:
                try:
                    self._write_waiting()
                    return write()
                except OSError as error:
                    if error.errno not in FULL or not make_room(self.folder, training, step):
                        raise

    def _write_waiting(self) -> None:
        """Write logs, waiting models still among the best, unsaved weights; remove other models."""
        self._sync_logs()
        folder, state = self.folder, self.run.state
        best = [model.step for model in state.best_models]
        if self.run.config.validation.keep_best > 1:
            for step in best:
                if step in self._waiting:
                    folder.best.mkdir(exist_ok=True)
                    self._write_model(step, folder.best_model(step))
        for step, path in folder.all_best_models().items():
            if best and step not in best:
                path.unlink()
        newest = state.best_step if best else state.step
        if newest in self._waiting:
            self._write_model(newest, folder.model)
        self._waiting.clear()
        for step, weights in self._unsaved.items():
            path = folder.lone_weights(step)
            self.run.hooks.before_write(path)
            save_tensors(weights, path)
        self._unsaved.clear()

    def _write_model(self, step: int, path: Path) -> None:
        weights, metrics = self._waiting[step]
        self.run.hooks.before_write(path)
        save_tensors(weights, path, facts_of(f"step {step:,}", metrics))


def _copied(weights: Weights) -> Weights:
    return {name: tensor.clone() for name, tensor in weights.items()}


def record_score(run: Run, score: float, loss: float) -> bool:
    """Count a validation; return True if its model is one of the best, which are kept.

    Ties are broken by validation loss. A model whose score or loss is NaN or infinite is not kept.
    """
    state, validation = run.state, run.config.validation
    if math.isfinite(score) and math.isfinite(loss):
        metric = validation.metric
        state.best_models.append(BestModel(state.step, score, loss))
        state.best_models.sort(key=lambda m: (quality(metric, m.score, m.loss), m.step))
        del state.best_models[validation.keep_best :]
    is_best = state.best_step == state.step
    state.validations_without_best = 0 if is_best else state.validations_without_best + 1
    return any(model.step == state.step for model in state.best_models)
