"""Masks, scaled dot-product attention and multi-head attention.

B sentences, Q query positions, M memory positions, T target positions, S source positions,
D d_model, H heads, K size of one head, J pairs of its dimensions, 1 a dimension kept for
broadcasting, 2 the numbers of a pair.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, assert_never

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq_cli.config.types import AttentionScale
from seq2seq_cli.model.device import activation_dtype
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.kv_cache import KeysValues
from seq2seq_cli.model.packing import BatchLayout, Packed
from seq2seq_cli.model.positions import rotate, rotation_tables, rotations
from seq2seq_cli.native import fused

_VECTOR = 16  # size of a CPU's vector registers; softmax is ten times slower over fewer numbers
_LONGEST_WEIGHTS = 256  # positions up to which attention weights (their square) are materialized


class AttentionRecord(NamedTuple):
    """What one attention has computed: its weights, the values that they average, its inputs."""

    weights_BHQM: Tensor
    v_BHMK: Tensor
    q_BHQK: Tensor
    k_BHMK: Tensor


AttentionLog = list[AttentionRecord]  # in the order of computation


def padding_mask(ids_BS: Tensor, pad_id: int) -> Tensor:
    """Mask that is True at tokens and False at padding; B11S, broadcasts over heads and queries."""
    return (ids_BS != pad_id)[:, None, None, :]


def causal_mask(queries: int, memory: int, device: torch.device) -> Tensor:
    """Mask that is True where a memory position is not after its query; 11QM.

    The queries are the last positions of the memory: all of them in training, one at a time when a
    cache holds the others.
    """
    mask_QM = torch.ones(queries, memory, dtype=torch.bool, device=device)
    return mask_QM.tril(memory - queries)[None, None]


def attention_scores(q_BHQK: Tensor, k_BHMK: Tensor, mask_B1QM: Tensor | None) -> Tensor:
    """Q Kᵀ / √K, and minus infinity where the mask is False; BHQM."""
    scores_BHQM = (q_BHQK @ k_BHMK.mT).div_(math.sqrt(q_BHQK.size(-1)))
    if mask_B1QM is not None:  # on a CPU, adding is ten times faster than masked_fill
        mask_bias_B1QM = scores_BHQM.new_zeros(mask_B1QM.shape).masked_fill(~mask_B1QM, -torch.inf)
        scores_BHQM += mask_bias_B1QM
    return scores_BHQM


def attention_weights(q_BHQK: Tensor, k_BHMK: Tensor, mask_B1QM: Tensor | None) -> Tensor:
    """softmax(Q Kᵀ / √K), BHQM; the mask must leave every query at least one position.

    Vaswani et al. 2017, eq. 1. Without a mask, every query attends to all positions.
    """
    scores_BHQM = attention_scores(q_BHQK, k_BHMK, mask_B1QM)
    if scores_BHQM.device.type != "cpu" or scores_BHQM.size(-1) >= _VECTOR:
        return scores_BHQM.softmax(dim=-1)
    # For short rows by definition, which is faster than PyTorch's kernel for CPUs.
    greatest_BHQ1 = scores_BHQM.detach().amax(dim=-1, keepdim=True)
    powers_BHQM = (scores_BHQM - greatest_BHQ1).exp()
    return powers_BHQM / powers_BHQM.sum(dim=-1, keepdim=True)


class ScoreScale(nn.Module):
    """Multiplies queries such that q·k / √K are the scores of `model.attention_scale`."""

    def __init__(self, kind: AttentionScale, heads: int, head_size: int) -> None:
        super().__init__()
        self.kind = kind
        self.sqrt_size = math.sqrt(head_size)
        if kind == "temperature":
            self.inverse_temperature_H = nn.Parameter(torch.ones(heads))

    def factor(self) -> Tensor | float:
        """Return what queries are multiplied by, a number or H11."""
        match self.kind:
            case "sqrt":  # the variance of scores does not depend on K (Vaswani et al. 2017, 3.2.1)
                return 1.0
            case "none":  # q·k, as in multiplicative attention (Luong et al. 2015)
                return self.sqrt_size
            case "temperature":  # q·k / (τ √K) with τ for each head; 1/τ is learned
                return self.inverse_temperature_H[:, None, None]
        assert_never(self.kind)

    def forward(self, q_BHQK: Tensor) -> Tensor:
        return q_BHQK if self.kind == "sqrt" else q_BHQK * self.factor()


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_H) Wᴼ with head_i = attention(Q Wᵢ, K Wᵢ, V Wᵢ).

    Vaswani et al. 2017, section 3.2.2. `queries`, `keys_values` and `attend` are its parts, for
    callers that cache keys and values.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        bias: bool,
        dropout: float,
        scale: AttentionScale = "sqrt",
        is_rotary: bool = False,
        position_base: float = 10_000.0,
    ) -> None:
        """`is_rotary`: queries and keys are rotated by their positions (`position_base`)."""
        super().__init__()
        self.heads = heads
        self.head_size = d_model // heads
        self.scale = ScoreScale(scale, heads, self.head_size)
        self.is_rotary = is_rotary
        self.position_base = position_base
        self.dropout = Dropout(dropout)
        self.query = nn.Linear(d_model, d_model, bias)
        self.key = nn.Linear(d_model, d_model, bias)
        self.value = nn.Linear(d_model, d_model, bias)
        self.output = nn.Linear(d_model, d_model, bias)

    def queries(self, states_BQD: Tensor, layout: BatchLayout, start: int = 0) -> Tensor:
        """Project to queries from position `start`, BHQK."""
        return self._project(states_BQD, layout, [self.query], start)[0]

    def keys_values(
        self, memory_BMD: Tensor, layout: BatchLayout, rotation: Tensor | None = None
    ) -> KeysValues:
        """Project to keys and values; `rotation`: see `queries_keys_values`."""
        return KeysValues(
            *self._project(memory_BMD, layout, [self.key, self.value], rotation=rotation)
        )

    def queries_keys_values(
        self,
        states_BMD: Tensor,
        layout: BatchLayout,
        start: int = 0,
        rotation: Tensor | None = None,
    ) -> tuple[Tensor, KeysValues]:
        """Project to queries (BHMK), keys and values, for self-attention from position `start`.

        With rotary positions, `rotation` (MJ2 or B1MJ2) may be of other positions.
        """
        projections = [self.query, self.key, self.value]
        q_BHMK, k_BHMK, v_BHMK = self._project(states_BMD, layout, projections, start, rotation)
        return q_BHMK, KeysValues(k_BHMK, v_BHMK)

    def forward(
        self,
        states_BQD: Tensor,
        layout: BatchLayout,
        mask_B1QM: Tensor | None,
        memory: tuple[Tensor, BatchLayout] | None = None,
        is_causal: bool = False,
        attention_log: AttentionLog | None = None,
        rotation: Tensor | None = None,
    ) -> Tensor:
        """Return the output for each position, BQD.

        It attends to a memory and its layout, or to the states themselves; `is_causal` tells that
        the mask is causal. A record is appended to `attention_log` if given. `rotation`: see
        `queries_keys_values`.
        """
        if attention_log is None and rotation is None:
            layouts = self._layouts_in_one_pass(states_BQD, layout, memory)
            if layouts is not None:
                states_BMD = None if memory is None else memory[0]
                return self._attend_in_one_pass(states_BQD, states_BMD, layouts, is_causal)
        if memory is None:
            q_BHQK, keys_values = self.queries_keys_values(states_BQD, layout, rotation=rotation)
        else:
            q_BHQK = self.queries(states_BQD, layout)
            keys_values = self.keys_values(*memory, rotation)
        return self.attend(q_BHQK, keys_values, mask_B1QM, layout, attention_log)

    def attend(
        self,
        q_BHQK: Tensor,
        memory: KeysValues,
        mask_B1QM: Tensor | None,
        layout: BatchLayout,
        attention_log: AttentionLog | None = None,
    ) -> Tensor:
        """Return the output for each query, BQD; append a record to `attention_log` if given."""
        with torch.autocast("cpu", enabled=False):
            scaled_BHQK, (k_BHMK, v_BHMK) = self.scale(q_BHQK), memory
            dropout = self.dropout.p if self.training else 0.0
            if attention_log is None and _is_sdpa_better(scaled_BHQK, k_BHMK, dropout):
                heads_BHQK = F.scaled_dot_product_attention(
                    scaled_BHQK, k_BHMK, v_BHMK, mask_B1QM, dropout
                )
            else:
                weights_BHQM = attention_weights(scaled_BHQK, k_BHMK, mask_B1QM)
                if attention_log is not None:
                    attention_log.append(AttentionRecord(weights_BHQM, v_BHMK, q_BHQK, k_BHMK))
                heads_BHQK = self.dropout(weights_BHQM) @ v_BHMK
        heads_BHQK = heads_BHQK.to(activation_dtype(heads_BHQK))
        output_BQD: Tensor = self.output(layout.join_heads(heads_BHQK))
        return output_BQD

    def _layouts_in_one_pass(
        self, states_BQD: Tensor, layout: BatchLayout, memory: tuple[Tensor, BatchLayout] | None
    ) -> tuple[Packed, Packed] | None:
        """Return the layouts of queries and memory if `fused.attend` supports them."""
        states_BMD, memory_layout = (states_BQD, layout) if memory is None else memory
        if (
            not isinstance(layout, Packed)
            or not isinstance(memory_layout, Packed)
            or self.scale.kind == "temperature"
            or not fused.trains_in_c(self.dropout.training, states_BQD, states_BMD)
        ):
            return None
        return layout, memory_layout

    def _attend_in_one_pass(
        self,
        states_BQD: Tensor,
        states_BMD: Tensor | None,
        layouts: tuple[Packed, Packed],
        is_causal: bool,
    ) -> Tensor:
        """As `forward`, in one operation of C; without `states_BMD` it is self-attention."""
        if states_BMD is None:
            queries_BQD = self._joined(states_BQD, [self.query, self.key, self.value])
            keys_values_BMD = None
        else:
            queries_BQD = self.query(states_BQD)
            keys_values_BMD = self._joined(states_BMD, [self.key, self.value])
        tables = None
        if self.is_rotary:
            longest = max(layout.longest for layout in layouts)
            length = -(-longest // Packed.STEP) * Packed.STEP  # few different ones
            tables = rotation_tables(length, self.head_size, self.position_base)
        heads_BQD = fused.attend(
            queries_BQD,
            keys_values_BMD,
            layouts,
            self.heads,
            1.0 if self.scale.kind == "none" else self.head_size**-0.5,
            is_causal,
            tables,
            self.dropout,
        )
        output_BQD: Tensor = self.output(heads_BQD)
        return output_BQD

    def _project(
        self,
        states_BMD: Tensor,
        layout: BatchLayout,
        projections: Sequence[nn.Linear],
        start: int = 0,
        rotation: Tensor | None = None,
    ) -> Sequence[Tensor]:
        """Apply each projection, split its result into heads, BHMK, and rotate queries and keys.

        In training, one product with all the weights side by side makes updates in bf16 4 % faster
        (benchmarks/training_speed.md); in decoding, copying the weights would cost more. The
        parameters stay apart: initialization, optimizers and files see separate matrices.
        """
        heads: Sequence[Tensor]
        is_replaced = any(type(project) is not nn.Linear for project in projections)
        if len(projections) == 1 or is_replaced or not self.training:
            heads = [layout.split_heads(project(states_BMD), self.heads) for project in projections]
        else:
            joined = self._joined(states_BMD, projections)
            split = layout.split_heads(joined, len(projections) * self.heads)
            heads = split.chunk(len(projections), dim=1)
        if states_BMD.device.type == "cpu":  # where such small products gain nothing from bf16
            heads = [heads_BHMK.float().contiguous() for heads_BHMK in heads]
        if not self.is_rotary:
            return heads
        if rotation is None:
            stop = start + heads[0].size(2)
            device, base = states_BMD.device, self.position_base
            rotation = rotations(start, stop, self.head_size, device, base)
        return [
            heads_BHMK if projection is self.value else rotate(heads_BHMK, rotation)
            for projection, heads_BHMK in zip(projections, heads, strict=True)
        ]

    @staticmethod
    def _joined(states_BMD: Tensor, projections: Sequence[nn.Linear]) -> Tensor:
        """Apply some projections as one product; their results are side by side."""
        weight = torch.cat([projection.weight for projection in projections])
        bias = None
        if projections[0].bias is not None:
            bias = torch.cat([projection.bias for projection in projections])
        return F.linear(states_BMD, weight, bias)


def _is_sdpa_better(q_BHQK: Tensor, k_BHMK: Tensor, dropout: float) -> bool:
    """Return True if PyTorch's kernel, which materializes no weights, is the better choice.

    On a CPU that kernel cannot drop weights and is slower up to some hundred positions (three times
    at 20), so it only serves to save memory for long sentences.
    """
    is_long = q_BHQK.size(2) * k_BHMK.size(2) > _LONGEST_WEIGHTS**2
    return (is_long and dropout == 0) or q_BHQK.device.type != "cpu"
