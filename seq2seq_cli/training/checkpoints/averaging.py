"""Averages of weights: of all updates (EMA, schedule-free AdamW), and of several checkpoints.

They are what a run evaluates, and never feed back into training.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from seq2seq_cli.config.schema import TrainingConfig
from seq2seq_cli.model.parameters import unique_parameters
from seq2seq_cli.model.weights import Weights, read_weights


class Ema:
    """The exponential moving average of a model's weights (Polyak averaging), in fp32."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.start(model)

    def start(self, model: nn.Module) -> None:
        """Start again from the present weights."""
        self.weights = {name: w.clone() for name, w in unique_parameters(model).items()}

    def update(self, model: nn.Module, step: int) -> None:
        """Add the weights after the 1-based update `step`.

        The decay warms up as min(decay, (1 + step) / (10 + step)), so that the first weights, which
        are random, are soon forgotten (as in TensorFlow's ExponentialMovingAverage and in Marian).
        """
        decay = min(self.decay, (1 + step) / (10 + step))
        weights = list(unique_parameters(model).values())
        torch._foreach_lerp_(list(self.weights.values()), weights, 1 - decay)

    def load(self, path: Path, model: nn.Module) -> None:
        """Go on from a file. Raises UserError if it is damaged or does not fit the model."""
        for name, saved in read_weights(path, model).items():
            self.weights[name].copy_(saved)


@contextmanager
def with_weights(model: nn.Module, weights: Weights) -> Iterator[None]:
    """Give a model other weights while the block runs, without copying any."""
    own = [(parameter, parameter.data) for parameter in model.parameters()]
    device = own[0][0].device
    try:
        for name, parameter in model.named_parameters():
            parameter.data = weights[name].to(device)
        yield
    finally:
        for parameter, data in own:
            parameter.data = data


def averaged_steps(steps: Iterable[int], config: TrainingConfig) -> list[int]:
    """Return the steps that `training.average_checkpoints` averages: multiples of `save_every`."""
    if config.average_checkpoints is None or config.save_every is None:
        return []
    regular = sorted(step for step in steps if step > 0 and step % config.save_every == 0)
    return regular[-config.average_checkpoints :]


def mean_of_files(paths: Sequence[Path], model: nn.Module) -> Weights:
    """Return the mean of the weights in several files, summed in fp64.

    Raises UserError if a file is damaged or does not fit the model.
    """
    sums: dict[str, Tensor] = {}
    for path in paths:
        for name, weights in read_weights(path, model).items():
            sums[name] = sums[name].add_(weights) if name in sums else weights.double()
    return {name: total.div_(len(paths)).float() for name, total in sums.items()}
