"""The Transformer in 8 bits by int8_decoder.c, for those processors that it is for.

B sentences, W hypotheses of each, S source positions, P positions of all sources together, T
target positions so far, C slots of the past, D d_model, L decoder layers, V vocabulary.
"""

import ctypes
import importlib.machinery
import math
from collections.abc import Sequence
from ctypes import POINTER, c_float, c_int, c_int64, c_long, c_void_p
from pathlib import Path

import torch
from torch import Tensor, nn

from seq2seq_cli.model.attention import MultiHeadAttention
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer, sinusoidal_positions
from seq2seq_cli.model.transformer import Transformer

_INTERFACE = 1
_GROUP, _PANELS, _LANES, _QUAD = 64, 4, 16, 4
_ROOM = 32  # positions for which there is room at first


class _Linear(ctypes.Structure):
    _fields_ = (
        *((size, c_int64) for size in ("inputs", "outputs")),
        *((address, c_void_p) for address in ("weight", "scale", "shift", "bias")),
    )


class _Norm(ctypes.Structure):
    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("epsilon", c_float))


class _Layer(ctypes.Structure):
    _fields_ = (
        *(("split", _Linear), ("join", _Linear), ("attended", _Norm)),
        *(("query", _Linear), ("gathered", _Linear), ("gathered_norm", _Norm)),
        *(("expand", _Linear), ("contract", _Linear), ("transformed", _Norm)),
    )


class _Stack(ctypes.Structure):
    _fields_ = (
        *((size, c_int64) for size in ("num_layers", "d_model", "heads", "d_ff")),
        *(("norm_first", c_int64), ("gelu", c_int64)),
        *(("layers", POINTER(_Layer)), ("embedding", c_void_p)),
        *(("norm", _Norm), ("output", _Linear)),
    )


class _Batch(ctypes.Structure):
    _fields_ = (
        *((size, c_int64) for size in ("sentences", "width", "length")),
        *((address, c_void_p) for address in ("slots", "columns", "past")),
        *((size, c_int64) for size in ("room", "num_columns")),
        *((address, c_void_p) for address in ("memory", "starts", "lengths")),
    )


def _load() -> ctypes.CDLL | None:
    name = "_int8_decoder" + importlib.machinery.EXTENSION_SUFFIXES[0]
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name(name)))
    except OSError:  # there was no compiler
        return None
    pointer = c_void_p
    library.linear.argtypes = (pointer, c_int, c_long, pointer, pointer, pointer, c_int)
    library.encode.argtypes = (pointer, c_long, *[pointer] * 6, c_int)
    library.decode.argtypes = (*[pointer] * 5, c_int)
    return library if library.start() == _INTERFACE else None


_library = _load()


def available() -> bool:
    """Whether it was compiled at installation, and this processor has the instructions."""
    return _library is not None


