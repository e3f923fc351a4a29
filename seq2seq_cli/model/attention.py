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
from seq2seq_cli.model.packing import Layout

_VECTOR = 16  # numbers that a CPU's softmax takes at once; over fewer it is ten times slower
_LONGEST_WEIGHTS = 256  # positions squared of the attention weights held at once

Record = list[Tensor]  # attention weights (BHQM) of the attentions computed, in their order


def padding_mask(ids_BS: Tensor, pad_id: int) -> Tensor:
    """True where there is a token; B11S, broadcasts over heads and queries."""
    return (ids_BS != pad_id)[:, None, None, :]


def causal_mask(queries: int, memory: int, device: torch.device) -> Tensor:
    """True where a memory position is not after its query; 11QM.

    The queries are the last of the memory's positions: all of them in training, one at a time
    when a cache holds the others.
    """
    mask_QM = torch.ones(queries, memory, dtype=torch.bool, device=device)
    return mask_QM.tril(memory - queries)[None, None]


def attention_weights(q_BHQK: Tensor, k_BHMK: Tensor, mask_B1QM: Tensor | None) -> Tensor:
    """softmax(Q Kᵀ / sqrt(K)), BHQM; every query must be kept from at least one position.

    Vaswani et al. 2017, eq. 1. No mask means that every query may look everywhere.
    """
    scores_BHQM = (q_BHQK @ k_BHMK.mT).div_(math.sqrt(q_BHQK.size(-1)))
    if mask_B1QM is not None:  # adding is ten times faster on a CPU than filling in
        mask_bias_B1QM = scores_BHQM.new_zeros(mask_B1QM.shape).masked_fill(~mask_B1QM, -torch.inf)
        scores_BHQM += mask_bias_B1QM
    return _softmax(scores_BHQM)


def _softmax(scores_BHQM: Tensor) -> Tensor:
    """Over the memory; of short rows by its definition, faster than PyTorch's CPU kernel."""
    if scores_BHQM.device.type != "cpu" or scores_BHQM.size(-1) >= _VECTOR:
        return scores_BHQM.softmax(dim=-1)
    greatest_BHQ1 = scores_BHQM.detach().amax(dim=-1, keepdim=True)
    powers_BHQM = (scores_BHQM - greatest_BHQ1).exp()
    return powers_BHQM / powers_BHQM.sum(dim=-1, keepdim=True)


class KeysValues(NamedTuple):
    """What attention looks at."""

    k_BHMK: Tensor
    v_BHMK: Tensor

    def extend(self, new: "KeysValues") -> "KeysValues":
        """These positions followed by new ones."""
        return KeysValues(*(torch.cat(pair, dim=2) for pair in zip(self, new, strict=True)))

    def select(self, rows_B: Tensor) -> "KeysValues":
        """The given sentences, in that order."""
        return KeysValues(*(states[rows_B] for states in self))


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_H) Wᴼ with head_i = attention(Q Wᵢ, K Wᵢ, V Wᵢ).

    Vaswani et al. 2017, section 3.2.2. Keys and values are made by `keys_values` and handed in, so
    that the caller can keep them: the decoder's own grow by a position a step, those of the
    encoder's output are made once a sentence.
    """

    def __init__(self, d_model: int, heads: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = Dropout(dropout)
        self.query = nn.Linear(d_model, d_model, bias)
        self.key = nn.Linear(d_model, d_model, bias)
        self.value = nn.Linear(d_model, d_model, bias)
        self.output = nn.Linear(d_model, d_model, bias)

    def keys_values(self, memory_BMD: Tensor, layout: Layout) -> KeysValues:
        """Project what is looked at, each head to its own subspace."""
        return KeysValues(
            self._heads(self.key(memory_BMD), layout), self._heads(self.value(memory_BMD), layout)
        )

    def forward(
        self,
        query_BQD: Tensor,
        layout: Layout,
        memory: KeysValues,
        mask_B1QM: Tensor | None,
        record: Record | None = None,
    ) -> Tensor:
        """What each query gathers, BQD; with `record` the weights are appended to it."""
        q_BHQK = self._heads(self.query(query_BQD), layout)
        with torch.autocast("cpu", enabled=False):
            dropout = self.dropout.p if self.training else 0.0
            if record is None and _is_better_fused(q_BHQK, memory, dropout):
                heads_BHQK = F.scaled_dot_product_attention(q_BHQK, *memory, mask_B1QM, dropout)
            else:
                weights_BHQM = attention_weights(q_BHQK, memory.k_BHMK, mask_B1QM)
                if record is not None:
                    record.append(weights_BHQM)
                heads_BHQK = self.dropout(weights_BHQM) @ memory.v_BHMK
        gathered_BQD: Tensor = self.output(layout.join_heads(heads_BHQK.to(query_BQD.dtype)))
        return gathered_BQD

    def _heads(self, states_BMD: Tensor, layout: Layout) -> Tensor:
        """BHMK; on a CPU in fp32, as products of matrices this small gain nothing from bf16."""
        heads_BHMK = layout.split_heads(states_BMD, self.heads)
        return heads_BHMK.float().contiguous() if heads_BHMK.device.type == "cpu" else heads_BHMK


def _is_better_fused(q_BHQK: Tensor, memory: KeysValues, dropout: float) -> bool:
    """Whether PyTorch's kernel for the same function, which keeps no weights, serves better.

    On a CPU that kernel cannot drop weights, is slower up to some hundred positions (threefold at
    20), and serves only to save the memory of the weights of long sentences.
    """
    is_long = q_BHQK.size(2) * memory.k_BHMK.size(2) > _LONGEST_WEIGHTS**2
    return (is_long and dropout == 0) or q_BHQK.device.type != "cpu"
