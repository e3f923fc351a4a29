"""The optimizer's state in a checkpoint: one file, or a folder of shards if the run is sharded.

Its tensors are named by parameter: `encoder.0.norm.weight/exp_avg`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Size, Tensor, nn

from seq2seq_cli import plugins
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import is_listed
from seq2seq_cli.model.weights import read_tensors
from seq2seq_cli.training.optimizers.schedule_free import ScheduleFreeAdamW

if TYPE_CHECKING:
    from seq2seq_cli.training.run import Run


def optimizer_tensors(run: "Run") -> dict[str, Tensor]:
    """Return the optimizer's state that a checkpoint holds; this process's part if sharded."""
    kept = _state_names(run.optimizer)
    return {
        f"{name}/{key}": state[key]
        for name, parameter in trained_parameters(run.model).items()
        if (state := run.optimizer.state[parameter])  # empty before the first update
        for key in kept[parameter]
    }


def load_optimizer(checkpoint: Path, run: "Run") -> None:
    """Load the state, whole or sharded, into a run that is not sharded.

    Raises DamagedFileError if a file is damaged, UserError if it does not fit.
    """
    if is_listed(checkpoint / "optimizer"):
        shards = plugins.load("shard", "optimizer_shards")
        shards.check_shards(checkpoint / "optimizer")
        shards.load_shards(checkpoint, run)
    else:
        path = checkpoint / "optimizer.safetensors"
        restore(path, read_tensors(path), run)


def check_fit(path: Path, sizes: Mapping[str, Size], run: "Run") -> None:
    """Raise UserError unless a state with tensors of these sizes fits the model and optimizer."""
    parameters, kept = trained_parameters(run.model), _state_names(run.optimizer)
    begun = {name.rpartition("/")[0] for name in sizes}  # the others have had no gradient
    expected = {f"{n}/{key}" for n, p in parameters.items() if n in begun for key in kept[p]}
    shapes = {name: parameter.shape for name, parameter in parameters.items()}
    misfits = sorted(expected ^ sizes.keys()) or [
        name for name, size in sizes.items() if size not in (shapes[name.rpartition("/")[0]], ())
    ]
    if misfits:
        raise UserError(
            f"{path} does not fit the model and training.optimizer "
            f"{run.config.training.optimizer}: {misfits[0]} is missing or differs"
        )


def restore(path: Path, tensors: Mapping[str, Tensor], run: "Run") -> None:
    """Give the optimizer the state that was read from a path."""
    optimizer, parameters = run.optimizer, trained_parameters(run.model)
    check_fit(path, {name: tensor.shape for name, tensor in tensors.items()}, run)
    optimizer.state.clear()
    for full_name, tensor in tensors.items():
        name, _, key = full_name.rpartition("/")
        optimizer.state[parameters[name]][key] = tensor.to(parameters[name].device)
    if isinstance(optimizer, ScheduleFreeAdamW):
        optimizer.after_load()


def _state_names(optimizer: torch.optim.Optimizer) -> dict[Tensor, Sequence[str]]:
    """Return the names of the tensors that the optimizer keeps, by parameter."""
    return {p: group["state"] for group in optimizer.param_groups for p in group["params"]}


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are not frozen, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
