"""Masks, scaled dot-product attention and multi-head attention.

B sentences, Q query positions, M memory positions, T target positions, S source positions,
D d_model, H heads, K size of one head, 1 a dimension kept for broadcasting.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.packing import BatchLayout

_VECTOR = 16  # size of a CPU's vector registers; softmax is ten times slower over fewer numbers
_LONGEST_WEIGHTS = 256  # positions up to which attention weights (their square) are materialized


class AttentionRecord(NamedTuple):
    """What one attention has computed: its weights, and the values that they average."""

    weights_BHQM: Tensor
    v_BHMK: Tensor


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


def attention_weights(q_BHQK: Tensor, k_BHMK: Tensor, mask_B1QM: Tensor | None) -> Tensor:
    """softmax(Q Kᵀ / sqrt(K)), BHQM; the mask must leave every query at least one position.

    Vaswani et al. 2017, eq. 1. Without a mask, every query attends to all positions.
    """
    scores_BHQM = (q_BHQK @ k_BHMK.mT).div_(math.sqrt(q_BHQK.size(-1)))
    if mask_B1QM is not None:  # on a CPU, adding is ten times faster than masked_fill
        mask_bias_B1QM = scores_BHQM.new_zeros(mask_B1QM.shape).masked_fill(~mask_B1QM, -torch.inf)
        scores_BHQM += mask_bias_B1QM
    return _softmax(scores_BHQM)


def _softmax(scores_BHQM: Tensor) -> Tensor:
    """Softmax over the memory; for short rows by definition, faster than PyTorch's CPU kernel."""
    if scores_BHQM.device.type != "cpu" or scores_BHQM.size(-1) >= _VECTOR:
        return scores_BHQM.softmax(dim=-1)
    greatest_BHQ1 = scores_BHQM.detach().amax(dim=-1, keepdim=True)
    powers_BHQM = (scores_BHQM - greatest_BHQ1).exp()
    return powers_BHQM / powers_BHQM.sum(dim=-1, keepdim=True)


class KeysValues(NamedTuple):
    """The keys and values that queries attend to."""

    k_BHMK: Tensor
    v_BHMK: Tensor

    def extend(self, new: "KeysValues") -> "KeysValues":
        """Return these positions followed by new ones."""
        return KeysValues(*(torch.cat(pair, dim=2) for pair in zip(self, new, strict=True)))

    def select(self, rows_B: Tensor) -> "KeysValues":
        """Return the given sentences, in that order."""
        return KeysValues(*(states[rows_B] for states in self))


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_H) Wᴼ with head_i = attention(Q Wᵢ, K Wᵢ, V Wᵢ).

    Vaswani et al. 2017, section 3.2.2. The caller computes keys and values with `keys_values` and
    passes them in, so that it can cache them: in the decoder, those of self-attention grow by one
    position per step, those of cross-attention are computed once per sentence.
    """

    def __init__(self, d_model: int, heads: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = Dropout(dropout)
        self.query = nn.Linear(d_model, d_model, bias)
        self.key = nn.Linear(d_model, d_model, bias)
        self.value = nn.Linear(d_model, d_model, bias)
        self.output = nn.Linear(d_model, d_model, bias)

    def keys_values(self, memory_BMD: Tensor, layout: BatchLayout) -> KeysValues:
        """Project the memory to keys and values, each head to its own subspace."""
        return KeysValues(
            self._heads(self.key(memory_BMD), layout), self._heads(self.value(memory_BMD), layout)
        )

    def forward(
        self,
        query_BQD: Tensor,
        layout: BatchLayout,
        memory: KeysValues,
        mask_B1QM: Tensor | None,
        attention_log: AttentionLog | None = None,
    ) -> Tensor:
        """Return the output for each query, BQD; append a record to `attention_log` if given."""
        q_BHQK = self._heads(self.query(query_BQD), layout)
        with torch.autocast("cpu", enabled=False):
            dropout = self.dropout.p if self.training else 0.0
            if attention_log is None and _is_better_fused(q_BHQK, memory, dropout):
                heads_BHQK = F.scaled_dot_product_attention(q_BHQK, *memory, mask_B1QM, dropout)
            else:
                weights_BHQM = attention_weights(q_BHQK, memory.k_BHMK, mask_B1QM)
                if attention_log is not None:
                    attention_log.append(AttentionRecord(weights_BHQM, memory.v_BHMK))
                heads_BHQK = self.dropout(weights_BHQM) @ memory.v_BHMK
        output_BQD: Tensor = self.output(layout.join_heads(heads_BHQK.to(query_BQD.dtype)))
        return output_BQD

    def _heads(self, states_BMD: Tensor, layout: BatchLayout) -> Tensor:
        """Split heads, BHMK; in fp32 on a CPU, as such small products gain nothing from bf16."""
        heads_BHMK = layout.split_heads(states_BMD, self.heads)
        return heads_BHMK.float().contiguous() if heads_BHMK.device.type == "cpu" else heads_BHMK


def _is_better_fused(q_BHQK: Tensor, memory: KeysValues, dropout: float) -> bool:
    """Return True if PyTorch's fused kernel, which materializes no weights, is the better choice.

    On a CPU that kernel cannot drop weights and is slower up to some hundred positions (three times
    at 20), so it only serves to save memory for long sentences.
    """
    is_long = q_BHQK.size(2) * memory.k_BHMK.size(2) > _LONGEST_WEIGHTS**2
    return (is_long and dropout == 0) or q_BHQK.device.type != "cpu"
