"""What continuing a run needs, written whole or not at all, and checked when it is read.

`checkpoints/step-00000500/` holds `weights.safetensors`, `optimizer.safetensors` (its state by
parameter name) and `state.json`. Random numbers need nothing: every update seeds them by its
number.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from seq2seq_cli.config import TrainingConfig
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.weights import (
    load_weights,
    read_tensors,
    save_tensors,
    weights_of,
)
from seq2seq_cli.option_types import NonNegativeInt, PositiveInt
from seq2seq_cli.run_folder import RunFolder, read_json, sync, write_json
from seq2seq_cli.training.batch_sizes import Size

logger = logging.getLogger(__name__)

_ADAM = ("step", "exp_avg", "exp_avg_sq")  # what it keeps of every parameter
_FORMAT = 4  # of state.json; counted up when its fields change


@dataclass
class Window:
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
    window: Window = field(default_factory=Window)

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
        save_tensors(weights_of(model), part / "weights.safetensors")
        save_tensors(_optimizer_tensors(model, optimizer), part / "optimizer.safetensors")
        _write_state(part, state)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)  # step 0 again, of a beginning that was not whole
    part.rename(folder)
    sync(folder.parent)
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
        raise UserError(f"{path} is damaged: its content is not what was written")
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
