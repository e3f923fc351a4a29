"""`seq2seq find-lr`: the learning-rate range test (Smith 2017).

"Cyclical Learning Rates for Training Neural Networks": training starts at a rate that is too low to
learn anything, and ends at one that is too high. Between them lies where the loss falls fastest.
"""

import functools
import itertools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from seq2seq_cli.commands.dry_run import DryRun, dry_run
from seq2seq_cli.config.schema import Config
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.plot.text_chart import text_chart
from seq2seq_cli.machine import retain_freed_pages

logger = logging.getLogger(__name__)

# As in fastai's lr_find, whose suggestions have these names.
_SMOOTHING = 0.98  # of the exponential moving average of the loss
_DIVERGED = 4  # times the lowest smoothed loss
_SKIPPED_AT_START = 0.1  # share of the updates, in which the average is not settled
_SKIPPED_AT_END = 5  # points, in which the loss explodes
FEWEST_UPDATES = 20

Suggestion = Callable[[Sequence[float], Sequence[float]], float]


class Point(NamedTuple):
    """One update of the test."""

    lr: float
    loss: float  # nats per target token, label smoothing included
    smoothed: float  # its exponential moving average


@dataclass(frozen=True)
class RangeTest:
    """The curve of a range test, and what it suggests."""

    points: list[Point]
    diverged: bool  # before the highest rate
    lr: float  # the config's
    warmup_updates: int

    @property
    def suggestions(self) -> dict[str, float]:
        """The suggested rates by name, from the part of the curve that is worth reading."""
        points = self.points[int(_SKIPPED_AT_START * len(self.points)) : -_SKIPPED_AT_END]
        lrs, losses = [point.lr for point in points], [point.smoothed for point in points]
        return {name: suggest(lrs, losses) for name, suggest in SUGGESTIONS.items()}

    def report(self) -> dict[str, Any]:
        """Return the output of `find-lr --json`."""
        return {
            "suggestions": self.suggestions,
            "lr": self.lr,
            "warmup_updates": self.warmup_updates,
            "diverged": self.diverged,
            "points": [point._asdict() for point in self.points],
        }

    def as_text(self, columns: int, dot: str) -> str:
        """Return the output of `find-lr`: the suggestions below the curve.

        The curve fits a terminal of so many columns, and is drawn with `dot`.
        """
        marks = self.suggestions
        rows = [(name, lr, _MEANINGS[name]) for name, lr in marks.items()]
        rows.append(("training.lr", self.lr, self._compared()))
        end = self.points[-1].lr
        head = f"smoothed loss by learning rate, {len(self.points):,} updates"
        head += f"; it diverged at {end:.2g}" if self.diverged else ""
        curve = [(point.lr, point.smoothed) for point in self.points]
        return "\n".join(
            [
                head,
                text_chart(curve, marks.values(), columns, dot),
                *(f"{label:<16} {lr:<8.2g} {text}" for label, lr, text in rows),
            ]
        )

    def _compared(self) -> str:
        """Say where the config's rate lies among the suggested ones."""
        suggested = self.suggestions.values()
        where = "among the suggestions"
        if self.lr < min(suggested):
            where = "below all suggestions"
        elif self.lr > max(suggested):
            where = "above all suggestions"
        return f"reached after {self.warmup_updates:,} updates of warm-up; {where}"


def find_lr(config: Config, lowest: float, highest: float, updates: int) -> RangeTest | None:
    """Train a new model at rates that grow exponentially from `lowest` to `highest`.

    Nothing is kept. Returns None in all processes of torchrun but the main one. Raises UserError as
    `train` does, and if the loss diverges before there is a curve.
    """
    if lowest >= highest:
        raise UserError(f"--start-lr {lowest:g} must be lower than --end-lr {highest:g}")
    return dry_run(functools.partial(_range_test, lowest, highest, updates), config)


def _range_test(lowest: float, highest: float, updates: int, trial: DryRun) -> RangeTest:
    retain_freed_pages()
    training, ranks = trial.run.config.training, trial.run.ranks
    logger.info(f"raising the learning rate from {lowest:g} to {highest:g}")
    points: list[Point] = []
    average, best, diverged = 0.0, math.inf, False
    for number in range(updates):
        lr = lowest * (highest / lowest) ** (number / (updates - 1))
        loss = trial.update_at(lr)
        average = _SMOOTHING * average + (1 - _SMOOTHING) * loss
        smoothed = average / (1 - _SMOOTHING ** (number + 1))
        if diverged := not smoothed <= _DIVERGED * best:  # NaN too
            break
        points.append(Point(lr, loss, smoothed))
        best = min(best, smoothed)
    ranks.barrier()
    if len(points) < FEWEST_UPDATES:
        raise UserError(
            f"the loss diverged after {len(points):,} updates, at a learning rate of {lr:.2g}: "
            "lower --start-lr"
        )
    return RangeTest(points, diverged, training.lr, training.warmup_updates)


def valley(lrs: Sequence[float], losses: Sequence[float]) -> float:
    """Return the middle of the longest decreasing subsequence of the losses, which may skip some.

    The default of fastai since 2021. The subsequence is found in O(n²).
    """
    lengths: list[int] = []
    for number, loss in enumerate(losses):
        earlier = (lengths[i] for i in range(number) if losses[i] > loss)
        lengths.append(1 + max(earlier, default=0))
    longest = max(lengths)
    end = lengths.index(longest)
    return lrs[max(0, end - longest) + longest // 3 + longest // 6]


def steep(lrs: Sequence[float], losses: Sequence[float]) -> float:
    """Return the rate at which the loss falls fastest, by the logarithm of the rate."""
    slopes = [
        (loss - before) / math.log(lr / lower)
        for (lower, lr), (before, loss) in zip(
            itertools.pairwise(lrs), itertools.pairwise(losses), strict=True
        )
    ]
    return lrs[int(np.argmin(slopes))]


def tenth_of_minimum(lrs: Sequence[float], losses: Sequence[float]) -> float:
    """Return a tenth of the rate at which the loss is lowest, beyond which it diverges."""
    return lrs[int(np.argmin(losses))] / 10


SUGGESTIONS: dict[str, Suggestion] = {
    "valley": valley,
    "steep": steep,
    "minimum/10": tenth_of_minimum,
}
_MEANINGS = {
    "valley": "the middle of the longest decrease",
    "steep": "where the loss falls fastest",
    "minimum/10": "a tenth of the rate with the lowest loss",
}
