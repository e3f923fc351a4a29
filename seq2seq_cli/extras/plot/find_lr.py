"""`seq2seq find-lr`: the learning-rate range test (Smith 2017).

"Cyclical Learning Rates for Training Neural Networks": training starts at a rate that is too low to
learn anything, and ends at one that is too high. Between them lies where the loss falls fastest.
"""

import functools
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from seq2seq_cli.commands.dry_run import dry_run
from seq2seq_cli.config.schema import Config
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.plot.figures import COLORS, DASHES, GRAY, default_style
from seq2seq_cli.training.optimizers.schedules import Plan, set_lr
from seq2seq_cli.training.run import Run
from seq2seq_cli.training.step import train_step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

# As in fastai's lr_find.
_SMOOTHING = 0.98  # of the exponential moving average of the loss
_DIVERGED = 4  # times the lowest smoothed loss
_SKIPPED_AT_START = 0.1  # share of the updates, in which the average is not settled
_SKIPPED_AT_END = 5  # points, in which the loss explodes
FEWEST_UPDATES = 20


class Point(NamedTuple):
    """One update of the test."""

    lr: float
    loss: float  # nats per target token, label smoothing included
    smoothed: float  # its exponential moving average


@dataclass(frozen=True)
class RangeTest:
    """The curve of a range test, and what it suggests."""

    lr: float  # the config's
    warmup_updates: int
    diverged: bool  # before the highest rate
    points: list[Point]

    @property
    def suggestions(self) -> dict[str, float]:
        """The suggested rates by name, from the part of the curve that is worth reading."""
        points = self.points[int(_SKIPPED_AT_START * len(self.points)) : -_SKIPPED_AT_END]
        return suggest([point.lr for point in points], [point.smoothed for point in points])

    def report(self) -> dict[str, Any]:
        """Return the output of `find-lr --json`."""
        points = [point._asdict() for point in self.points]
        return {"suggestions": self.suggestions, **vars(self), "points": points}

    def as_text(self, columns: int, dot: str) -> str:
        """Return the output of `find-lr`: the suggestions below the curve, drawn with `dot`."""
        marks = self.suggestions
        is_low, is_high = self.lr < min(marks.values()), self.lr > max(marks.values())
        where = "below all" if is_low else "above all" if is_high else "among the"
        rows = [(name, lr, _MEANINGS[name]) for name, lr in marks.items()]
        reached = f"reached after {self.warmup_updates:,} updates of warm-up; {where} suggestions"
        rows.append(("training.lr", self.lr, reached))
        end = self.points[-1].lr
        diverged = f"; it diverged at {end:.2g}" if self.diverged else ""
        head = f"smoothed loss by learning rate, {len(self.points):,} updates{diverged}"
        curve = [(point.lr, point.smoothed) for point in self.points]
        lines = [f"{label:<16} {lr:<8.2g} {text}" for label, lr, text in rows]
        return "\n".join([head, text_chart(curve, marks.values(), columns, dot), *lines])


def find_lr(config: Config, lowest: float, highest: float, updates: int) -> RangeTest | None:
    """Train a new model at rates that grow exponentially from `lowest` to `highest`.

    Nothing is kept. Returns None in all processes of torchrun but the main one. Raises UserError as
    `train` does, and if the loss diverges before there is a curve.
    """
    if lowest >= highest:
        raise UserError(f"--start-lr {lowest:g} must be lower than --end-lr {highest:g}")
    return dry_run(functools.partial(_range_test, lowest, highest, updates), config)


def _update_at(lr: float, run: Run) -> float:
    """Make the next update at another learning rate; return its cross-entropy per target token.

    An update whose loss or gradient is not finite is not applied; NaN is returned.
    """
    batches = run.next_batches()
    training = {"lr": lr, "schedule": "constant"}
    set_lr(run.optimizer, run.config.training.model_copy(update=training), 1, Plan())
    result = train_step(run, batches)
    run.advance(batches)
    num_tokens = sum(batch.num_tokens for batch in batches)
    loss = run.loss.cross_entropy(result.loss, result.metrics)
    return loss / num_tokens if result.is_finite else math.nan


