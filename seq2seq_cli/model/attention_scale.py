"""The scale of attention scores: what is done to q·k before the softmax.

B sentences, H heads, Q query positions, M memory positions, K size of one head.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq_cli.config.types import AttentionScale

_COSINE_SCALE = 10.0  # at first: for some ten positions, about log2(M² - M) (Henry et al. 2020)


class ScoreScale(nn.Module):
    """Changes queries and keys such that `attention_weights`, which computes q·k / √K, gets the
    scores of this scale.
    """

    def query_factor(self) -> Tensor | float | None:
        """Return what the queries are multiplied by, a number or H11; None if that is not all.

        Engines and exports can fold such a factor into the weights of the query projection.
        """
        return None

    def forward(
        self, q_BHQK: Tensor, k_BHMK: Tensor, mask_B1QM: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        factor_H11 = self.query_factor()
        assert factor_H11 is not None, "other scales define their own forward"
        return q_BHQK * factor_H11, k_BHMK


class SqrtScale(ScoreScale):
    """q·k / √K: the variance of scores does not depend on K (Vaswani et al. 2017, 3.2.1)."""

    def query_factor(self) -> float:
        return 1.0

    def forward(
        self, q_BHQK: Tensor, k_BHMK: Tensor, mask_B1QM: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return q_BHQK, k_BHMK


class NoScale(ScoreScale):
    """q·k, as in multiplicative attention (Luong et al. 2015)."""

    def __init__(self, head_size: int) -> None:
        super().__init__()
        self.sqrt_size = math.sqrt(head_size)

    def query_factor(self) -> float:
        return self.sqrt_size


class TemperatureScale(ScoreScale):
    """q·k / (τ √K) with a temperature τ for each head; 1/τ is learned, and 1 at first."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.inverse_temperature_H = nn.Parameter(torch.ones(heads))

    def query_factor(self) -> Tensor:
        return self.inverse_temperature_H[:, None, None]


class CosineScale(ScoreScale):
    """cos(q, k) / τ with a temperature τ for each head; 1/τ is learned (Henry et al. 2020: QKNorm).

    Scores are bounded by 1/τ however large queries and keys grow.
    """

    def __init__(self, heads: int, head_size: int) -> None:
        super().__init__()
        self.sqrt_size = math.sqrt(head_size)
        self.inverse_temperature_H = nn.Parameter(torch.full((heads,), _COSINE_SCALE))

    def forward(
        self, q_BHQK: Tensor, k_BHMK: Tensor, mask_B1QM: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        factor_H11 = self.inverse_temperature_H[:, None, None] * self.sqrt_size
        return F.normalize(q_BHQK, dim=-1) * factor_H11, F.normalize(k_BHMK, dim=-1)


class LengthScale(ScoreScale):
    """ln(n) q·k / √K for a query that attends to n positions (Chiang and Cholak 2022).

    With a fixed scale, weights are spread ever more evenly the longer the sentence is.
    """

    def forward(
        self, q_BHQK: Tensor, k_BHMK: Tensor, mask_B1QM: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if mask_B1QM is None:
            return q_BHQK * math.log(k_BHMK.size(2)), k_BHMK
        visible_B1Q1 = mask_B1QM.sum(dim=-1, keepdim=True)
        return q_BHQK * visible_B1Q1.to(q_BHQK.dtype).log(), k_BHMK


SCALES: dict[AttentionScale, Callable[[int, int], ScoreScale]] = {
    "sqrt": lambda heads, head_size: SqrtScale(),
    "none": lambda heads, head_size: NoScale(head_size),
    "temperature": lambda heads, head_size: TemperatureScale(heads),
    "cosine": CosineScale,
    "length": lambda heads, head_size: LengthScale(),
}
