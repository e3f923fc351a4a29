"""The Transformer once more, for decoding on a CPU only: fewer operations, less memory moved.

The same numbers as `model/transformer.py`, made otherwise: projections of the same input are one
product; keys and values lie in buffers that are written, not concatenated; hypotheses of a
sentence look at one copy of its source. Products are fp32, bf16 or int8 (`linear.py`).

B sentences, W hypotheses of each, N = B·W rows, S source positions, C slots of the past, D
d_model, H heads, G = B·H groups that attend by themselves, K size of one head, M positions looked
at, L decoder layers, V vocabulary.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq_cli.decoding.linear import Linear, Number, make_linear
from seq2seq_cli.model.attention import MultiHeadAttention, keep_tokens
from seq2seq_cli.model.layers import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    Residual,
    sinusoidal_positions,
)
from seq2seq_cli.model.transformer import Transformer

_ROOM = 32  # slots of the buffers at first
_VECTOR = 16  # numbers: the softmax over fewer takes them one by one, ten times slower
_MANY = 1_024  # numbers from which on it is worth filling up to that
Shape = Sequence[int]  # B and W
_ROUND = 64  # the vocabulary is rounded up to it, so that a search can look at it in chunks


class FastDecoder:
    """A model's weights, laid out for decoding; later changes of the model do not reach it."""

    device = torch.device("cpu")

    def __init__(self, model: Transformer, number: Number) -> None:
        encoder: list[EncoderLayer] = list(model.encoder)  # type: ignore[arg-type]
        decoder: list[DecoderLayer] = list(model.decoder)  # type: ignore[arg-type]
        self.pad_id = model.pad_id
        self.vocab_size = model.projection.out_features
        self.heads = encoder[0].self_attention.heads
        self.d_model = model.projection.in_features
        self.size = self.d_model // self.heads
        self.scaled_src = model.src_embedding.weight.detach() * model.scale
        self.scaled_tgt = model.tgt_embedding.weight.detach() * model.scale
        self.encoder = [_EncoderLayer(layer, number) for layer in encoder]
        self.decoder = [_DecoderLayer(layer, number) for layer in decoder]
        attentions = [layer.cross_attention for layer in decoder]
        self.memory = make_linear([part for a in attentions for part in (a.key, a.value)], number)
        self.encoder_norm, self.decoder_norm = model.encoder_norm, model.decoder_norm
        self._signals_TD = sinusoidal_positions(0, _ROOM, self.d_model)
        self.projection = make_linear([_rounded_up(model.projection)], number)

    def signal(self, position: int) -> Tensor:
        """Of one position of the target, D."""
        if position >= len(self._signals_TD):
            self._signals_TD = sinusoidal_positions(0, 2 * position + _ROOM, self.d_model)
        return self._signals_TD[position]

    @torch.inference_mode()
    def start(self, src_BS: Tensor) -> "FastStates":
        """Read the source."""
        keep_B11S = keep_tokens(src_BS, self.pad_id)
        hidden_B11S = None
        if not keep_B11S.all():
            hidden_B11S = torch.zeros(keep_B11S.shape).masked_fill_(~keep_B11S, -torch.inf)
        signals_SD = sinusoidal_positions(0, src_BS.size(1), self.d_model)
        states_BSD = F.embedding(src_BS, self.scaled_src) + signals_SD
        for layer in self.encoder:
            states_BSD = layer(states_BSD, hidden_B11S)
        return FastStates(self, self.encoder_norm(states_BSD), hidden_B11S)


