"""The Transformer by cpu_decoder.c, for those processors that it is for.

B sentences, W hypotheses of each, S source positions, P positions of all sources together, T
target positions so far, C pieces of the past, D d_model, L decoder layers, V vocabulary.
"""

from collections.abc import Sequence
from ctypes import addressof

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq_cli.config.types import Activation
from seq2seq_cli.decoding.engines import cpu_library
from seq2seq_cli.decoding.engines.linear import Precision, scaled_query
from seq2seq_cli.decoding.engines.support import unsupported_model
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer, sinusoidal_positions
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.text.tokenizer import EOS_ID

_ACTIVATIONS: dict[Activation, int] = {"relu": 1, "gelu": 2}  # as in C


class CpuDecoder:
    """A model's weights, laid out for C; later changes of the model do not reach it.

    What a sentence gets does not depend on the sentences beside it, to the last bit.
    """

    device = cpu_library.CPU

    @staticmethod
    def unsupported(model: Transformer, precision: Precision) -> str | None:
        """The reason why it cannot compute that model on this machine; None if it can."""
        if model.device.type != "cpu":
            return "it is for CPUs"
        if precision not in cpu_library.precisions():
            return f"it was not compiled, or the processor has no instructions for {precision}"
        return unsupported_model(model, _ACTIVATIONS)

    def __init__(self, model: Transformer, precision: Precision) -> None:
        """`unsupported` has nothing against the model."""
        encoder: list[EncoderLayer] = list(model.encoder)  # type: ignore[arg-type]
        decoder: list[DecoderLayer] = list(model.decoder)  # type: ignore[arg-type]
        self.pad_id = model.pad_id
        self.vocab_size = model.projection.out_features
        self.rounded_vocab_size = cpu_library.rounded_up(self.vocab_size, cpu_library.GROUP)
        self.d_model = model.projection.in_features
        self.num_layers = len(decoder)
        weights = self._weights = _Weights(precision)
        src_VD = tgt_VD = model.tgt_embedding.weight.detach() * model.scale
        if model.src_embedding is not model.tgt_embedding:
            src_VD = model.src_embedding.weight.detach() * model.scale
        attentions = [layer.cross_attention for layer in decoder]
        memory = weights.linear([part for a in attentions for part in (a.key, a.value)])
        logits = weights.linear([model.projection], round_up=True)
        activation = _ACTIVATIONS[model.config.activation]
        self.encoder = weights.stack(src_VD, encoder, activation, model.encoder_norm, memory)
        self.decoder = weights.stack(tgt_VD, decoder, activation, model.decoder_norm, logits)
        self._positions_TD = sinusoidal_positions(0, 1, self.d_model)

    def positions(self, length: int) -> Tensor:
        """Of that many positions at least, TD."""
        positions_TD = self._positions_TD
        if length > len(positions_TD):
            positions_TD = self._positions_TD = sinusoidal_positions(0, 2 * length, self.d_model)
        return positions_TD

    @torch.inference_mode()
    def start(self, src_BS: Tensor) -> "CpuDecodingState":
        """Read the source."""
        src_BS = src_BS.contiguous()
        num_tokens = int((src_BS != self.pad_id).sum())
        memory_PL2D = cpu_library.empty(num_tokens, self.num_layers, 2, self.d_model)
        states = CpuDecodingState(self, memory_PL2D, *src_BS.shape)
        threads = torch.get_num_threads()
        room = cpu_library.room_for(self.encoder, num_tokens, src_BS.size(1), threads)
        positions_TD = self.positions(src_BS.size(1))
        cpu_library.library().encode(
            addressof(self.encoder),
            addressof(states.batch),
            num_tokens,
            src_BS.data_ptr(),
            self.pad_id,
            positions_TD.data_ptr(),
            room.data_ptr(),
            threads,
        )
        return states