class Int8Decoder:
    """A model's weights in 8 bits; later changes of the model do not reach it.

    What a sentence gets does not depend on the sentences beside it, to the last bit.
    """

    device = torch.device("cpu")

    def __init__(self, model: Transformer) -> None:
        encoder: list[EncoderLayer] = list(model.encoder)  # type: ignore[arg-type]
        decoder: list[DecoderLayer] = list(model.decoder)  # type: ignore[arg-type]
        self.pad_id = model.pad_id
        self.vocab_size = model.projection.out_features
        self.rounded_vocab_size = -(-self.vocab_size // _GROUP) * _GROUP
        self.d_model = model.projection.in_features
        self.num_layers = len(decoder)
        self._weights = _Weights()
        attentions = [layer.cross_attention for layer in decoder]
        memory = self._weights.linear([part for a in attentions for part in (a.key, a.value)])
        self.encoder = self._weights.stack(
            encoder, model.src_embedding.weight * model.scale, model.encoder_norm, memory
        )
        logits = self._weights.linear([model.projection], filled_up_with=-torch.inf)
        self.decoder = self._weights.stack(
            decoder, model.tgt_embedding.weight * model.scale, model.decoder_norm, logits
        )
        self._signals_TD = sinusoidal_positions(0, _ROOM, self.d_model)

    def signals(self, length: int) -> Tensor:
        """Of that many positions at least, TD."""
        if length > len(self._signals_TD):
            self._signals_TD = sinusoidal_positions(0, 2 * length, self.d_model)
        return self._signals_TD

    @torch.inference_mode()
    def start(self, src_BS: Tensor) -> "Int8States":
        """Read the source."""
        is_token_BS = src_BS != self.pad_id
        lengths_B = is_token_BS.sum(dim=1, dtype=torch.int32)
        starts_B = lengths_B.cumsum(0, dtype=torch.int32) - lengths_B
        tokens_P = src_BS[is_token_BS]
        sentences_P = is_token_BS.nonzero()[:, 0].int()
        memory_PL2D = torch.empty(len(tokens_P), self.num_layers, 2, self.d_model)
        arrays = (self.signals(src_BS.size(1)), starts_B, lengths_B, sentences_P, memory_PL2D)
        _call("encode", self.encoder, len(tokens_P), tokens_P, *arrays)
        return Int8States(self, memory_PL2D, starts_B, lengths_B)


class Int8States:
    """One batch: what `States` promises, without ever moving keys and values.

    Each step of each hypothesis fills a slot, which stays where it is; a hypothesis has a list of
    the slots of its past.
    """

    def __init__(
        self, model: Int8Decoder, memory_PL2D: Tensor, starts_B: Tensor, lengths_B: Tensor
    ) -> None:
        self._model = model
        self._memory_PL2D = memory_PL2D
        self._starts_B, self._lengths_B = starts_B, lengths_B
        self._columns_B = torch.arange(len(starts_B), dtype=torch.int32)
        self._past_LC2BD = torch.empty(model.num_layers, _ROOM, 2, len(starts_B), model.d_model)
        self._slots_BWT: Tensor | None = None  # while each sentence has one hypothesis: all
        self._num_slots = 0
        self._length = 0

    @torch.inference_mode()
    def logits(self, last_BW: Tensor) -> Tensor:
        model, width = self._model, last_BW.size(1)
        signals_TD = model.signals(self._length + 1)
        self._new_slots(width)
        batch = _Batch(
            *(*last_BW.shape, self._length),
            None if self._slots_BWT is None else self._slots_BWT.data_ptr(),
            *(self._columns_B.data_ptr(), self._past_LC2BD.data_ptr()),
            *(self._past_LC2BD.size(1), self._past_LC2BD.size(3)),
            *(self._memory_PL2D.data_ptr(), self._starts_B.data_ptr(), self._lengths_B.data_ptr()),
        )
        logits_BWV = torch.empty(*last_BW.shape, model.rounded_vocab_size)
        signal_D = signals_TD[self._length - 1]
        _call("decode", model.decoder, batch, last_BW.contiguous(), signal_D, logits_BWV)
        return logits_BWV

    def reorder(self, origin_BW: Tensor) -> None:
        if self._slots_BWT is None:
            if origin_BW.size(1) == 1:
                return
            slots_T = torch.arange(self._length, dtype=torch.int32)
            self._slots_BWT = slots_T.expand(len(origin_BW), 1, -1)
        index = origin_BW[:, :, None].expand(-1, -1, self._length)
        self._slots_BWT = self._slots_BWT.gather(1, index)

    def keep(self, sentences_B: Tensor) -> None:
        kept = (self._starts_B, self._lengths_B, self._columns_B)
        self._starts_B, self._lengths_B, self._columns_B = (of_B[sentences_B] for of_B in kept)
        if self._slots_BWT is not None:
            self._slots_BWT = self._slots_BWT[sentences_B]

    def _new_slots(self, width: int) -> None:
        """One for every hypothesis, at the end of its list."""
        first, self._num_slots = self._num_slots, self._num_slots + width
        self._length += 1
        if self._num_slots > self._past_LC2BD.size(1):
            more = torch.empty_like(self._past_LC2BD)
            self._past_LC2BD = torch.cat([self._past_LC2BD, more], dim=1)
        if self._slots_BWT is not None:
            new_W1 = torch.arange(first, self._num_slots, dtype=torch.int32)[:, None]
            new_BW1 = new_W1.expand(len(self._slots_BWT), -1, -1)
            self._slots_BWT = torch.cat([self._slots_BWT, new_BW1], dim=2)


class _Weights:
    """Makes the structures of a model, and keeps alive what they point to."""

    def __init__(self) -> None:
        self._kept: list[object] = []

    def stack(
        self,
        layers: Sequence[EncoderLayer] | Sequence[DecoderLayer],
        embedding_VD: Tensor,
        norm: nn.Module,
        output: _Linear,
    ) -> _Stack:
        array = (_Layer * len(layers))(*map(self._layer, layers))
        self._kept.append(array)
        first = layers[0]
        return _Stack(
            *(len(layers), embedding_VD.size(1), first.self_attention.heads),
            *(first.feed_forward.expand.out_features, first.add_attended.norm_first),
            isinstance(first.feed_forward.activation, nn.GELU),
            *(array, self._address(embedding_VD), self._norm(norm), output),
        )

    def _layer(self, layer: EncoderLayer | DecoderLayer) -> _Layer:
        attention = layer.self_attention
        made = _Layer(
            split=self.linear([_scaled_query(attention), attention.key, attention.value]),
            join=self.linear([attention.output]),
            attended=self._norm(layer.add_attended.norm),
            expand=self.linear([layer.feed_forward.expand]),
            contract=self.linear([layer.feed_forward.contract]),
            transformed=self._norm(layer.add_transformed.norm),
        )
        if isinstance(layer, DecoderLayer):
            made.query = self.linear([_scaled_query(layer.cross_attention)])
            made.gathered = self.linear([layer.cross_attention.output])
            made.gathered_norm = self._norm(layer.add_gathered.norm)
        return made

    def linear(self, layers: Sequence[nn.Linear], filled_up_with: float | None = None) -> _Linear:
        """Layers of one input as one, their outputs side by side.

        With `filled_up_with` there are outputs of that value up to a whole group.
        """
        weight = torch.cat([layer.weight.detach() for layer in layers])
        outputs, inputs = weight.shape
        rows, columns = -(-outputs // _GROUP) * _GROUP, -(-inputs // _QUAD) * _QUAD
        scale = torch.ones(rows)
        scale[:outputs] = weight.abs().amax(dim=1).clamp_(min=1e-12) / 127
        rounded = torch.zeros(rows, columns, dtype=torch.int8)
        rounded[:outputs, :inputs] = (weight / scale[:outputs, None]).round_()
        shift = 128 * rounded.sum(dim=1, dtype=torch.int32)
        bias = torch.full((rows,), filled_up_with or 0.0)
        has_bias = layers[0].bias is not None
        bias[:outputs] = torch.cat([layer.bias.detach() for layer in layers]) if has_bias else 0
        blocks = rounded.view(rows // _GROUP, _PANELS, _LANES, columns // _QUAD, _QUAD)
        arrays = (blocks.permute(0, 3, 1, 2, 4).contiguous(), scale, shift, bias)
        is_filled_up = filled_up_with is not None
        return _Linear(inputs, rows if is_filled_up else outputs, *map(self._address, arrays))

    def _norm(self, norm: nn.Module) -> _Norm:
        if not isinstance(norm, nn.LayerNorm):
            return _Norm()
        return _Norm(self._address(norm.weight), self._address(norm.bias), norm.eps)

    def _address(self, tensor: Tensor) -> int:
        kept = tensor.detach().clone()
        self._kept.append(kept)
        return kept.data_ptr()


def _call(name: str, stack: _Stack, *arguments: "Tensor | ctypes.Structure | int") -> None:
    """With addresses of tensors and structures, and as many threads as PyTorch uses."""
    plain = (
        one.data_ptr()
        if isinstance(one, Tensor)
        else one
        if isinstance(one, int)
        else ctypes.addressof(one)
        for one in arguments
    )
    if not getattr(_library, name)(ctypes.addressof(stack), *plain, torch.get_num_threads()):
        raise MemoryError


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
