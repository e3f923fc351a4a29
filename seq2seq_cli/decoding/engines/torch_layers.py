"""Layers of the torch engine: one product where the model computes several.

B sentences, W hypotheses of each, S source positions, N rows of all, D d_model, H heads, G = B·H
independent attentions, X queries and keys of a position, K size of one head, J pairs of its
dimensions, M positions attended to.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq_cli.decoding.engines.base import Precision
from seq2seq_cli.decoding.engines.capabilities import scaled_query
from seq2seq_cli.decoding.engines.kv_cache import KeysAndValues
from seq2seq_cli.decoding.engines.torch_linear import Linear, make_linear
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer, FeedForward, Residual

_VECTOR = 16  # a softmax over fewer numbers is not vectorized, and ten times slower
_MANY = 1_024  # scores above which padding them to that size pays
Shape = Sequence[int]  # B, and W or S


class Step(NamedTuple):
    """Inputs of one step that are the same for all layers; -inf in a mask bias masks a position."""

    shape: Shape  # B and W
    rotation_1J: Tensor | None  # of this position; None: not rotary
    past_bias_GWM: Tensor
    memory_bias_G1S: Tensor | None  # None: nothing is masked


class _Layer:
    """Self-attention with one product for queries, keys and values; then feed-forward."""

    def __init__(self, layer: EncoderLayer | DecoderLayer, precision: Precision) -> None:
        attention = layer.self_attention
        self.heads = attention.heads
        parts = [scaled_query(attention), attention.key, attention.value]
        self.qkv = make_linear(parts, precision)  # queries include the scale
        self.out = make_linear([attention.output], precision)
        self.feed_forward = _FeedForward(layer.feed_forward, precision)
        self.self_attention_residual = _Residual(layer.self_attention_residual)
        self.feed_forward_residual = _Residual(layer.feed_forward_residual)

    def transform(self, states_ND: Tensor) -> Tensor:
        inner_ND = self.feed_forward_residual.before(states_ND)
        return self.feed_forward_residual.after(states_ND, self.feed_forward(inner_ND))


class TorchEncoderLayer(_Layer):
    def __call__(
        self,
        states_ND: Tensor,
        mask_bias_G1S: Tensor | None,
        shape: Shape,
        rotation_SJ: Tensor | None,
    ) -> Tensor:
        inner_ND = self.self_attention_residual.before(states_ND)
        qkv_BS3HK = self.qkv(inner_ND).view(*shape, 3, self.heads, -1)
        if rotation_SJ is not None:
            rotate(qkv_BS3HK[:, :, :2], rotation_SJ)
        q_GSK, k_GSK, v_GSK = qkv_BS3HK.permute(2, 0, 3, 1, 4).contiguous().flatten(1, 2)
        heads_GSK = _attend(q_GSK, k_GSK.mT, v_GSK, mask_bias_G1S)
        attended_ND = self.out(_merge_heads(heads_GSK, shape))
        return self.transform(self.self_attention_residual.after(states_ND, attended_ND))


class TorchDecoderLayer(_Layer):
    def __init__(self, layer: DecoderLayer, precision: Precision) -> None:
        super().__init__(layer, precision)
        self.query = make_linear([scaled_query(layer.cross_attention)], precision)
        self.cross_out = make_linear([layer.cross_attention.output], precision)
        self.cross_attention_residual = _Residual(layer.cross_attention_residual)
        self.rotates_query = layer.cross_attention.is_rotary

    def __call__(
        self,
        states_ND: Tensor,
        new_BW2HK: Tensor,
        past: KeysAndValues,
        memory: KeysAndValues,
        step: Step,
    ) -> Tensor:
        """Compute one position of all hypotheses; write its keys and values into `new_BW2HK`."""
        shape = step.shape
        inner_ND = self.self_attention_residual.before(states_ND)
        qkv_BW3HK = self.qkv(inner_ND).view(*shape, 3, self.heads, -1)
        if step.rotation_1J is not None:
            rotate(qkv_BW3HK[:, :, :2], step.rotation_1J)
        q_BW1HK, kv_BW2HK = torch.split_with_sizes(qkv_BW3HK, [1, 2], dim=2)
        new_BW2HK.copy_(kv_BW2HK)
        heads_GWK = _attend(_split_heads(q_BW1HK, shape, self.heads), *past, step.past_bias_GWM)
        attended_ND = self.out(_merge_heads(heads_GWK, shape))
        states_ND = self.self_attention_residual.after(states_ND, attended_ND)
        inner_ND = self.cross_attention_residual.before(states_ND)
        query_ND = self.query(inner_ND)
        if self.rotates_query and step.rotation_1J is not None:
            rotate(query_ND.view(*shape, 1, self.heads, -1), step.rotation_1J)
        q_GWK = _split_heads(query_ND, shape, self.heads)
        heads_GWK = _attend(q_GWK, *memory, step.memory_bias_G1S)
        attended_ND = self.cross_out(_merge_heads(heads_GWK, shape))
        return self.transform(self.cross_attention_residual.after(states_ND, attended_ND))


class _FeedForward:
    def __init__(self, layer: FeedForward, precision: Precision) -> None:
        is_relu = isinstance(layer.activation, nn.ReLU)
        self.expand = make_linear([layer.expand], precision, relu=is_relu)
        self.activation: Linear = nn.Identity() if is_relu else layer.activation
        self.contract = make_linear([layer.contract], precision)

    def __call__(self, states: Tensor) -> Tensor:
        return self.contract(self.activation(self.expand(states)))


class _Residual:
    """The norm of a sub-layer: before it (pre), or after its residual sum (post)."""

    def __init__(self, residual: Residual) -> None:
        norm = residual.norm
        self._norm = (list(norm.normalized_shape), norm.weight, norm.bias, norm.eps)
        self._norm_first = residual.norm_first

    def before(self, states: Tensor) -> Tensor:
        return torch.layer_norm(states, *self._norm) if self._norm_first else states

    def after(self, states: Tensor, output: Tensor) -> Tensor:
        """Add a sub-layer's output, which is overwritten, to its input."""
        added = output.add_(states)
        return added if self._norm_first else torch.layer_norm(added, *self._norm)


