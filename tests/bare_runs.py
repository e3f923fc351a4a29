"""Runs without text for tests of single updates, and runs that stop."""

import functools
from typing import Any, cast

import torch

from seq2seq_cli.config.schema import Config, TrainingConfig
from seq2seq_cli.training.distributed import Ranks
from seq2seq_cli.training.loss import BatchLoss
from seq2seq_cli.training.run import Hooks, Run, TrainingState

DEFAULTS = TrainingConfig()
ALONE = Ranks()


def bare_run(
    batch_loss: BatchLoss,
    optimizer: torch.optim.Optimizer,
    training: TrainingConfig = DEFAULTS,
    ranks: Ranks = ALONE,
) -> Run:
    """A run at step 0 with what `train_step` needs."""
    return Run(
        config=Config.model_construct(training=training),
        data=cast(Any, None),
        model=batch_loss.model,
        loss=batch_loss,
        optimizer=optimizer,
        ranks=ranks,
    )


def stop_at(step: int | None) -> Hooks:
    """Hooks that stop training, saved, after the update of this number; None: never."""
    return Hooks(on_step=functools.partial(_is_at, step))


def _is_at(step: int | None, state: TrainingState) -> bool:
    return state.step == step
