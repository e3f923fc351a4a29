"""The Transformer in 8 bits by int8_decoder.c, for those processors that it is for.

B sentences, W hypotheses of each, S source positions, P positions of all sources together, T
target positions so far, D d_model, L decoder layers, V vocabulary.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from seq2seq_cli.decoding import native
from seq2seq_cli.decoding.linear import scaled_query
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer, sinusoidal_positions
from seq2seq_cli.model.transformer import Transformer

_LONGEST = 100_000  # positions of a source: the scores of a row lie on the stack


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
        self.rounded_vocab_size = native.rounded_up(self.vocab_size, native.GROUP)
        self.d_model = model.projection.in_features
        self.num_layers = len(decoder)
        self._weights = _Weights()
        attentions = [layer.cross_attention for layer in decoder]
        memory = self._weights.linear([part for a in attentions for part in (a.key, a.value)])
        self.encoder = self._weights.stack(
            encoder, model.src_embedding.weight * model.scale, model.encoder_norm, memory
        )
        logits = self._weights.linear([model.projection], round_up=True)
        scaled_VD = torch.zeros(self.rounded_vocab_size, self.d_model)
        scaled_VD[: self.vocab_size] = model.tgt_embedding.weight * model.scale
        self.decoder = self._weights.stack(decoder, scaled_VD, model.decoder_norm, logits)
        self._signals_TD = sinusoidal_positions(0, 1, self.d_model)

    def signals(self, length: int) -> Tensor:
        """Of that many positions at least, TD."""
        if length > len(self._signals_TD):
            self._signals_TD = sinusoidal_positions(0, 2 * length, self.d_model)
        return self._signals_TD

    @torch.inference_mode()
    def start(self, src_BS: Tensor) -> "Int8States":
        """Read the source. Raises UserError where one is too long for the stack."""
        if src_BS.size(1) > _LONGEST:
            raise UserError(
                f"a sentence of {src_BS.size(1):,} tokens is too long to be translated in 8 bits: "
                "take --precision fp32"
            )
        is_token_BS = src_BS != self.pad_id
        lengths_B = is_token_BS.sum(dim=1, dtype=torch.int32)
        starts_B = lengths_B.cumsum(0, dtype=torch.int32) - lengths_B
        tokens_P = src_BS[is_token_BS]
        sentences_P = is_token_BS.nonzero()[:, 0].int()
        memory_PL2D = torch.empty(len(tokens_P), self.num_layers, 2, self.d_model)
        arrays = (tokens_P, self.signals(src_BS.size(1)), starts_B, lengths_B, sentences_P)
        room = native.room_for(self.encoder, len(tokens_P))
        native.call("encode", self.encoder, len(tokens_P), *arrays, memory_PL2D, room)
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
        self._num_columns = len(starts_B)
        self._columns_B = torch.arange(self._num_columns, dtype=torch.int32)
        self._past: list[Tensor] = []
        self._past_addresses = native.addresses(self._past)
        self._slots_BWT: Tensor | None = None  # while each sentence has one hypothesis: all
        self._num_slots = 0
        self._length = 0

    @torch.inference_mode()
    def logits(self, last_BW: Tensor) -> Tensor:
        model, width = self._model, last_BW.size(1)
        signals_TD = model.signals(self._length + 1)
        self._new_slots(width)
        batch = native.Batch(
            *(*last_BW.shape, self._length),
            None if self._slots_BWT is None else self._slots_BWT.data_ptr(),
            *(self._columns_B.data_ptr(), ctypes.addressof(self._past_addresses)),
            self._num_columns,
            *(self._memory_PL2D.data_ptr(), self._starts_B.data_ptr(), self._lengths_B.data_ptr()),
        )
        logits_BWV = torch.empty(*last_BW.shape, model.rounded_vocab_size)
        arrays = (last_BW.contiguous(), signals_TD[self._length - 1], logits_BWV)
        room = native.room_for(model.decoder, last_BW.numel())
        native.call("decode", model.decoder, batch, *arrays, room)
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
        while self._num_slots > native.SLOTS * len(self._past):
            layers, d_model = self._model.num_layers, self._model.d_model
            self._past.append(torch.empty(layers, native.SLOTS, self._num_columns, 2, d_model))
            self._past_addresses = native.addresses(self._past)
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
        output: native.Linear,
    ) -> native.Stack:
        array = (native.Layer * len(layers))(*map(self._layer, layers))
        self._kept.append(array)
        first = layers[0]
        return native.Stack(
            *(len(layers), embedding_VD.size(1), first.self_attention.heads),
            *(first.feed_forward.expand.out_features, first.add_attended.norm_first),
            isinstance(first.feed_forward.activation, nn.GELU),
            *(array, self._address(embedding_VD), self._norm(norm), output),
        )

    def _layer(self, layer: EncoderLayer | DecoderLayer) -> native.Layer:
        attention = layer.self_attention
        made = native.Layer(
            split=self.linear([scaled_query(attention), attention.key, attention.value]),
            join=self.linear([attention.output]),
            attended=self._norm(layer.add_attended.norm),
            expand=self.linear([layer.feed_forward.expand]),
            contract=self.linear([layer.feed_forward.contract]),
            transformed=self._norm(layer.add_transformed.norm),
        )
        if isinstance(layer, DecoderLayer):
            made.query = self.linear([scaled_query(layer.cross_attention)])
            made.gathered = self.linear([layer.cross_attention.output])
            made.gathered_norm = self._norm(layer.add_gathered.norm)
        return made

    def linear(self, layers: Sequence[nn.Linear], *, round_up: bool = False) -> native.Linear:
        """Layers of one input as one, their outputs side by side.

        With `round_up` there are outputs of -inf up to a whole group.
        """
        weight = torch.cat([layer.weight.detach() for layer in layers])
        outputs, inputs = weight.shape
        rows = native.rounded_up(outputs, native.GROUP)
        columns = native.rounded_up(inputs, native.QUAD)
        scale = torch.ones(rows)
        scale[:outputs] = weight.abs().amax(dim=1).clamp_(min=1e-12) / 127
        whole = torch.zeros(rows, columns, dtype=torch.int8)
        whole[:outputs, :inputs] = (weight / scale[:outputs, None]).round_()
        bias = torch.full((rows,), -torch.inf if round_up else 0.0)
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        bias[:outputs] = torch.cat(biases) if biases else 0.0
        blocks = whole.view(-1, native.PANELS, native.LANES, columns // native.QUAD, native.QUAD)
        shift = 128 * whole.sum(dim=1, dtype=torch.int32)
        arrays = (blocks.permute(0, 3, 1, 2, 4).contiguous(), scale, shift, bias)
        return native.Linear(inputs, rows if round_up else outputs, *map(self._address, arrays))

    def _norm(self, norm: nn.Module) -> native.Norm:
        if not isinstance(norm, nn.LayerNorm):
            return native.Norm()
        return native.Norm(self._address(norm.weight), self._address(norm.bias), norm.eps)

    def _address(self, tensor: Tensor) -> int:
        kept = tensor.detach().clone()
        self._kept.append(kept)
        return kept.data_ptr()
