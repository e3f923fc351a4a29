"""The parameters of a model, and tables of tensors with their shapes and statistics.

B sentences, S source positions, T target positions, Q query positions and M memory positions of an
attention, D d_model, F d_ff, H heads, K size of one head, V target vocabulary.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seq2seq_cli.config.types import Positions
from seq2seq_cli.console import counted, printable
from seq2seq_cli.model.transformer import Transformer


class NamedTensor(NamedTuple):
    """A tensor, with a letter for each of its dimensions or none for all."""

    name: str
    dimensions: str
    values: Tensor


@dataclass(frozen=True)
class TensorSummary:
    """Shape and statistics of a tensor; None for ids and without a finite number."""

    name: str
    dimensions: str
    shape: tuple[int, ...]
    mean: float | None = None  # of the finite numbers, as are the next three
    std: float | None = None  # standard deviation of the population
    min: float | None = None
    max: float | None = None
    zeros: float | None = None  # share of all numbers
    non_finite: float | None = None  # share of all numbers: NaN, infinity

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
    columns = f"{'mean':>11}{'std':>11}{'min':>11}{'max':>11}{'zeros':>8}{'non-finite':>12}"
    lines = [f"{'tensor':<{names}}  {'shape':<{shapes}}{columns}"]
    for summary in summaries:
        numbers = (summary.mean, summary.std, summary.min, summary.max)
        line = f"{summary.name:<{names}}  {summary.shape_text:<{shapes}}"
        line += "".join(f"{'' if n is None else f'{n:.4g}':>11}" for n in numbers)
        zeros, non_finite = (
            "" if share is None else f"{share:.1%}" for share in (summary.zeros, summary.non_finite)
        )
        line += f"{zeros:>8}{non_finite:>12}"
        lines.append(line.rstrip())
    return "\n".join([*lines, *(f"{name:<{names}}  {note}" for name, note in notes)])


_SUBLAYER = re.compile(r"\w+\.\d+\.(self_attention|cross_attention|feed_forward)\.")
_EMBEDDINGS = ("src_embedding", "tgt_embedding", "src_ngrams")


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters; a tied matrix counts once, under its first name."""

    embeddings: dict[str, tuple[int, ...]]  # shape by name, without tied ones
    stacks: dict[str, dict[str, int]]  # encoder, decoder: by kind of sub-layer, all layers together
    layers: dict[str, int]
    projection: int
    other: int  # that someone has added
    positions: Positions
    ties: dict[str, str]  # the first name of the same tensor

    @property
    def num_embeddings(self) -> int:
        return sum(map(math.prod, self.embeddings.values()))

    @property
    def total(self) -> int:
        stacks = sum(sum(kinds.values()) for kinds in self.stacks.values())
        return self.num_embeddings + stacks + self.projection + self.other

    def report(self) -> dict[str, Any]:
        return {
            "total": self.total,
            "embeddings": self.num_embeddings,
            "positional_encoding": 0,
            **self.stacks,
            "projection": self.projection,
            **({"other": self.other} if self.other else {}),
            "tied": self.ties,
        }

    def rows(self) -> list[tuple[str, str]]:
        """Return the labels and texts of the rows: count, share and remark of each part."""
        matrices = " and ".join(
            f"{name}, {' × '.join(f'{size:,}' for size in shape)}"
            for name, shape in self.embeddings.items()
        )
        counts = [
            ("parameters", self.total, ""),
            ("  embeddings", self.num_embeddings, matrices),
            ("  positional encoding", 0, f"{self.positions}: computed, not learned"),
        ]
        for stack, kinds in self.stacks.items():
            layers = counted(self.layers[stack], "layer")
            counts.append((f"  {stack}", sum(kinds.values()), layers))
            counts += [(f"    {kind.replace('_', '-')}", n, "") for kind, n in kinds.items()]
        counts.append(("  projection", self.projection, ""))
        counts += [("  other", self.other, "")] if self.other else []
        rows = [
            (label, f"{count:>14,}{count / self.total:>8.1%}   {note}".rstrip())
            for label, count, note in counts
        ]
        return rows + [("  tied", f"{name} is {first}") for name, first in self.ties.items()]


def count_parts(model: Transformer) -> Parameters:
    """Count the parameters of each part; the model may be on the meta device."""
    embeddings: dict[str, tuple[int, ...]] = {}
    stacks: dict[str, Counter[str]] = {"encoder": Counter(), "decoder": Counter()}
    projection = other = 0
    for name, parameter in model.named_parameters():
        part = name.partition(".")[0]
        if (stack := part.removesuffix("_norm")) in stacks:
            match = _SUBLAYER.match(name)
            kind = match[1] if match else "norms" if "norm" in name else "other"
            stacks[stack][kind] += parameter.numel()
        elif part in _EMBEDDINGS:
            embeddings[name] = tuple(parameter.shape)
        elif part == "projection":
            projection += parameter.numel()
        else:
            other += parameter.numel()
    return Parameters(
        embeddings,
        {stack: dict(kinds) for stack, kinds in stacks.items()},
        {"encoder": len(model.encoder), "decoder": len(model.decoder)},
        projection,
        other,
        model.config.positions,
        tied_names(model),
    )


def tied_names(model: nn.Module) -> dict[str, str]:
    """Return the other names of tied parameters, each with the first name of the same tensor."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[id(p)] for name, p in every if first[id(p)] != name}


@dataclass(frozen=True)
class ParameterTable:
    """Every parameter with its statistics."""

    summaries: tuple[TensorSummary, ...]
    ties: dict[str, str]

    def report(self) -> dict[str, Any]:
        return {"tensors": [asdict(s) for s in self.summaries], "tied": self.ties}

    def as_text(self) -> str:
        return table(self.summaries, [(name, f"is {first}") for name, first in self.ties.items()])


def tabulate_parameters(model: nn.Module) -> ParameterTable:
    named = (NamedTensor(printable(n), "", p) for n, p in model.named_parameters())
    return ParameterTable(tuple(map(summarize, named)), tied_names(model))
