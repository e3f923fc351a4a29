"""Checkpoints and best models: what a run writes while it trains, and what resuming it reads.

A checkpoint is written whole or not at all, and is checked when it is read. If the disk is full,
training continues with a warning, and best models and logged points are written with the next
checkpoint that finds room.

`checkpoints/step-00000500/` holds `weights.safetensors`, `optimizer.safetensors` (its state by
parameter name) and `state.json`. Random numbers need nothing: every update seeds them by its
number.
"""

import errno
import hashlib
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from seq2seq_cli.config.schema import Config, TrainingConfig
from seq2seq_cli.config.types import METRICS, NonNegativeInt, PositiveInt
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import fsync, read_json, write_json
from seq2seq_cli.model.weights import (
    load_weights,
    read_tensors,
    save_tensors,
    unique_parameters,
)
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.oom import Size

logger = logging.getLogger(__name__)

_ADAM = ("step", "exp_avg", "exp_avg_sq")  # what it keeps of every parameter
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SHARE = 0.1  # of the time, that checkpoints before validations may take
_FORMAT = 4  # of state.json; counted up when its fields change


@dataclass
class MetricSums:
    """Sums since the last logged point."""

    loss: float = 0.0
    num_tokens: NonNegativeInt = 0
    num_src_tokens: NonNegativeInt = 0
    num_positions: NonNegativeInt = 0
    skipped: int = 0  # updates, which the other sums leave out
    seconds: float = 0.0


class BestModel(NamedTuple):
    """A model that is kept for its validation."""

    step: int
    score: float  # by `validation.metric`
    loss: float  # validation loss, which decides between equal scores


@dataclass
class TrainingState:
    """Where a run is. With the config, the weights and the optimizer, all that it depends on."""

    text: str = ""  # the key of the stored pairs that epochs go through
    tokens_per_batch: NonNegativeInt = 0  # of the batches that `position` counts
    scored_by: str = ""  # hash of all that a validation score depends on beside the model
    step: NonNegativeInt = 0  # updates done
    epoch: PositiveInt = 1  # the pass under way, from 1
    position: NonNegativeInt = 0  # batches of this epoch already used
    earlier_parts: list[list[int]] = field(default_factory=list)  # of this epoch, see Epochs
    awaits_validation: bool = False  # the model of this step, whose points are logged already
    best_models: list[BestModel] = field(default_factory=list)  # the best first
    validations_without_best: NonNegativeInt = 0
    too_large: list[Size] = field(default_factory=list)  # batches that did not fit into memory
    skipped_in_a_row: int = 0  # updates that were not finite
    seconds: float = 0.0  # of training until now, in all starts of the run together
    window: MetricSums = field(default_factory=MetricSums)

    @property
    def best_step(self) -> int | None:
        return self.best_models[0].step if self.best_models else None


def save_checkpoint(
    run: RunFolder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: TrainingState,
    config: TrainingConfig,
) -> None:
    """Write a new one beside the others; only when it is whole, those too old are taken away."""
    folder = run.checkpoint(state.step)
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        save_tensors(unique_parameters(model), part / "weights.safetensors")
        save_tensors(_optimizer_tensors(model, optimizer), part / "optimizer.safetensors")
        _write_state(part, state)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)  # step 0 again, of a beginning that was not whole
    part.rename(folder)
    fsync(folder.parent)
    _take_old_away(run, config)


def replace_state(run: RunFolder, state: TrainingState) -> None:
    """Let the checkpoint of this step say what has become known of its model since."""
    _write_state(run.checkpoint(state.step), state)


def _write_state(folder: Path, state: TrainingState) -> None:
    write_json(folder / "state.json", _with_hash({"format": _FORMAT, **asdict(state)}))


def load_last_checkpoint(
    run: RunFolder, model: nn.Module, optimizer: torch.optim.Optimizer
) -> TrainingState:
    """Put model and optimizer back to where the last whole checkpoint has them.

    A damaged one is passed over, and that is said. Raises UserError when none is whole, or when
    they belong to another model.
    """
    checkpoints = run.all_checkpoints()
    if (old := run.path / "checkpoint").is_dir() and not checkpoints:
        raise UserError(f"{old} was written by another version of this program")
    if not checkpoints:
        raise UserError(
            f"{run.path} holds a run but no checkpoint to continue from; "
            "start another one with --run-dir"
        )
    for folder in checkpoints.values():
        try:
            return load_checkpoint(folder, model, optimizer)
        except UserError as error:
            damage = error
            logger.warning("%s; looking for the checkpoint before it", error)
    raise UserError(f"no checkpoint of {run.path} can be continued from: {damage}")


