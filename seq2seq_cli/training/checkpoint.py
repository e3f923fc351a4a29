"""What continuing a run needs, written whole or not at all.

`checkpoint/` holds `weights.safetensors`, `optimizer.safetensors` (its state by parameter name) and
`state.json`. Random numbers need nothing: every update seeds them by its number.
"""

import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from seq2seq_cli.errors import UserError
from seq2seq_cli.model.weights import (
    load_weights,
    read_tensors,
    save_tensors,
    save_weights,
)
from seq2seq_cli.run_folder import RunFolder, read_json, sync, write_json
from seq2seq_cli.training.batch_sizes import Size

_FORMAT = 2  # of state.json; counted up when its fields change


@dataclass
class Window:
    """Sums since the last logged point."""

    loss: float = 0.0
    num_tokens: int = 0
    num_src_tokens: int = 0
    num_positions: int = 0
    skipped: int = 0  # updates, which the other sums leave out
    seconds: float = 0.0


@dataclass
class TrainingState:
    """Where a run is. With the config, the weights and the optimizer, all that it depends on."""

    step: int = 0  # updates done
    epoch: int = 1  # the pass under way, from 1
    position: int = 0  # batches of this epoch already used
    best_step: int | None = None
    best_score: float | None = None
    validations_without_best: int = 0
    too_large: list[Size] = field(default_factory=list)  # batches that did not fit into memory
    skipped_in_a_row: int = 0  # updates that were not finite
    window: Window = field(default_factory=Window)


def save_checkpoint(
    run: RunFolder, model: nn.Module, optimizer: torch.optim.Optimizer, state: TrainingState
) -> None:
    """Write beside the old checkpoint and swap: at every moment one of the two is whole."""
    folder, old = run.checkpoint, run.old_checkpoint
    part = folder.with_name("checkpoint.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        save_weights(model, part / "weights.safetensors")
        save_tensors(_optimizer_tensors(model, optimizer), part / "optimizer.safetensors")
        write_json(part / "state.json", {"format": _FORMAT, **asdict(state)})
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    if folder.exists():  # else the old one is all there is, after a crash between these renames
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    part.rename(folder)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> TrainingState:
    """Put model and optimizer back where they were.

    Raises UserError when a file is damaged or belongs to another model.
    """
    state = _read_state(folder / "state.json")
    load_weights(model, folder / "weights.safetensors")
    _restore_optimizer(folder / "optimizer.safetensors", model, optimizer)
    return state


def _read_state(path: Path) -> TrainingState:
    values = read_json(path)
    if isinstance(values, dict) and values.pop("format", None) != _FORMAT:
        raise UserError(f"{path} was written by another version of this program")
    try:
        return TrainingState(**{**values, "window": Window(**values["window"])})
    except (TypeError, KeyError):
        raise UserError(f"{path} is damaged: it is not the state of a run") from None


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


def _restore_optimizer(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    parameters = dict(model.named_parameters())
    found: set[str] = set()
    for full_name, tensor in read_tensors(path).items():
        name, _, key = full_name.rpartition("/")
        if name not in parameters or tensor.shape not in (parameters[name].shape, ()):
            raise UserError(f"{path} does not fit the model: {full_name}")
        optimizer.state[parameters[name]][key] = tensor.to(parameters[name].device)
        found.add(name)
    if found and found != set(parameters):  # before the first update it holds nothing
        raise UserError(f"{path} is damaged: it lacks {min(set(parameters) - found)}")
