"""The Transformer once more, for decoding on a CPU only: fewer operations, less memory moved.

The same numbers as `model/transformer.py`, made otherwise: projections of the same input are one
product; keys and values lie in buffers that are written, not concatenated; hypotheses of a
sentence look at one copy of its source. Products are fp32, bf16 or int8 (`linear.py`).

B sentences, W hypotheses of each, N = B·W rows, S source positions, C slots of the past, D
d_model, H heads, G = B·H groups that attend by themselves, K size of one head, M positions looked
at, L decoder layers, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq_cli.decoding.engines.linear import Precision, int8_engines, make_linear
from seq2seq_cli.decoding.engines.support import unsupported_model
from seq2seq_cli.decoding.engines.torch_layers import (
    KeysAndValues,
    Shape,
    TorchDecoderLayer,
    TorchEncoderLayer,
)
from seq2seq_cli.model.attention import padding_mask
from seq2seq_cli.model.device import use_threads
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer, sinusoidal_positions
from seq2seq_cli.model.transformer import Transformer

_ROOM = 32  # slots of the buffers at first
_STEP = 4  # slots by which those looked at grow
_ROUND = 64  # the vocabulary is rounded up to it, so that a search can look at it in chunks

# Products in a pass from which on threads pay; to read a weight costs as much as 13 of them. With
# less work they mostly wait for each other, for long where another program keeps one from running.
_FOR_THREADS = 40 << 20
_READING = 13


class TorchDecoder:
    """A model's weights, laid out for decoding; later changes of the model do not reach it."""

    device = torch.device("cpu")

    @staticmethod
    def unsupported(model: Transformer, precision: Precision) -> str | None:
        """The reason why it cannot compute that model on this machine; None if it can."""
        if model.device.type != "cpu":
            return "it is for CPUs"
        if precision == "int8" and int8_engines() is None:
            return "PyTorch has no int8 products for this processor"
        return unsupported_model(model)

    def __init__(self, model: Transformer, precision: Precision) -> None:
        """`unsupported` has nothing against the model."""
        encoder: list[EncoderLayer] = list(model.encoder)  # type: ignore[arg-type]
        decoder: list[DecoderLayer] = list(model.decoder)  # type: ignore[arg-type]
        self.pad_id = model.pad_id
        self.vocab_size = model.projection.out_features
        self.heads = encoder[0].self_attention.heads
        self.d_model = model.projection.in_features
        self.size = self.d_model // self.heads
        self.scaled_src = model.src_embedding.weight.detach() * model.scale
        self.scaled_tgt = model.tgt_embedding.weight.detach() * model.scale
        self.encoder = [TorchEncoderLayer(layer, precision) for layer in encoder]
        self.decoder = [TorchDecoderLayer(layer, precision) for layer in decoder]
        attentions = [layer.cross_attention for layer in decoder]
        self.memory = make_linear(
            [part for a in attentions for part in (a.key, a.value)], precision
        )
        self.encoder_norm, self.decoder_norm = model.encoder_norm, model.decoder_norm
        self._positions_TD = sinusoidal_positions(0, _ROOM, self.d_model)
        self.projection = make_linear([_rounded_up(model.projection)], precision)
        self._encoder_size = _num_weights(model.encoder)
        self._decoder_size = _num_weights(model.decoder) + model.projection.weight.numel()

    def position_vector(self, position: int) -> Tensor:
        """Of one position of the target, D."""
        positions_TD = self._positions_TD  # another thread may put a shorter one in its place
        if position >= len(positions_TD):
            positions_TD = sinusoidal_positions(0, 2 * position + _ROOM, self.d_model)
            self._positions_TD = positions_TD
        return positions_TD[position]

    def start(self, src_BS: Tensor) -> "TorchDecodingState":
        """Read the source."""
        with torch.inference_mode(), use_threads(_threads(self._encoder_size, src_BS.numel())):
            return self._start(src_BS)

    def step_threads(self, rows: int) -> int:
        """What a step of so many rows is worth."""
        return _threads(self._decoder_size, rows)

    def _start(self, src_BS: Tensor) -> "TorchDecodingState":
        mask_B11S = padding_mask(src_BS, self.pad_id)
        mask_bias_B11S = None
        if not mask_B11S.all():
            mask_bias_B11S = torch.zeros(mask_B11S.shape).masked_fill_(~mask_B11S, -torch.inf)
        positions_SD = sinusoidal_positions(0, src_BS.size(1), self.d_model)
        states_ND = (F.embedding(src_BS, self.scaled_src) + positions_SD).flatten(0, 1)
        mask_bias_G1S = _for_heads(mask_bias_B11S, self.heads)
        for layer in self.encoder:
            states_ND = layer(states_ND, mask_bias_G1S, src_BS.shape)
        return TorchDecodingState(self, self.encoder_norm(states_ND), mask_bias_B11S, src_BS.shape)