class FastStates:
    """One batch: what `States` promises, without ever moving keys and values of the past.

    Each step of each hypothesis fills a slot, which stays where it is. A hypothesis looks at all
    slots of its sentence; those that are not its own past are hidden by adding -inf.
    """

    def __init__(self, model: FastDecoder, memory_BSD: Tensor, hidden_B11S: Tensor | None) -> None:
        self._model = model
        sentences, positions = memory_BSD.shape[:2]
        made = model.memory(memory_BSD).view(sentences, positions, -1, 2, model.heads, model.size)
        self._memory_L2BHSK = made.permute(2, 3, 0, 4, 1, 5).contiguous()
        self._hidden_B11S = hidden_B11S
        shape = (_ROOM, 2, sentences, model.heads, model.size)
        self._past = [memory_BSD.new_empty(shape) for _ in model.decoder]  # C2BHK
        self._hidden_BWC = memory_BSD.new_empty(0)  # while each sentence has one hypothesis: none
        self._slots = 0
        self._position = 0

    @torch.inference_mode()
    def logits(self, last_BW: Tensor) -> Tensor:
        model = self._model
        shape = last_BW.shape
        slots = self._new_slots(*shape)
        hidden_B1WC = self._hidden_BWC[:, None] if self._hidden_BWC.numel() else None
        states_ND = F.embedding(last_BW.reshape(-1), model.scaled_tgt)
        states_ND += model.signal(self._position)
        self._position += 1
        for layer, past, memory in zip(
            model.decoder, self._past, self._memory_L2BHSK.flatten(2, 3), strict=True
        ):
            states_ND = layer(states_ND, past, slots, hidden_B1WC, memory, self._hidden_B11S, shape)
        logits_NV = model.projection(model.decoder_norm(states_ND))
        return logits_NV.view(*shape, -1)

    def reorder(self, origin_BW: Tensor) -> None:
        sentences, width = origin_BW.shape
        if not self._hidden_BWC.numel():
            if width == 1:
                return
            self._hidden_BWC = torch.zeros(sentences, 1, self._slots)
        index = origin_BW[:, :, None].expand(-1, -1, self._slots)
        self._hidden_BWC = self._hidden_BWC.gather(1, index)

    def keep(self, sentences_B: Tensor) -> None:
        self._past = [past.index_select(2, sentences_B) for past in self._past]
        self._memory_L2BHSK = self._memory_L2BHSK.index_select(2, sentences_B)
        if self._hidden_BWC.numel():
            self._hidden_BWC = self._hidden_BWC[sentences_B]
        if self._hidden_B11S is not None:
            self._hidden_B11S = self._hidden_B11S[sentences_B]

    def _new_slots(self, sentences: int, width: int) -> slice:
        """A slot for every hypothesis, hidden from the others."""
        start, self._slots = self._slots, self._slots + width
        if self._slots > len(self._past[0]):
            room = max(len(self._past[0]), width)
            self._past = [
                torch.cat([past, past.new_empty(room, *past.shape[1:])]) for past in self._past
            ]
        if self._hidden_BWC.numel():
            hidden_WW = torch.full((width, width), -torch.inf).fill_diagonal_(0)
            new_BWW = hidden_WW.expand(sentences, -1, -1)
            self._hidden_BWC = torch.cat([self._hidden_BWC, new_BWW], dim=2)
        return slice(start, self._slots)


class _EncoderLayer:
    def __init__(self, layer: EncoderLayer, number: Number) -> None:
        self.attention = _SelfAttention(layer.self_attention, number)
        self.feed_forward = _FeedForward(layer.feed_forward, number)
        self.add_attended = _Residual(layer.add_attended)
        self.add_transformed = _Residual(layer.add_transformed)

    def __call__(self, states_BSD: Tensor, hidden_B11S: Tensor | None) -> Tensor:
        inner_BSD = self.add_attended.before(states_BSD)
        attended_BSD = self.attention.of_source(inner_BSD, hidden_B11S)
        states_BSD = self.add_attended.after(states_BSD, attended_BSD)
        inner_BSD = self.add_transformed.before(states_BSD)
        return self.add_transformed.after(states_BSD, self.feed_forward(inner_BSD))


class _DecoderLayer:
    def __init__(self, layer: DecoderLayer, number: Number) -> None:
        self.attention = _SelfAttention(layer.self_attention, number)
        self.query = make_linear([_scaled_query(layer.cross_attention)], number)
        self.gathered = make_linear([layer.cross_attention.output], number)
        self.feed_forward = _FeedForward(layer.feed_forward, number)
        self.add_attended = _Residual(layer.add_attended)
        self.add_gathered = _Residual(layer.add_gathered)
        self.add_transformed = _Residual(layer.add_transformed)
        self.heads = layer.cross_attention.heads

    def __call__(
        self,
        states_ND: Tensor,
        past_C2BHK: Tensor,
        slots: slice,
        hidden_B1WC: Tensor | None,
        memory_2GSK: Tensor,
        hidden_B11S: Tensor | None,
        shape: Shape,
    ) -> Tensor:
        """One position of all hypotheses; its keys and values are written into the slots."""
        inner_ND = self.add_attended.before(states_ND)
        attended_ND = self.attention.of_position(inner_ND, past_C2BHK, slots, hidden_B1WC, shape)
        states_ND = self.add_attended.after(states_ND, attended_ND)
        inner_ND = self.add_gathered.before(states_ND)
        q_GWK = _split(self.query(inner_ND), shape, self.heads)
        k_GSK, v_GSK = memory_2GSK
        heads_GWK = _attend(q_GWK, k_GSK.mT, v_GSK, hidden_B11S)
        gathered_ND = self.gathered(_join(heads_GWK, shape))
        states_ND = self.add_gathered.after(states_ND, gathered_ND)
        inner_ND = self.add_transformed.before(states_ND)
        return self.add_transformed.after(states_ND, self.feed_forward(inner_ND))