def load_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> TrainingState:
    """Put model and optimizer back to where they were. Raises UserError when a file is damaged."""
    optimizer.state.clear()
    state = read_state(folder)
    tensors = read_tensors(folder / "optimizer.safetensors")
    load_weights(model, folder / "weights.safetensors")
    _restore_optimizer(folder / "optimizer.safetensors", tensors, model, optimizer)
    return state


def remove_later_checkpoints(run: RunFolder, step: int) -> None:
    """Take away those after `step`, from which the run goes on: they are damaged.

    One that is left when the run has passed it would count as one of `training.keep_last`, in place
    of one that can be read.
    """
    for number, folder in run.all_checkpoints().items():
        if number > step:
            shutil.rmtree(folder, ignore_errors=True)


def make_room(run: RunFolder, config: TrainingConfig) -> bool:
    """Take all but the last checkpoint and every n-th away; whether there were others."""
    before = run.all_checkpoints()
    _take_old_away(run, config.model_copy(update={"keep_last": 1}))
    return len(run.all_checkpoints()) < len(before)


def _take_old_away(run: RunFolder, config: TrainingConfig) -> None:
    """All but the last ones and every n-th; also what a killed process left half-written."""
    for part in run.checkpoints.glob("*.part"):
        shutil.rmtree(part, ignore_errors=True)
    checkpoints = run.all_checkpoints()
    for number, folder in list(checkpoints.items())[config.keep_last :]:
        is_nth = config.keep_every is not None and number > 0 and number % config.keep_every == 0
        if not is_nth:
            shutil.rmtree(folder, ignore_errors=True)


def read_state(folder: Path) -> TrainingState:
    """Of a checkpoint. Raises UserError when it is damaged."""
    path = folder / "state.json"
    values = read_json(path)
    if not isinstance(values, dict) or values != _with_hash(values):
        raise UserError(f"{path} is damaged: its content does not match its hash")
    if values.pop("format", None) != _FORMAT:
        raise UserError(f"{path} was written by another version of this program")
    del values["sha256"]
    try:
        return TypeAdapter(TrainingState).validate_python(values)
    except ValidationError:
        raise UserError(f"{path} is damaged: it is not the state of a run") from None


def _with_hash(values: dict[str, Any]) -> dict[str, Any]:
    content = {name: value for name, value in values.items() if name != "sha256"}
    text = json.dumps(content, sort_keys=True)
    return {**content, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value
        for name, parameter in _trained(model).items()
        for key, value in optimizer.state[parameter].items()
    }