def _range_test(lowest: float, highest: float, updates: int, run: Run) -> RangeTest:
    training = run.config.training
    logger.info(f"raising the learning rate from {lowest:g} to {highest:g}")
    points: list[Point] = []
    average, best, diverged = 0.0, math.inf, False
    for number in range(updates):
        lr = lowest * (highest / lowest) ** (number / (updates - 1))
        loss = _update_at(lr, run)
        average = _SMOOTHING * average + (1 - _SMOOTHING) * loss
        smoothed = average / (1 - _SMOOTHING ** (number + 1))
        if diverged := not smoothed <= _DIVERGED * best:  # NaN too
            break
        points.append(Point(lr, loss, smoothed))
        best = min(best, smoothed)
    run.parallel.barrier()
    if len(points) < FEWEST_UPDATES:
        raise UserError(
            f"the loss diverged after {len(points):,} updates, at a learning rate of {lr:.2g}: "
            "lower --start-lr, or use more --updates"
        )
    return RangeTest(training.lr, training.warmup_updates, diverged, points)


def suggest(lrs: Sequence[float], losses: Sequence[float]) -> dict[str, float]:
    """Return the rates that fastai's `lr_find` suggests for a curve, by name.

    `valley` lies in the longest decreasing subsequence of the losses, found in O(n²); `steep` is
    where the loss falls fastest, by the logarithm of the rate; `minimum/10` is a tenth of the rate
    with the lowest loss, beyond which it diverges.
    """
    lengths: list[int] = []
    for number, loss in enumerate(losses):
        earlier = (lengths[i] for i in range(number) if losses[i] > loss)
        lengths.append(1 + max(earlier, default=0))
    longest = max(lengths)
    start = max(0, lengths.index(longest) - longest)
    slopes = np.diff(losses) / np.diff(np.log(lrs))
    return {
        "valley": lrs[start + longest // 3 + longest // 6],
        "steep": lrs[int(np.argmin(slopes))],
        "minimum/10": lrs[int(np.argmin(losses))] / 10,
    }


_MEANINGS = {
    "valley": "the middle of the longest decrease",
    "steep": "where the loss falls fastest",
    "minimum/10": "a tenth of the rate with the lowest loss",
}


_ROWS = 14
_MOST_COLUMNS = 100
_LABEL = 9  # characters left of the axis


def text_chart(
    curve: Sequence[tuple[float, float]], marks: Iterable[float], columns: int, dot: str
) -> str:
    """Draw the points (x, y), x on a logarithmic axis, and `marks`, which are vertical lines.

    `dot` stands for a point. The chart is `columns` wide, but at most 100. If points are far above
    the first one, where a loss diverges, they are left out, so that the rest can be seen.
    """
    width = max(10, min(columns, _MOST_COLUMNS) - _LABEL - 2)
    (first_x, first_y), last_x = curve[0], curve[-1][0]
    low = min(y for _, y in curve)
    high = min(max(y for _, y in curve), first_y + (first_y - low) / 2)
    height = high - low or 1.0
    span = math.log(last_x / first_x)

    def column(x: float) -> int:
        return round((width - 1) * math.log(x / first_x) / span)

    grid = [[" "] * width for _ in range(_ROWS)]
    for mark in marks:
        if first_x <= mark <= last_x:
            for row in grid:
                row[column(mark)] = "|"
    for x, y in curve:
        if y <= high:
            grid[round((_ROWS - 1) * (high - y) / height)][column(x)] = dot
    labels = [f"{high:.3f}", *[""] * (_ROWS - 2), f"{low:.3f}"]
    lines = [f"{label:>{_LABEL}} |{''.join(row)}" for label, row in zip(labels, grid, strict=True)]
    left, right, margin = f"{first_x:.1e}", f"{last_x:.1e}", " " * _LABEL
    axis = [f"{margin} +{'-' * width}", f"{margin}  {left}{right:>{width - len(left)}}"]
    return "\n".join([*(line.rstrip() for line in lines), *axis])


@default_style()
def draw_range_test(test: RangeTest) -> "Figure":
    """Draw the loss by learning rate, with the suggested rates as vertical lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    axes = figure.subplots()
    lrs, losses, smoothed = zip(*test.points, strict=True)
    axes.semilogx(lrs, losses, color=GRAY, alpha=0.4, label="loss")
    axes.semilogx(lrs, smoothed, color=COLORS[0], label="smoothed loss")
    looks = zip(COLORS[1:], DASHES[1:], strict=False)
    for (name, lr), (color, dash) in zip(test.suggestions.items(), looks, strict=False):
        axes.axvline(lr, color=color, linestyle=dash, label=f"{name} {lr:.2g}")
    axes.axvline(test.lr, color="black", linewidth=1, label=f"training.lr {test.lr:.2g}")
    axes.set(xlabel="learning rate", ylabel="loss, nats per target token")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend()
    return figure