class _SelfAttention:
    """Queries, keys and values from one product; the scale of the scores is in the queries."""

    def __init__(self, attention: MultiHeadAttention, number: Number) -> None:
        self.heads = attention.heads
        self.d_model = attention.query.in_features
        parts = [_scaled_query(attention), attention.key, attention.value]
        self.split = make_linear(parts, number)
        self.join = make_linear([attention.output], number)

    def of_source(self, states_BSD: Tensor, hidden_B11S: Tensor | None) -> Tensor:
        shape = states_BSD.shape[:2]
        made = self.split(states_BSD).view(*shape, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q_GSK, k_GSK, v_GSK = made.contiguous().flatten(1, 2)
        heads_GSK = _attend(q_GSK, k_GSK.mT, v_GSK, hidden_B11S)
        return self.join(_join(heads_GSK, shape)).view(states_BSD.shape)

    def of_position(
        self,
        states_ND: Tensor,
        past_C2BHK: Tensor,
        slots: slice,
        hidden_B1WC: Tensor | None,
        shape: Shape,
    ) -> Tensor:
        made = self.split(states_ND)
        new_BW2HK = made[:, self.d_model :].view(*shape, 2, self.heads, -1)
        past_C2BHK[slots] = new_BW2HK.permute(1, 2, 0, 3, 4)
        k_CGK, v_CGK = past_C2BHK[: slots.stop].flatten(2, 3).unbind(1)
        q_GWK = _split(made[:, : self.d_model], shape, self.heads)
        heads_GWK = _attend(q_GWK, k_CGK.permute(1, 2, 0), v_CGK.transpose(0, 1), hidden_B1WC)
        return self.join(_join(heads_GWK, shape))


class _FeedForward:
    def __init__(self, layer: FeedForward, number: Number) -> None:
        is_relu = isinstance(layer.activation, nn.ReLU)
        self.expand = make_linear([layer.expand], number, relu=is_relu)
        self.activation: Linear = nn.Identity() if is_relu else layer.activation
        self.contract = make_linear([layer.contract], number)

    def __call__(self, states: Tensor) -> Tensor:
        return self.contract(self.activation(self.expand(states)))


class _Residual:
    """Where the norm stands: before a sub-layer, or after its sum with what went in."""

    def __init__(self, residual: Residual) -> None:
        norm = residual.norm
        self._norm = (list(norm.normalized_shape), norm.weight, norm.bias, norm.eps)
        self._norm_first = residual.norm_first

    def before(self, states: Tensor) -> Tensor:
        return torch.layer_norm(states, *self._norm) if self._norm_first else states

    def after(self, states: Tensor, made: Tensor) -> Tensor:
        summed = made.add_(states)
        return summed if self._norm_first else torch.layer_norm(summed, *self._norm)


def _split(states_ND: Tensor, shape: Shape, heads: int) -> Tensor:
    """GWK, each head of each sentence by itself."""
    if shape[1] == 1:
        return states_ND.reshape(len(states_ND) * heads, 1, -1)
    return states_ND.reshape(*shape, heads, -1).transpose(1, 2).flatten(0, 1)


def _join(heads_GWK: Tensor, shape: Shape) -> Tensor:
    """The way back, ND."""
    sentences, width = shape
    if width == 1:
        return heads_GWK.view(sentences, -1)
    heads_BHWK = heads_GWK.view(sentences, -1, width, heads_GWK.size(2))
    return heads_BHWK.transpose(1, 2).reshape(sentences * width, -1)


def _attend(q_GWK: Tensor, k_GKM: Tensor, v_GMK: Tensor, hidden: Tensor | None) -> Tensor:
    """softmax(Q K + hidden) V, GWK; `hidden` has one entry for all heads of a sentence."""
    scores_GWM = torch.bmm(q_GWK, k_GKM)
    if hidden is not None:
        scores_GWM.view(len(hidden), -1, *scores_GWM.shape[1:]).add_(hidden)
    missing = _VECTOR - scores_GWM.size(2)
    if missing <= 0 or scores_GWM.numel() < _MANY:
        return torch.bmm(scores_GWM.softmax(dim=-1), v_GMK)
    filled = F.pad(scores_GWM, (0, missing), value=-torch.inf)
    return torch.bmm(filled.softmax(dim=-1)[..., :-missing], v_GMK)


def _scaled_query(attention: MultiHeadAttention) -> nn.Linear:
    """Queries over sqrt(K), so that the scores need no division."""
    query = attention.query
    scale = math.sqrt(query.out_features // attention.heads)
    scaled = nn.Linear(query.in_features, query.out_features, query.bias is not None)
    with torch.no_grad():
        scaled.weight.copy_(query.weight / scale)
        if query.bias is not None:
            scaled.bias.copy_(query.bias / scale)
    return scaled


def _rounded_up(projection: nn.Linear) -> nn.Linear:
    """With outputs of -inf up to a multiple of `_ROUND`."""
    size = -(-projection.out_features // _ROUND) * _ROUND
    rounded = nn.Linear(projection.in_features, size)
    with torch.no_grad():
        rounded.weight.zero_()
        rounded.weight[: projection.out_features] = projection.weight
        rounded.bias.fill_(-torch.inf)
        rounded.bias[: projection.out_features] = 0
    return rounded
