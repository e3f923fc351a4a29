"""Why attention divides its scores by √K, and what else could keep them in range.

If queries and keys have independent components of variance 1, then q · k is a sum of K products
and has variance K (Vaswani et al. 2017, section 3.2.1, footnote 4). Large scores saturate the
softmax: one weight is 1, the others are 0, and its gradient vanishes. The first table measures
this, the others compare scales; the first three are those of the option `model.attention_scale`:

    none         q · k
    sqrt         q · k / √K             Vaswani et al. 2017, eq. 1
    temperature  q · k / (τ √K)         1/τ is learned for each head, and 1 at first
    cosine       cos(q, k) / τ          1/τ is learned, and 10 at first; Henry et al. 2020
    length       ln(n) q · k / √K       n visible positions; Chiang and Cholak 2022

    python examples/score_scaling.py
    python examples/score_scaling.py --plot score_scaling.png

Q queries, M memory positions, K size of one head, 1 a dimension kept for broadcasting.
"""

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

QUERIES = 100  # over which every number is averaged, each with keys of its own
SIZES = (1, 4, 16, 64, 256, 1024)
GROWTHS = (1, 2, 4)
LENGTHS = (4, 16, 64, 256, 1024)

Scale = Callable[[Tensor, Tensor], Tensor]


def none(q_QK: Tensor, k_MK: Tensor) -> Tensor:
    return q_QK @ k_MK.mT


def sqrt(q_QK: Tensor, k_MK: Tensor) -> Tensor:
    return q_QK @ k_MK.mT / math.sqrt(q_QK.size(-1))


def temperature(q_QK: Tensor, k_MK: Tensor, tau: float = 1.0) -> Tensor:
    return sqrt(q_QK, k_MK) / tau


def cosine(q_QK: Tensor, k_MK: Tensor, tau: float = 0.1) -> Tensor:
    return F.normalize(q_QK, dim=-1) @ F.normalize(k_MK, dim=-1).mT / tau


def length(q_QK: Tensor, k_MK: Tensor) -> Tensor:
    return sqrt(q_QK, k_MK) * math.log(k_MK.size(-2))


SCALES: dict[str, Scale] = {"none": none, "sqrt": sqrt, "cosine": cosine, "length": length}


class Softmax(NamedTuple):
    """What a softmax over M scores does, on average over the queries."""

    variance: float  # of the scores
    entropy: float  # of the weights, in nats; ln M if all are equal, 0 if one is 1
    greatest: float  # greatest weight
    gradient: float  # Frobenius norm of the Jacobian diag(p) - p pᵀ; 0 if one weight is 1


def measure(scores_QM: Tensor) -> Softmax:
    p_QM = scores_QM.softmax(dim=-1)
    entropy_Q = -torch.xlogy(p_QM, p_QM).sum(dim=-1)
    jacobian_QMM = torch.diag_embed(p_QM) - p_QM[:, :, None] * p_QM[:, None, :]
    norm_Q, greatest_Q = jacobian_QMM.flatten(1).norm(dim=1), p_QM.amax(dim=-1)
    return Softmax(*(x.mean().item() for x in (scores_QM.var(), entropy_Q, greatest_Q, norm_Q)))


# 1. The argument of the paper: random vectors of growing size, with and without the division.
# 2. √K assumes components of variance 1, and training may change it. If queries and keys grow by a
# factor g, scores grow by g². Cosines do not grow, only the learned τ changes them. A temperature
# can undo any growth, if training finds τ = g².
def measure_random(scale: Scale, size: int, growth: float = 1.0) -> Softmax:
    """Measure queries with 32 keys each; components are normal with the deviation `growth`."""
    torch.manual_seed(0)  # the same vectors for every scale
    q_Q1K, k_QMK = growth * torch.randn(QUERIES, 1, size), growth * torch.randn(QUERIES, 32, size)
    return measure(scale(q_Q1K, k_QMK)[:, 0])


# 3. Softmax over more positions is flatter. If one key matches its query with score a, and n - 1
# others have scores near 0, the match has the weight eᵃ / (eᵃ + n - 1), which vanishes for long
# sentences. With scores multiplied by ln n, eᵃ becomes nᵃ, which outgrows n if a > 1. (Without a
# scale, the match wins as well, but by saturation: see the gradients of the first table.)
def weight_of_match(scale: Scale, memory: int, match: float = 5.0) -> float:
    """Return the mean weight of a key with q · k / √K = `match` among random keys of size 64."""
    torch.manual_seed(0)
    q_Q1K, k_QMK = torch.randn(QUERIES, 1, 64), torch.randn(QUERIES, memory, 64)
    k_QMK[:, :1] = q_Q1K * match * math.sqrt(64) / q_Q1K.square().sum(dim=-1, keepdim=True)
    return scale(q_Q1K, k_QMK).softmax(dim=-1)[:, 0, 0].mean().item()


def plot(sizes: dict[str, list[Softmax]], weights: dict[str, list[float]], file: str) -> None:
    """Save entropy and gradient by size, and the weight of a match by length."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(12, 3.5), layout="tight")
    for name, rows in sizes.items():
        panels[0].plot(SIZES, [row.entropy for row in rows], marker="o", label=name)
        panels[1].plot(SIZES, [row.gradient for row in rows], marker="o", label=name)
    for name, values in weights.items():
        panels[2].plot(LENGTHS, values, marker="o", label=name)
    labels = ("entropy (nats)", "norm of the Jacobian", "weight of the match")
    for panel, x, label in zip(panels, ("K", "K", "positions n"), labels, strict=True):
        panel.set(xlabel=x, ylabel=label, xscale="log")
        panel.legend()
    figure.savefig(file)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare scales of attention scores.")
    parser.add_argument("--plot", metavar="FILE", help="also save the curves (matplotlib)")
    file = parser.parse_args().plot
    sizes = {n: [measure_random(SCALES[n], size) for size in SIZES] for n in ("none", "sqrt")}
    print("1. random vectors of size K, 32 positions; ln 32 = 3.47")
    print(f"{'K':>14}{'variance':>10}{'entropy':>9}{'greatest':>10}{'gradient':>10}")
    for name, rows in sizes.items():
        for size, row in zip(SIZES, rows, strict=True):
            print(f"{name:>8}{size:6}{row[0]:10.2f}{row[1]:9.2f}{row[2]:10.2f}{row[3]:10.3f}")

    print("\n2. entropy of the weights, if queries and keys grow by g")
    print(f"{'g':>24}", *(f"{growth:6}" for growth in GROWTHS))
    for name, scale in SCALES.items():
        print(f"{name:>24}", *(f"{measure_random(scale, 64, g).entropy:6.2f}" for g in GROWTHS))
    undone = (measure_random(partial(temperature, tau=g**2), 64, g) for g in GROWTHS)
    print(f"{'temperature, τ = g²':>24}", *(f"{row.entropy:6.2f}" for row in undone))

    print("\n3. weight of one matching key among n")
    print(f"{'n':>24}", *(f"{n:6}" for n in LENGTHS))
    weights = {key: [weight_of_match(scale, n) for n in LENGTHS] for key, scale in SCALES.items()}
    for name, values in weights.items():
        print(f"{name:>24}", *(f"{value:6.2f}" for value in values))
    if file:
        plot(sizes, weights, file)


if __name__ == "__main__":
    main()
