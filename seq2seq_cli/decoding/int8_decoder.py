"""The Transformer in 8 bits by int8_decoder.c, for those processors that it is for.

B sentences, W hypotheses of each, S source positions, P positions of all sources together, T
target positions so far, C pieces of the past, D d_model, L decoder layers, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq_cli.decoding import native
from seq2seq_cli.decoding.linear import scaled_query
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer, sinusoidal_positions
from seq2seq_cli.model.transformer import Transformer


class Int8Decoder:
    """A model's weights in 8 bits; later changes of the model do not reach it.

    What a sentence gets does not depend on the sentences beside it, to the last bit.
    """

    device = native.CPU

    def __init__(self, model: Transformer) -> None:
        encoder: list[EncoderLayer] = list(model.encoder)  # type: ignore[arg-type]
        decoder: list[DecoderLayer] = list(model.decoder)  # type: ignore[arg-type]
        self.pad_id = model.pad_id
        self.vocab_size = model.projection.out_features
        self.rounded_vocab_size = native.rounded_up(self.vocab_size, native.GROUP)
        self.d_model = model.projection.in_features
        self.num_layers = len(decoder)
        self.scaled_src = model.src_embedding.weight.detach() * model.scale
        self.scaled_tgt = model.tgt_embedding.weight.detach() * model.scale
        self._weights = _Weights()
        attentions = [layer.cross_attention for layer in decoder]
        memory = self._weights.linear([part for a in attentions for part in (a.key, a.value)])
        logits = self._weights.linear([model.projection], round_up=True)
        self.encoder = self._weights.stack(encoder, model.encoder_norm, memory)
        self.decoder = self._weights.stack(decoder, model.decoder_norm, logits)
        self._signals_TD = sinusoidal_positions(0, 1, self.d_model)

    def signals(self, length: int) -> Tensor:
        """Of that many positions at least, TD."""
        signals_TD = self._signals_TD
        if length > len(signals_TD):
            signals_TD = self._signals_TD = sinusoidal_positions(0, 2 * length, self.d_model)
        return signals_TD

    @torch.inference_mode()
    def start(self, src_BS: Tensor) -> "Int8States":
        """Read the source."""
        is_token_BS = src_BS != self.pad_id
        lengths_B = is_token_BS.sum(dim=1, dtype=torch.int32)
        starts_B = lengths_B.cumsum(0, dtype=torch.int32) - lengths_B
        sentences_P, positions_P = is_token_BS.nonzero().unbind(1)
        states_PD = F.embedding(src_BS[is_token_BS], self.scaled_src)
        states_PD += self.signals(src_BS.size(1))[positions_P]
        memory_PL2D = native.empty(len(states_PD), self.num_layers, 2, self.d_model)
        longest = src_BS.size(1)
        room = native.room_for(self.encoder, len(states_PD), longest)
        arrays = (starts_B, lengths_B, sentences_P.int(), memory_PL2D, room)
        native.call("encode", self.encoder, len(states_PD), longest, states_PD, *arrays)
        return Int8States(self, memory_PL2D, starts_B, lengths_B, longest)


class Int8States:
    """One batch: what `States` promises, without ever moving keys and values.

    Each step of each hypothesis fills a slot, which stays where it is; a hypothesis has a list of
    the slots of its past. Slots come in pieces, with a column for every sentence still there.
    """

    def __init__(
        self,
        model: Int8Decoder,
        memory_PL2D: Tensor,
        starts_B: Tensor,
        lengths_B: Tensor,
        longest: int,
    ) -> None:
        self._model = model
        self._memory_PL2D = memory_PL2D
        self._starts_B, self._lengths_B = starts_B, lengths_B
        self._longest_source = longest
        self._past: list[Tensor] = []
        self._addresses_C = torch.empty(0, dtype=torch.int64)
        self._num_columns_C = torch.empty(0, dtype=torch.int32)
        self._columns_BC = torch.empty(len(starts_B), 0, dtype=torch.int32)
        self._slots_BWT: Tensor | None = None  # while each sentence has one hypothesis: all
        self._num_slots = 0
        self._length = 0

    @torch.inference_mode()
    def logits(self, last_BW: Tensor) -> Tensor:
        model, rows = self._model, last_BW.numel()
        self._new_slots(last_BW.size(1))
        states_ND = F.embedding(last_BW.reshape(-1), model.scaled_tgt)
        states_ND += model.signals(self._length)[self._length - 1]
        logits_BWV = native.empty(*last_BW.shape, model.rounded_vocab_size)
        longest = max(self._longest_source, self._length)
        room = native.room_for(model.decoder, rows, longest)
        batch = native.Batch(
            sentences=last_BW.size(0),
            width=last_BW.size(1),
            length=self._length,
            slots=None if self._slots_BWT is None else self._slots_BWT.data_ptr(),
            num_pieces=len(self._past),
            past=self._addresses_C.data_ptr(),
            num_columns=self._num_columns_C.data_ptr(),
            columns=self._columns_BC.data_ptr(),
            memory=self._memory_PL2D.data_ptr(),
            starts=self._starts_B.data_ptr(),
            lengths=self._lengths_B.data_ptr(),
        )
        native.call("decode", model.decoder, batch, longest, states_ND, logits_BWV, room)
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
        kept = (self._starts_B, self._lengths_B, self._columns_BC)
        self._starts_B, self._lengths_B, self._columns_BC = (one[sentences_B] for one in kept)
        if self._slots_BWT is not None:
            self._slots_BWT = self._slots_BWT[sentences_B]

    def _new_slots(self, width: int) -> None:
        """One for every hypothesis, at the end of its list."""
        first, self._num_slots = self._num_slots, self._num_slots + width
        self._length += 1
        while self._num_slots > native.SLOTS * len(self._past):
            self._new_piece()
        if self._slots_BWT is not None:
            new_W1 = torch.arange(first, self._num_slots, dtype=torch.int32)[:, None]
            new_BW1 = new_W1.expand(len(self._slots_BWT), -1, -1)
            self._slots_BWT = torch.cat([self._slots_BWT, new_BW1], dim=2)

    def _new_piece(self) -> None:
        columns_B = torch.arange(len(self._columns_BC), dtype=torch.int32)
        sizes = (native.SLOTS, len(columns_B), 2, self._model.d_model)
        self._past.append(native.empty(self._model.num_layers, *sizes))
        self._addresses_C = torch.tensor([piece.data_ptr() for piece in self._past])
        num_columns = [piece.size(2) for piece in self._past]
        self._num_columns_C = torch.tensor(num_columns, dtype=torch.int32)
        self._columns_BC = torch.cat([self._columns_BC, columns_B[:, None]], dim=1)


class _Weights:
    """Makes the structures of a model, and keeps alive what they point to."""

    def __init__(self) -> None:
        self._kept: list[object] = []

    def stack(
        self,
        layers: Sequence[EncoderLayer] | Sequence[DecoderLayer],
        norm: nn.Module,
        output: native.Linear,
    ) -> native.Stack:
        array = (native.Layer * len(layers))(*map(self._layer, layers))
        self._kept.append(array)
        first = layers[0]
        feed_forward = first.feed_forward
        return native.Stack(
            num_layers=len(layers),
            d_model=feed_forward.contract.out_features,
            heads=first.self_attention.heads,
            d_ff=feed_forward.expand.out_features,
            norm_first=first.add_attended.norm_first,
            has_gelu=isinstance(feed_forward.activation, nn.GELU),
            layers=array,
            norm=self._norm(norm),
            output=output,
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
        scale = torch.ones(rows, dtype=torch.float32)
        scale[:outputs] = weight.abs().amax(dim=1).clamp_(min=1e-12) / 127
        whole = torch.zeros(rows, columns, dtype=torch.int8)
        whole[:outputs, :inputs] = (weight / scale[:outputs, None]).round_()
        bias = torch.full((rows,), -torch.inf if round_up else 0.0, dtype=torch.float32)
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        bias[:outputs] = torch.cat(biases) if biases else 0.0
        blocks = whole.view(-1, native.PANELS, native.LANES, columns // native.QUAD, native.QUAD)
        shift = 128 * whole.sum(dim=1, dtype=torch.int32)
        arrays = (blocks.permute(0, 3, 1, 2, 4).contiguous(), scale, shift, bias)
        return native.Linear(inputs, rows if round_up else outputs, *map(self._address, arrays))

    def _norm(self, norm: nn.Module) -> native.Norm:
        if not isinstance(norm, nn.LayerNorm):
            return native.Norm()
        weight, bias = norm.weight.detach().clone(), norm.bias.detach().clone()
        return native.Norm(self._address(weight), self._address(bias), norm.eps)

    def _address(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()
