"""Optimizers and their parameter groups; learning-rate schedules as functions of the step."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from seq2seq_cli.config.schema import DEFAULT_WARMUP, TrainingConfig
from seq2seq_cli.config.types import OptimizerName, Schedule
from seq2seq_cli.model.weights import is_matrix_of_layer
from seq2seq_cli.training.muon import MUON_STATE, MuonWithAdamW
from seq2seq_cli.training.schedule_free import ScheduleFreeAdamW

Groups = list[dict[str, Any]]  # parameters with the options that differ among them
_ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")


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
    ours = set(map(id, layers))
    others = _by_dimension(model, weight_decay)
    for group in others:
        group["params"] = [p for p in group["params"] if id(p) not in ours]
    return [{"params": layers, "weight_decay": weight_decay, "state": MUON_STATE}, *others]


class OptimizerKind(NamedTuple):
    """One of the optimizers of `training.optimizer`."""

    make: Callable[..., torch.optim.Optimizer]  # from parameter groups, lr and its options
    options: Callable[[TrainingConfig], dict[str, Any]]  # for `make`, from the config
    state: tuple[str, ...]  # the tensors of each parameter that a checkpoint holds
    groups: Callable[[nn.Module, float], Groups] = _by_dimension


def _adam_options(config: TrainingConfig) -> dict[str, Any]:
    return {"betas": (config.adam_beta1, config.adam_beta2), "eps": config.adam_epsilon}


def _fused_adam_options(config: TrainingConfig) -> dict[str, Any]:
    return {**_adam_options(config), "fused": True}


OPTIMIZERS: dict[OptimizerName, OptimizerKind] = {
    "adam": OptimizerKind(torch.optim.Adam, _fused_adam_options, _ADAM_STATE),
    "adamw": OptimizerKind(torch.optim.AdamW, _fused_adam_options, _ADAM_STATE),
    "schedule_free_adamw": OptimizerKind(
        # `average` is not among the state: it is the weights of the checkpoint.
        ScheduleFreeAdamW,
        _adam_options,
        ("step", "weight_sum", "exp_avg_sq", "z"),
    ),
    "muon": OptimizerKind(MuonWithAdamW, _adam_options, _ADAM_STATE, _layers_apart),
}


def build_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Return the optimizer of every parameter.

    Each of its groups names under `state` the tensors that a checkpoint holds.
    """
    kind, options = OPTIMIZERS[config.optimizer], OPTIMIZERS[config.optimizer].options(config)
    if any(parameter.is_meta for parameter in model.parameters()):
        options.pop("fused", None)  # `sharding.py` builds another optimizer of shards
    groups = [{"state": kind.state} | group for group in kind.groups(model, config.weight_decay)]
    return kind.make(groups, lr=config.lr, **options)


def set_lr(
    optimizer: torch.optim.Optimizer, config: TrainingConfig, step: int, total_steps: int
) -> float:
    """Set and return the learning rate of the 1-based step."""
    share = SCHEDULES[config.schedule](step, config.warmup_updates, total_steps)
    lr = config.lr * share
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr


def warmup(step: int, warmup_steps: int) -> float:
    """Linear increase to 1 at `warmup_steps`."""
    return min(1.0, step / warmup_steps) if warmup_steps else 1.0


def inverse_sqrt(step: int, warmup_steps: int, total_steps: int) -> float:
    """Share of the peak rate at a 1-based step (Vaswani et al. 2017, eq. 3, peak scaled to 1).

    Without warm-up, where that equation has no peak, it falls from the first step on as it does
    after `DEFAULT_WARMUP` updates of warm-up.
    """
    if warmup_steps == 0:
        return math.sqrt(DEFAULT_WARMUP / (DEFAULT_WARMUP + step - 1))
    return warmup(step, warmup_steps) * min(1.0, math.sqrt(warmup_steps / step))


def linear(step: int, warmup_steps: int, total_steps: int) -> float:
    """Straight from 1 at the end of warm-up to 0 after the last step."""
    return warmup(step, warmup_steps) * (1.0 - _progress(step, warmup_steps, total_steps))


def cosine(step: int, warmup_steps: int, total_steps: int) -> float:
    """Half a cosine from 1 to 0 (Loshchilov & Hutter 2017, eq. 5, without restarts)."""
    progress = _progress(step, warmup_steps, total_steps)
    return warmup(step, warmup_steps) * (1 + math.cos(math.pi * progress)) / 2


def constant(step: int, warmup_steps: int, total_steps: int) -> float:
    return warmup(step, warmup_steps)


def _progress(step: int, warmup_steps: int, total_steps: int) -> float:
    """0 until warm-up ends, 1 one step after the last, so that the last step still learns."""
    if step <= warmup_steps:
        return 0.0
    return min(1.0, (step - warmup_steps) / max(1, total_steps + 1 - warmup_steps))


SCHEDULES: dict[Schedule, Callable[[int, int, int], float]] = {
    "inverse_sqrt": inverse_sqrt,
    "linear": linear,
    "cosine": cosine,
    "constant": constant,
}
