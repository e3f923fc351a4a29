"""Runs without text for tests of single updates, and runs that stop."""

import functools
import inspect
from typing import Any, cast

import torch

from seq2seq_cli.config.schema import Config, TrainingConfig
from seq2seq_cli.data.batches import IGNORE_INDEX, Batch
from seq2seq_cli.training.losses.cross_entropy import BatchLoss
from seq2seq_cli.training.optimizers.adam import Optimizer
from seq2seq_cli.training.parallel.strategy import SingleProcess
from seq2seq_cli.training.run import Hooks, Run, TrainingState

DEFAULTS = TrainingConfig()
ALONE = SingleProcess()


class SGD(Optimizer, torch.optim.SGD):
    """Plain SGD, whose updates show the gradients; PyTorch's imports torch._dynamo."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))


def bare_run(
    batch_loss: BatchLoss,
    optimizer: torch.optim.Optimizer,
    training: TrainingConfig = DEFAULTS,
    parallel: SingleProcess = ALONE,
) -> Run:
    """A run at step 0 with what `train_step` needs."""
    return Run(
        config=Config.model_construct(training=training),
        data=cast(Any, None),
        model=batch_loss.model,
        loss=batch_loss,
        optimizer=optimizer,
        parallel=parallel,
    )


def random_batch(sentences: int, length: int = 8, *, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, length + 1, (sentences, 2), generator=generator)
    lengths[0] = length
    src, tgt = (torch.randint(4, 30, (sentences, length), generator=generator) for _ in range(2))
    places = torch.arange(length)
    src[places >= lengths[:, :1]] = 0
    labels = tgt.masked_fill(places >= lengths[:, 1:], IGNORE_INDEX)
    tgt_in = torch.cat([torch.full((sentences, 1), 2), tgt[:, :-1]], dim=1)
    tgt_in[places >= lengths[:, 1:]] = 0
    return Batch(src, tgt_in, labels, int(lengths[:, 1].sum()), int(lengths[:, 0].sum()))


def stop_at(step: int | None) -> Hooks:
    """Hooks that stop training, saved, after the update of this number; None: never."""
    return Hooks(on_step=functools.partial(_is_at, step))


def _is_at(step: int | None, state: TrainingState) -> bool:
    return state.step == step