def rotate(some_BSXHK: Tensor, rotation_SJ: Tensor) -> None:
    """Rotate X queries or keys of each position in place; one rotation may serve all positions."""
    pairs_BSXHJ = torch.view_as_complex(some_BSXHK.view(*some_BSXHK.shape[:-1], -1, 2))
    pairs_BSXHJ *= rotation_SJ[..., None, None, :]


def _split_heads(states: Tensor, shape: Shape, heads: int) -> Tensor:
    """Return states, ND or BW1HK, as GWK: each head of each sentence by itself."""
    sentences, width = shape
    if width == 1:
        return states.reshape(sentences * heads, 1, -1)
    return states.reshape(sentences, width, heads, -1).transpose(1, 2).flatten(0, 1)


def _merge_heads(heads_GWK: Tensor, shape: Shape) -> Tensor:
    """Return the heads of each position side by side, ND."""
    sentences, width = shape
    if width == 1:
        return heads_GWK.view(sentences, -1)
    heads_BHWK = heads_GWK.view(sentences, -1, width, heads_GWK.size(2))
    return heads_BHWK.transpose(1, 2).reshape(sentences * width, -1)


def _attend(q_GWK: Tensor, k_GKM: Tensor, v_GMK: Tensor, mask_bias: Tensor | None) -> Tensor:
    """Return softmax(Q K + mask bias) V, GWK."""
    if mask_bias is None:
        scores_GWM = torch.bmm(q_GWK, k_GKM)
    else:
        scores_GWM = torch.baddbmm(mask_bias, q_GWK, k_GKM)
    missing = _VECTOR - scores_GWM.size(2)
    if missing <= 0 or scores_GWM.numel() < _MANY:
        return torch.bmm(scores_GWM.softmax(dim=-1), v_GMK)
    padded = F.pad(scores_GWM, (0, missing), value=-torch.inf)
    return torch.bmm(padded.softmax(dim=-1)[..., :-missing], v_GMK)
