"""Learning-rate schedules as functions of the step, and the plan of updates that they follow."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from seq2seq_cli.config.schema import DEFAULT_WARMUP, TrainingConfig
from seq2seq_cli.config.types import NonNegativeFloat, NonNegativeInt, Schedule


class Plan(NamedTuple):
    """How many updates a run has, and how its learning rate gets to the last of them.

    `plan.py` makes it, and a checkpoint holds it: with a time limit it depends on the clock.
    """

    total: NonNegativeInt = 0  # updates of the whole run
    warmup: NonNegativeInt = 0  # of them
    start: NonNegativeInt = 0  # updates before the decay goes on, after warm-up at the earliest
    progress: NonNegativeFloat = 0.0  # of the decay at `start`; it is 1 at the end
    step: NonNegativeInt = 0  # updates done when the plan was made
    pace: NonNegativeFloat = 0.0  # seconds per update without validations; 0: not known yet
    most: NonNegativeInt = 0  # updates that `max_steps` and `max_epochs` allow
    hours: NonNegativeFloat | None = None  # `max_hours`
    asked: NonNegativeInt | None = None  # `warmup_steps`; None in plans of earlier versions

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

    Without warm-up, where that equation has no peak, it falls as it does after `DEFAULT_WARMUP`
    updates of warm-up.
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


SCHEDULES: dict[Schedule, Callable[[int, Plan], float]] = {
    "inverse_sqrt": inverse_sqrt,
    "linear": linear,
    "cosine": cosine,
    "constant": warmup,
}