class CpuDecodingState:
    """One batch: what `DecodingState` promises, without ever moving keys and values.

    Each step of each hypothesis fills a slot, which stays where it is; a hypothesis has a list of
    the slots of its past. Slots come in pieces, with a column for every sentence still there.
    """

    def __init__(
        self, model: CpuDecoder, memory_PL2D: Tensor, sentences: int, longest: int
    ) -> None:
        """Where the sources lie in the memory is left to say."""
        self._model = model
        self._memory_PL2D = memory_PL2D
        self._starts_B, self._lengths_B = torch.empty(2, sentences, dtype=torch.int32)
        self._past: list[Tensor] = []
        self._addresses_C = torch.empty(0, dtype=torch.int64)
        self._num_columns_C = torch.empty(0, dtype=torch.int32)
        self._columns_BC = torch.empty(sentences, 0, dtype=torch.int32)
        self._slots_BWT: Tensor | None = None  # while each sentence has one hypothesis: all
        self._num_slots = 0
        self._room, self._room_sizes = torch.empty(0), (0, 0, 0)
        self._positions_TD = torch.empty(0, 0)
        self._logits_BWV = torch.empty(0, 0, 0)
        self.batch = cpu_library.Batch(longest=longest, memory=memory_PL2D.data_ptr())
        self._point_to_sentences()

    def logits(self, last_BW: Tensor) -> Tensor:
        logits_BWV = cpu_library.empty(*last_BW.shape, self._model.rounded_vocab_size)
        self._decode(last_BW, logits_BWV.data_ptr(), 0, None, 0, None)
        return logits_BWV

    def argmax_token(self, last_BW: Tensor, forbidden_N: Tensor) -> Tensor:
        if self._logits_BWV.shape[:-1] != last_BW.shape:
            self._logits_BWV = cpu_library.empty(*last_BW.shape, self._model.rounded_vocab_size)
        tokens_BW = torch.empty_like(last_BW)
        forbidden = (len(forbidden_N), forbidden_N.data_ptr())
        self._decode(last_BW, self._logits_BWV.data_ptr(), *forbidden, EOS_ID, tokens_BW.data_ptr())
        return tokens_BW

    def _decode(self, last_BW: Tensor, *outputs: int | None) -> None:
        """A step, into `outputs` as cpu_decoder.c has them."""
        last_BW, threads = last_BW.contiguous(), torch.get_num_threads()
        self._new_slots(last_BW.size(1))
        self._make_room(last_BW.numel(), threads)
        cpu_library.library().decode(
            addressof(self._model.decoder),
            addressof(self.batch),
            last_BW.data_ptr(),
            self._positions_TD.data_ptr(),
            *outputs,
            self._room.data_ptr(),
            threads,
        )

    def reorder(self, origin_BW: Tensor) -> None:
        if self._slots_BWT is None:
            if origin_BW.size(1) == 1:
                return
            slots_T = torch.arange(self.batch.length, dtype=torch.int32)
            self._slots_BWT = slots_T.expand(len(origin_BW), 1, -1)
        index = origin_BW[:, :, None].expand(-1, -1, self.batch.length)
        self._slots_BWT = self._slots_BWT.gather(1, index)

    def keep(self, sentences_B: Tensor) -> None:
        kept = (self._starts_B, self._lengths_B, self._columns_BC)
        self._starts_B, self._lengths_B, self._columns_BC = (one[sentences_B] for one in kept)
        self._point_to_sentences()
        if self._slots_BWT is not None:
            self._slots_BWT = self._slots_BWT[sentences_B]

    def _point_to_sentences(self) -> None:
        batch = self.batch
        batch.sentences = len(self._starts_B)
        batch.starts, batch.lengths = self._starts_B.data_ptr(), self._lengths_B.data_ptr()
        batch.columns = self._columns_BC.data_ptr()

    def _make_room(self, rows: int, threads: int) -> None:
        """For some steps more, where it is not enough."""
        had_rows, had_threads, until = self._room_sizes
        if rows > had_rows or threads > had_threads or self.batch.length > until:
            model, until = self._model, self.batch.length + cpu_library.SLOTS
            self._room_sizes = (rows, threads, until)
            longest = max(self.batch.longest, until)
            self._room = cpu_library.room_for(model.decoder, rows, longest, threads)
            self._positions_TD = model.positions(until)

    def _new_slots(self, width: int) -> None:
        """One for every hypothesis, at the end of its list."""
        first, self._num_slots = self._num_slots, self._num_slots + width
        self.batch.width = width
        self.batch.length += 1
        while self._num_slots > cpu_library.SLOTS * len(self._past):
            self._new_piece()
        if self._slots_BWT is not None:
            new_W1 = torch.arange(first, self._num_slots, dtype=torch.int32)[:, None]
            new_BW1 = new_W1.expand(len(self._slots_BWT), -1, -1)
            self._slots_BWT = torch.cat([self._slots_BWT, new_BW1], dim=2)
            self.batch.slots = self._slots_BWT.data_ptr()

    def _new_piece(self) -> None:
        columns_B = torch.arange(len(self._columns_BC), dtype=torch.int32)
        sizes = (cpu_library.SLOTS, len(columns_B), 2, self._model.d_model)
        self._past.append(cpu_library.empty(self._model.num_layers, *sizes))
        self._addresses_C = torch.tensor([piece.data_ptr() for piece in self._past])
        num_columns = [piece.size(2) for piece in self._past]
        self._num_columns_C = torch.tensor(num_columns, dtype=torch.int32)
        self._columns_BC = torch.cat([self._columns_BC, columns_B[:, None]], dim=1)
        self.batch.num_pieces = len(self._past)
        self.batch.past = self._addresses_C.data_ptr()
        self.batch.num_columns = self._num_columns_C.data_ptr()
        self.batch.columns = self._columns_BC.data_ptr()


