"""Positions: sinusoidal encodings, and rotations of queries and keys.

B sentences, S source positions, M memory positions, H heads, K size of one head, J pairs of its
dimensions, 1 a dimension kept for broadcasting, 2 the numbers of a pair.
"""

import functools
import math

import torch
from torch import Tensor


def sinusoidal_positions(
    start: int,
    stop: int,
    d_model: int,
    device: torch.device | None = None,
    base: float = 10_000.0,
) -> Tensor:
    """Return the encodings of positions start to stop, (stop - start, d_model), in [-1, 1].

    Vaswani et al. 2017, section 3.5: sines in even dimensions, cosines in odd ones, wavelengths
    from 2π to `base` · 2π. Computed, not looked up, so that no sentence is too long.
    """
    even = torch.arange(0, d_model, 2, dtype=torch.float32, device=device)
    rates = torch.exp(even * (-math.log(base) / d_model))
    angles = torch.arange(start, stop, device=device)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def source_positions(src_BS: Tensor, features: range) -> Tensor:
    """Return the position of every token: 0 up to the last feature, then 1, 2, and so on.

    `features` are the ids that are features. Wu et al. 2021 ("feature-invariant Transformer").
    """
    index_S = torch.arange(src_BS.size(1), device=src_BS.device)
    is_feature_BS = (src_BS >= features.start) & (src_BS < features.stop)
    last_B1 = (index_S * is_feature_BS).amax(dim=1, keepdim=True)
    return (index_S - last_B1).clamp(min=0)


def rotations(
    start: int, stop: int, head_size: int, device: torch.device, base: float = 10_000.0
) -> Tensor:
    """Return cos(m θⱼ) and sin(m θⱼ) of positions m from start to stop, MJ2, θⱼ = base^(-2j/K).

    Su et al. 2021, section 3.2: the angles of `sinusoidal_positions`, for the size of a head.
    """
    even_J = torch.arange(0, head_size, 2, dtype=torch.float32, device=device)
    rates_J = torch.exp(even_J * (-math.log(base) / head_size))
    angles_MJ = torch.arange(start, stop, device=device)[:, None] * rates_J
    return torch.stack([angles_MJ.cos(), angles_MJ.sin()], dim=-1)


def rotate(heads_BHMK: Tensor, rotation_MJ2: Tensor) -> Tensor:
    """Rotate each pair of neighboring dimensions by the angle of its position.

    q·k of rotated vectors depends on the distance of their positions only (Su et al. 2021, eq. 16).
    """
    pairs_BHMJ2 = heads_BHMK.float().view(*heads_BHMK.shape[:-1], -1, 2)
    if torch.compiler.is_compiling():  # PyTorch's compiler has no code for complex numbers
        (a_BHMJ, b_BHMJ), (cos_MJ, sin_MJ) = pairs_BHMJ2.unbind(-1), rotation_MJ2.unbind(-1)
        rotated = [a_BHMJ * cos_MJ - b_BHMJ * sin_MJ, a_BHMJ * sin_MJ + b_BHMJ * cos_MJ]
        rotated_BHMJ2 = torch.stack(rotated, dim=-1)
    else:  # one product of complex numbers is four times as fast on a CPU
        rotation_MJ = torch.view_as_complex(rotation_MJ2)
        rotated_BHMJ2 = torch.view_as_real(torch.view_as_complex(pairs_BHMJ2) * rotation_MJ)
    return rotated_BHMJ2.flatten(-2).to(heads_BHMK.dtype)


@functools.lru_cache(8)
def rotation_tables(length: int, head_size: int, base: float) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, MK, for `fused.attend`; sines of even dimensions are negated."""
    cosines, sines = rotations(0, length, head_size, torch.device("cpu"), base).unbind(-1)
    return cosines.repeat_interleave(2, 1), torch.stack([-sines, sines], -1).flatten(1)
