"""Optimizers, their parameter groups, and the weights that they evaluate."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from seq2seq_cli.config.schema import TrainingConfig
from seq2seq_cli.config.types import OptimizerName
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.device import choose_bf16
from seq2seq_cli.model.parameters import is_matrix_of_layer, unique_parameters
from seq2seq_cli.model.weights import Weights
from seq2seq_cli.training.optimizers.adam import Adam, AdamW
from seq2seq_cli.training.optimizers.muon import MUON_STATE, MuonWithAdamW
from seq2seq_cli.training.optimizers.schedule_free import ScheduleFreeAdamW

Groups = list[dict[str, Any]]  # parameters with the options that differ among them
_ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")
# Without `average`, which is the weights of the checkpoint.
_SCHEDULE_FREE_STATE = ("step", "weight_sum", "exp_avg_sq", "z")


def _by_dimension(model: nn.Module, weight_decay: float) -> Groups:
    """Only matrices decay, not biases and norms."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]


def _layers_apart(model: nn.Module, weight_decay: float) -> Groups:
    """Muon trains the matrices of layers: all but embeddings and the projection to tokens."""
    layers = [p for name, p in model.named_parameters() if is_matrix_of_layer(name, p)]
    ours, others = set(map(id, layers)), _by_dimension(model, weight_decay)
    for group in others:
        group["params"] = [p for p in group["params"] if id(p) not in ours]
    return [{"params": layers, "weight_decay": weight_decay, "state": MUON_STATE}, *others]


def trained_weights(model: nn.Module, optimizer: torch.optim.Optimizer) -> Weights:
    """Return the current weights to evaluate and save, which share memory with the run's."""
    if isinstance(optimizer, ScheduleFreeAdamW):
        return optimizer.eval_weights(model)
    return unique_parameters(model)


class OptimizerKind(NamedTuple):
    """One of the optimizers of `training.optimizer`."""

    make: Callable[..., torch.optim.Optimizer]  # from parameter groups, lr and Adam's options
    state: tuple[str, ...]  # the tensors of each parameter that a checkpoint holds
    groups: Callable[[nn.Module, float], Groups] = _by_dimension
    is_fused: bool = False  # in one kernel, if asked
    is_mixed: bool = False  # in bf16 where training is


OPTIMIZERS: dict[OptimizerName, OptimizerKind] = {
    "adam": OptimizerKind(Adam, _ADAM_STATE, is_fused=True),
    "adamw": OptimizerKind(AdamW, _ADAM_STATE, is_fused=True),
    "schedule_free_adamw": OptimizerKind(ScheduleFreeAdamW, _SCHEDULE_FREE_STATE),
    "muon": OptimizerKind(MuonWithAdamW, _ADAM_STATE, _layers_apart, is_mixed=True),
}


def check_same_state(before: OptimizerName, now: OptimizerName) -> None:
    """Raise UserError if the checkpoints of an optimizer do not suit the one that is to go on."""
    one, other = OPTIMIZERS[before], OPTIMIZERS[now]
    if (one.state, one.groups) != (other.state, other.groups):
        raise UserError(
            f"training.optimizer {before} cannot become {now} in a run: only adam and adamw can "
            "replace each other; undo the change, or start another run with --from this one"
        )


def build_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Return the optimizer, whose groups name as `state` the tensors that a checkpoint holds."""
    kind = OPTIMIZERS[config.optimizer]
    groups = [{"state": kind.state} | group for group in kind.groups(model, config.weight_decay)]
    options: dict[str, Any] = {"betas": (config.adam_beta1, config.adam_beta2)}
    # On the meta device, `extras/shard` builds another optimizer, of shards.
    if kind.is_fused and not any(parameter.is_meta for parameter in model.parameters()):
        options["fused"] = True
    if kind.is_mixed:
        options["use_bf16"] = choose_bf16(config.precision, next(model.parameters()).device)
    return kind.make(groups, lr=config.lr, eps=config.adam_epsilon, **options)