def _restore_optimizer(
    path: Path,
    tensors: Mapping[str, Tensor],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    parameters = _trained(model)
    wanted = {f"{name}/{key}" for name in parameters for key in _ADAM} if tensors else set()
    if differing := sorted(wanted ^ tensors.keys()):
        raise UserError(f"{path} does not fit the model: {differing[0]} is missing or differs")
    for full_name, tensor in tensors.items():  # before the first update there are none
        name, _, key = full_name.rpartition("/")
        if tensor.shape not in (parameters[name].shape, ()):
            raise UserError(f"{path} does not fit the model: {full_name} is missing or differs")
        optimizer.state[parameters[name]][key] = tensor.to(parameters[name].device)


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Those that are not frozen."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


class Allowance:
    """Whether work may be done again, so that it takes at most its share of the time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paid = clock()  # from when on the work until now has not been more than its share

    @contextmanager
    def spent(self) -> Iterator[None]:
        """Count the time of the block."""
        started = self._clock()
        try:
            yield
        finally:
            self._paid = max(self._paid, started) + (self._clock() - started) / _SHARE

    @property
    def suffices(self) -> bool:
        return self._clock() >= self._paid


class Saver:
    """The main process's; a best model always reaches the disk before a checkpoint tells of it."""

    def __init__(
        self,
        run: RunFolder,
        config: Config,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sync_logs: Callable[[], None],
        step: int,
    ) -> None:
        """`step`: of the checkpoint that the run goes on from."""
        self._run = run
        self._config = config
        self._model = model
        self._optimizer = optimizer
        self._sync_logs = sync_logs
        self._last = step  # of the last whole checkpoint
        self._waiting: dict[int, Mapping[str, Tensor]] = {}  # best models not yet on the disk
        self._allowance = Allowance()

    def is_due(self, state: TrainingState) -> bool:
        """At multiples of `save_every` and `keep_every`, and before validations.

        Of validations that follow each other closely, before as many as a tenth of the time allows.
        """
        training = self._config.training
        asked = (training.save_every, training.keep_every)
        if any(steps is not None and state.step % steps == 0 for steps in asked):
            return True
        return state.awaits_validation and self._allowance.suffices

    def save(self, state: TrainingState, *, is_end: bool) -> None:
        """A checkpoint; without validation text the last model too, as the best one.

        At the end of a run, raises OSError when it cannot be written.
        """
        if self._config.data.valid is None:
            self._waiting = {state.step: unique_parameters(self._model)}
        try:
            self._find_room(lambda: self._write(state))
        except OSError as error:
            if is_end:
                raise
            logger.warning(
                f"cannot write the checkpoint of step {state.step:,} ({error}); training goes on, "
                f"the last checkpoint is that of step {self._last:,}"
            )
        else:
            self._last = state.step

    def note_validation(self, state: TrainingState, *, is_kept: bool, is_end: bool) -> None:
        """Let the model's checkpoint tell of its validation, if it has one; keep a best model.

        Without a checkpoint the model waits for the next one, in memory. At the end of a run there
        is always one: raises OSError when it cannot be written.
        """
        best = {one.step for one in state.best_models}
        self._waiting = {step: kept for step, kept in self._waiting.items() if step in best}
        if is_kept:
            self._waiting[state.step] = unique_parameters(self._model)
        if self._last != state.step:
            if is_end:
                self.save(state, is_end=True)
        else:
            try:
                self._find_room(lambda: self._write_validation(state))
            except OSError as error:
                if is_end:
                    raise
                logger.warning(f"cannot write the best model yet ({error}); it is kept in memory")
        if state.step in self._waiting:
            self._waiting[state.step] = {
                name: tensor.clone() for name, tensor in self._waiting[state.step].items()
            }

    def _find_room(self, write: Callable[[], None]) -> None:
        """On a full disk older checkpoints give way, once."""
        with self._allowance.spent():
            try:
                write()
            except OSError as error:
                training = self._config.training
                if error.errno not in _FULL or not make_room(self._run, training):
                    raise
                write()

    def _write(self, state: TrainingState) -> None:
        self._sync_logs()
        self._write_best(state)
        save_checkpoint(self._run, self._model, self._optimizer, state, self._config.training)

    def _write_validation(self, state: TrainingState) -> None:
        self._sync_logs()
        self._write_best(state)
        replace_state(self._run, state)

    def _write_best(self, state: TrainingState) -> None:
        """What waits, of what still is among the best; others go as soon as there is a new best."""
        best = [one.step for one in state.best_models]
        if self._config.validation.keep_best > 1:
            for step in best:
                if step in self._waiting:
                    self._run.best.mkdir(exist_ok=True)
                    save_tensors(self._waiting[step], self._run.best_model(step))
            for step, path in self._run.all_best_models().items():
                if best and step not in best:
                    path.unlink()
        newest = state.best_step if best else state.step
        if newest in self._waiting:
            save_tensors(self._waiting[newest], self._run.model)
        self._waiting.clear()


def note_score(state: TrainingState, score: float, loss: float, config: Config) -> bool:
    """Count a validation; whether its model is one of those to keep.

    Of equal scores the lower validation loss is better. A score or a loss that is not finite never
    is.
    """
    if math.isfinite(score) and math.isfinite(loss):
        sign = -1 if METRICS[config.validation.metric].higher_is_better else 1
        state.best_models.append(BestModel(state.step, score, loss))
        state.best_models.sort(key=lambda one: (sign * one.score, one.loss, one.step))
        del state.best_models[config.validation.keep_best :]
    is_best = state.best_step == state.step
    state.validations_without_best = 0 if is_best else state.validations_without_best + 1
    return any(one.step == state.step for one in state.best_models)
