"""Names, shapes and statistics of tensors, and tables of them.

B sentences, S source positions, T target positions, Q query positions and M memory positions of an
attention, D d_model, F d_ff, H heads, K size of one head, V target vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

_COLUMNS = ("mean", "std", "min", "max")


class NamedTensor(NamedTuple):
    """A tensor, with a letter for each of its dimensions or none for all."""

    name: str
    dimensions: str
    values: Tensor


@dataclass(frozen=True)
class TensorSummary:
    """Shape and statistics of a tensor; those of ids, or without a finite number, are None."""

    name: str
    dimensions: str
    shape: tuple[int, ...]
    mean: float | None = None  # of the finite numbers, as are the next three
    std: float | None = None  # standard deviation of the population
    min: float | None = None
    max: float | None = None
    zeros: float | None = None  # share of all numbers
    non_finite: float | None = None  # share of all numbers: NaN, infinity

    def report(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        return asdict(self)

    @property
    def shape_text(self) -> str:
        """The shape with its letters, as in B1 S7 D128, or as in 7 × 128."""
        if self.dimensions:
            return " ".join(map("{}{}".format, self.dimensions, self.shape))
        return " × ".join(f"{size:,}" for size in self.shape)


def summarize(tensor: NamedTensor) -> TensorSummary:
    """Compute the statistics in fp64, so that they depend on no order of summation."""
    name, dimensions, values = tensor
    shape = tuple(values.shape)
    if not values.is_floating_point():
        return TensorSummary(name, dimensions, shape)
    numbers = values.detach().double().flatten()
    finite = numbers[numbers.isfinite()]
    zeros = (numbers == 0).double().mean().item()
    non_finite = 1 - len(finite) / len(numbers)
    if not len(finite):
        return TensorSummary(name, dimensions, shape, zeros=zeros, non_finite=non_finite)
    std, mean = torch.std_mean(finite, correction=0)
    least, greatest = finite.aminmax()
    moments = (mean.item(), std.item(), least.item(), greatest.item())
    return TensorSummary(name, dimensions, shape, *moments, zeros, non_finite)


def table(summaries: Sequence[TensorSummary], notes: Iterable[tuple[str, str]] = ()) -> str:
    """Return a line for each tensor, and one for each (name, note) after them."""
    names = max(map(len, ["tensor", *(summary.name for summary in summaries)]))
    shapes = max(map(len, ["shape", *(summary.shape_text for summary in summaries)]))
    header = f"{'tensor':<{names}}  {'shape':<{shapes}}"
    header += "".join(f"{column:>11}" for column in _COLUMNS) + f"{'zeros':>8}{'non-finite':>12}"
    lines = [header]
    for summary in summaries:
        numbers = (summary.mean, summary.std, summary.min, summary.max)
        line = f"{summary.name:<{names}}  {summary.shape_text:<{shapes}}"
        line += "".join(f"{'' if n is None else f'{n:.4g}':>11}" for n in numbers)
        line += f"{_percent(summary.zeros):>8}{_percent(summary.non_finite):>12}"
        lines.append(line.rstrip())
    return "\n".join([*lines, *(f"{name:<{names}}  {note}" for name, note in notes)])


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