class TorchDecodingState:
    """One batch: what `DecodingState` promises, without ever moving keys and values of the past.

    Each step of each hypothesis fills a slot, which stays where it is. A hypothesis looks at all
    slots of its sentence, and at some that are still empty; those that are not its own past are
    hidden by adding -inf. Views of the buffers are made anew only when more slots are looked at.
    """

    def __init__(
        self, model: TorchDecoder, memory_ND: Tensor, mask_bias_B11S: Tensor | None, shape: Shape
    ) -> None:
        self._model = model
        self._sentences = shape[0]
        made = model.memory(memory_ND).view(*shape, -1, 2, model.heads, model.size)
        self._memory_L2BHSK = made.permute(2, 3, 0, 4, 1, 5).contiguous()
        self._mask_bias_B11S = mask_bias_B11S
        self._past_LC2BHK = memory_ND.new_zeros(
            len(model.decoder), _ROOM, 2, self._sentences, model.heads, model.size
        )
        self._mask_bias_BWC = memory_ND.new_empty(0)  # while each sentence has one hypothesis: none
        self._slots = 0
        self._position = 0
        self._look()

    def logits(self, last_BW: Tensor) -> Tensor:
        with torch.inference_mode(), use_threads(self._model.step_threads(last_BW.numel())):
            return self._logits(last_BW)

    def _logits(self, last_BW: Tensor) -> Tensor:
        model = self._model
        shape = last_BW.shape
        new = self._new_slots(shape[1])
        mask_bias_GWM = self._past_mask_bias(shape[1])
        states_ND = F.embedding(last_BW.view(-1), model.scaled_tgt)
        states_ND += model.position_vector(self._position)
        self._position += 1
        for layer, new_BW2HK, past, memory in zip(
            model.decoder, new, self._past_views, self._memory_views, strict=True
        ):
            states_ND = layer(
                states_ND, new_BW2HK, past, mask_bias_GWM, memory, self._mask_bias_G1S, shape
            )
        logits_NV = model.projection(model.decoder_norm(states_ND))
        return logits_NV.view(*shape, -1)

    def reorder(self, origin_BW: Tensor) -> None:
        width = origin_BW.size(1)
        if not self._mask_bias_BWC.numel():
            if width == 1:
                return
            self._mask_bias_BWC = torch.zeros(self._sentences, 1, self._slots)
        index = origin_BW[:, :, None].expand(-1, -1, self._slots)
        self._mask_bias_BWC = self._mask_bias_BWC.gather(1, index)

    def keep(self, sentences_B: Tensor) -> None:
        self._sentences = len(sentences_B)
        self._past_LC2BHK = self._past_LC2BHK.index_select(3, sentences_B)
        self._memory_L2BHSK = self._memory_L2BHSK.index_select(2, sentences_B)
        if self._mask_bias_BWC.numel():
            self._mask_bias_BWC = self._mask_bias_BWC[sentences_B]
        if self._mask_bias_B11S is not None:
            self._mask_bias_B11S = self._mask_bias_B11S[sentences_B]
        self._look()

    def _look(self) -> None:
        """Views for the products, of every layer: keys GKM and values GMK."""
        self._num_looked_at = -(-(self._slots + 1) // _STEP) * _STEP
        layers, room, *sizes = self._past_LC2BHK.shape
        if self._num_looked_at > room:
            more = self._past_LC2BHK.new_zeros(
                layers, max(room, self._num_looked_at - room), *sizes
            )
            self._past_LC2BHK = torch.cat([self._past_LC2BHK, more], dim=1)
        past_LM2GK = self._past_LC2BHK[:, : self._num_looked_at].flatten(3, 4)
        keys_LMGK, values_LMGK = past_LM2GK.unbind(2)
        self._past_views = _pairs(keys_LMGK.permute(0, 2, 3, 1), values_LMGK.transpose(1, 2))
        keys_LGSK, values_LGSK = self._memory_L2BHSK.flatten(2, 3).unbind(1)
        self._memory_views = _pairs(keys_LGSK.mT, values_LGSK)
        self._mask_bias_G1S = _for_heads(self._mask_bias_B11S, self._model.heads)
        self._mask_bias_11M = torch.full((1, 1, self._num_looked_at), -torch.inf)
        self._mask_bias_11M[..., : self._slots] = 0

    def _new_slots(self, width: int) -> Sequence[Tensor]:
        """A slot for every hypothesis, hidden from the others; where to write it, BW2HK."""
        start, self._slots = self._slots, self._slots + width
        if self._slots > self._num_looked_at:
            self._look()
        if self._mask_bias_BWC.numel():
            mask_bias_WW = torch.full((width, width), -torch.inf).fill_diagonal_(0)
            new_BWW = mask_bias_WW.expand(self._sentences, -1, -1)
            self._mask_bias_BWC = torch.cat([self._mask_bias_BWC, new_BWW], dim=2)
        slots_LW2BHK = self._past_LC2BHK[:, start : self._slots]
        return slots_LW2BHK.permute(0, 3, 1, 2, 4, 5).unbind(0)

    def _past_mask_bias(self, width: int) -> Tensor:
        """What each hypothesis does not look at, GWM or 11M."""
        if not self._mask_bias_BWC.numel():
            self._mask_bias_11M[..., self._slots - 1] = 0
            return self._mask_bias_11M
        missing = self._num_looked_at - self._slots
        mask_bias_BWM = F.pad(self._mask_bias_BWC, (0, missing), value=-torch.inf)
        return mask_bias_BWM.repeat_interleave(self._model.heads, dim=0)


def _num_weights(part: nn.Module) -> int:
    return sum(weight.numel() for weight in part.parameters())


def _threads(num_weights: int, rows: int) -> int:
    """Of a pass of so many rows through so many weights."""
    is_little = num_weights * (rows + _READING) < _FOR_THREADS
    return 1 if is_little else torch.get_num_threads()


def _for_heads(mask_bias_B11S: Tensor | None, heads: int) -> Tensor | None:
    """The same for every head of a sentence, G1S."""
    return None if mask_bias_B11S is None else mask_bias_B11S[:, 0].repeat_interleave(heads, dim=0)


def _pairs(keys: Tensor, values: Tensor) -> list[KeysAndValues]:
    """Of every layer; the layers are the first dimension of both."""
    return list(zip(keys.unbind(0), values.unbind(0), strict=True))


def _rounded_up(projection: nn.Linear) -> nn.Linear:
    """With outputs of -inf up to a multiple of `_ROUND`."""
    size = -(-projection.out_features // _ROUND) * _ROUND
    rounded = nn.Linear(projection.in_features, size)
    with torch.no_grad():
        rounded.weight.zero_()
        rounded.weight[: projection.out_features] = projection.weight
        rounded.bias.fill_(-torch.inf)
        rounded.bias[: projection.out_features] = 0 if projection.bias is None else projection.bias
    return rounded
