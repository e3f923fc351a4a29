"""Optimizers and their parameter groups; learning-rate schedules as functions of the step."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from seq2seq_cli.config.schema import DEFAULT_WARMUP, TrainingConfig
from seq2seq_cli.config.types import NonNegativeFloat, NonNegativeInt, OptimizerName, Schedule
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.weights import is_matrix_of_layer
from seq2seq_cli.training.optimizers.muon import MUON_STATE, MuonWithAdamW
from seq2seq_cli.training.optimizers.schedule_free import ScheduleFreeAdamW

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


def check_same_state(before: OptimizerName, now: OptimizerName) -> None:
    """Raise UserError if the checkpoints of an optimizer do not suit the one that is to go on."""
    one, other = OPTIMIZERS[before], OPTIMIZERS[now]
    if (one.state, one.groups) != (other.state, other.groups):
        raise UserError(
            f"training.optimizer {before} cannot become {now} in a run: only adam and adamw can "
            "replace each other; undo the change, or start another run with --from this one"
        )


def build_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Return the optimizer of every parameter.

    Each of its groups names under `state` the tensors that a checkpoint holds.
    """
    kind, options = OPTIMIZERS[config.optimizer], OPTIMIZERS[config.optimizer].options(config)
    if any(parameter.is_meta for parameter in model.parameters()):
        options.pop("fused", None)  # `sharding.py` builds another optimizer of shards
    groups = [{"state": kind.state} | group for group in kind.groups(model, config.weight_decay)]
    return kind.make(groups, lr=config.lr, **options)


class Plan(NamedTuple):
    """How many updates a run has, and how its learning rate gets to the last of them.

    `plan.py` makes it, and a checkpoint holds it: with a time limit it depends on the clock.
    """

    total: NonNegativeInt = 0  # updates of the whole run
    warmup: NonNegativeInt = 0  # of them
    start: NonNegativeInt = 0  # updates, or the warm-up if it is longer, after which
    progress: NonNegativeFloat = 0.0  # of the decay is reached, which goes on to 1 at the end
    step: NonNegativeInt = 0  # updates done when the plan was made
    pace: NonNegativeFloat = 0.0  # seconds per update without validations; 0: not known yet
    most: NonNegativeInt = 0  # updates that `max_steps` and `max_epochs` allow
    hours: NonNegativeFloat | None = None  # `max_hours`

    def decay(self, step: int) -> float:
        """Return the progress of the decay at a 1-based step.

        It is 0 until warm-up ends, and 1 one step after the last, so that the last step still
        learns.
        """
        start = max(self.start, self.warmup)
        if step <= start:
            return self.progress
        share = min(1.0, (step - start) / max(1, self.total + 1 - start))
        return self.progress + (1 - self.progress) * share


def set_lr(
    optimizer: torch.optim.Optimizer, config: TrainingConfig, step: int, plan: Plan
) -> float:
    """Set and return the learning rate of the 1-based step."""
    lr = config.lr * SCHEDULES[config.schedule](step, plan)
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr


def warmup(step: int, plan: Plan) -> float:
    """Linear increase to 1 at the end of warm-up."""
    return min(1.0, step / plan.warmup) if plan.warmup else 1.0


def inverse_sqrt(step: int, plan: Plan) -> float:
    """Share of the peak rate at a 1-based step (Vaswani et al. 2017, eq. 3, peak scaled to 1).

    Without warm-up, where that equation has no peak, it falls from the first step on as it does
    after `DEFAULT_WARMUP` updates of warm-up.
    """
    if plan.warmup == 0:
        return math.sqrt(DEFAULT_WARMUP / (DEFAULT_WARMUP + step - 1))
    return warmup(step, plan) * min(1.0, math.sqrt(plan.warmup / step))


def linear(step: int, plan: Plan) -> float:
    """Straight from 1 at the end of warm-up to 0 after the last step."""
    return warmup(step, plan) * (1.0 - plan.decay(step))


def cosine(step: int, plan: Plan) -> float:
    """Half a cosine from 1 to 0 (Loshchilov & Hutter 2017, eq. 5, without restarts)."""
    return warmup(step, plan) * (1 + math.cos(math.pi * plan.decay(step))) / 2


def constant(step: int, plan: Plan) -> float:
    return warmup(step, plan)


SCHEDULES: dict[Schedule, Callable[[int, Plan], float]] = {
    "inverse_sqrt": inverse_sqrt,
    "linear": linear,
    "cosine": cosine,
    "constant": constant,
}