class _Weights:
    """Makes the structures of a model, and keeps alive what they point to."""

    def __init__(self, precision: Precision) -> None:
        self._precision = precision
        self._kept: list[object] = []

    def stack(
        self,
        scaled_VD: Tensor,
        layers: Sequence[EncoderLayer] | Sequence[DecoderLayer],
        activation: int,
        norm: nn.Module,
        output: cpu_library.Linear,
    ) -> cpu_library.Stack:
        array = (cpu_library.Layer * len(layers))(*map(self._layer, layers))
        self._kept.append(array)
        first = layers[0]
        feed_forward = first.feed_forward
        return cpu_library.Stack(
            num_layers=len(layers),
            d_model=feed_forward.contract.out_features,
            heads=first.self_attention.heads,
            d_ff=feed_forward.expand.out_features,
            norm_first=first.self_attention_residual.norm_first,
            activation=activation,
            vocabulary=len(scaled_VD),
            embedding=self._address(scaled_VD),
            layers=array,
            norm=self._norm(norm),
            output=output,
        )

    def _layer(self, layer: EncoderLayer | DecoderLayer) -> cpu_library.Layer:
        attention = layer.self_attention
        made = cpu_library.Layer(
            split=self.linear([scaled_query(attention), attention.key, attention.value]),
            join=self.linear([attention.output]),
            attended=self._norm(layer.self_attention_residual.norm),
            expand=self.linear([layer.feed_forward.expand]),
            contract=self.linear([layer.feed_forward.contract]),
            transformed=self._norm(layer.feed_forward_residual.norm),
        )
        if isinstance(layer, DecoderLayer):
            made.query = self.linear([scaled_query(layer.cross_attention)])
            made.gathered = self.linear([layer.cross_attention.output])
            made.gathered_norm = self._norm(layer.cross_attention_residual.norm)
        return made

    def linear(self, layers: Sequence[nn.Linear], *, round_up: bool = False) -> cpu_library.Linear:
        """Layers of one input as one, their outputs side by side.

        With `round_up` there are outputs of -inf up to a whole group.
        """
        weights = [layer.weight.detach() for layer in layers]
        weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        outputs, inputs = weight.shape
        rows = cpu_library.rounded_up(outputs, cpu_library.GROUP)
        bias = torch.full((rows,), -torch.inf if round_up else 0.0, dtype=torch.float32)
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        bias[:outputs] = torch.cat(biases) if biases else 0.0
        made = cpu_library.Linear(
            inputs=inputs,
            outputs=rows if round_up else outputs,
            precision=cpu_library.PRECISIONS.index(self._precision),
            bias=self._address(bias),
        )
        if self._precision == "int8":
            scale = torch.ones(rows, dtype=torch.float32)
            scale[:outputs] = weight.abs().amax(dim=1).clamp_(min=1e-12) / 127
            weight = (weight / scale[:outputs, None]).round_().to(torch.int8)
            shift = torch.zeros(rows, dtype=torch.int32)
            shift[:outputs] = 128 * weight.sum(dim=1, dtype=torch.int32)
            made.scale, made.shift = self._address(scale), self._address(shift)
        elif self._precision == "bf16":
            weight = weight.bfloat16()
        made.weight = self._address(_packed(weight))
        return made

    def _norm(self, norm: nn.Module) -> cpu_library.Norm:
        if not isinstance(norm, nn.LayerNorm):
            return cpu_library.Norm()
        weight, bias = norm.weight.detach().clone(), norm.bias.detach().clone()
        return cpu_library.Norm(self._address(weight), self._address(bias), norm.eps)

    def _address(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()


def _packed(weight_OI: Tensor) -> Tensor:
    """Words of 32 bits, (groups, words, outputs of a group); words are filled up to whole tiles.

    O outputs, I inputs. An fp32 number is a word, and does not go into tiles.
    """
    outputs, inputs = weight_OI.shape
    per_word = 4 // weight_OI.element_size()
    if per_word > 1:
        missing = -inputs % (per_word * cpu_library.LANES)
        weight_OI = F.pad(weight_OI, (0, missing))
    words_OW = weight_OI.view(torch.int32)
    num_words = words_OW.size(1)
    whole, rest = divmod(outputs, cpu_library.GROUP)
    packed = torch.empty(whole + (rest > 0), num_words, cpu_library.GROUP, dtype=torch.int32)
    packed[:whole] = (
        words_OW[: whole * cpu_library.GROUP].view(whole, cpu_library.GROUP, num_words).mT
    )
    packed[whole:, :, :rest] = words_OW[whole * cpu_library.GROUP :].mT
    packed[whole:, :, rest:] = 0
    return packed
