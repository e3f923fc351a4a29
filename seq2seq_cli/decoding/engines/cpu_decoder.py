"""The native engine: the Transformer in cpu_decoder.c, for CPUs with AVX-512.

B sentences, W hypotheses of each, S source positions, P positions of all sources together, T
positions (so far, of a target), C blocks of slots of the KV cache, D d_model, K size of one head,
L decoder layers, V vocabulary.
"""

from collections.abc import Sequence
from ctypes import addressof

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq_cli.decoding.engines.base import Precision
from seq2seq_cli.decoding.engines.capabilities import (
    ALL_VALUES,
    MODULES,
    Capabilities,
    PositionTable,
    scaled_query,
)
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.native import library as native

CPU = torch.device("cpu")
_ACTIVATIONS: dict[type[nn.Module], int] = {nn.ReLU: 1, nn.GELU: 2}  # as in C
_CAPABILITIES = Capabilities(
    MODULES,
    activations=_ACTIVATIONS,
    options={
        **ALL_VALUES,
        "norm": ("pre", "post"),
        "attention_scale": ("sqrt", "none", "temperature"),
        "positions": ("sinusoidal", "rotary"),
    },
)


def empty(*sizes: int) -> Tensor:
    return torch.empty(sizes, dtype=torch.float32, device=CPU)


class CpuDecoder:
    """A copy of a model's weights, laid out for C.

    The numbers of a sentence do not depend on the others in its batch, to the last bit.
    """

    device = CPU

    @staticmethod
    def unsupported(model: Transformer, precision: Precision) -> str | None:
        """Return the reason why it cannot compute the model on this machine, or None."""
        if model.device.type != "cpu":
            return "it needs a CPU"
        if precision not in native.precisions():
            return f"it was not compiled, or the processor lacks instructions for {precision}"
        return _CAPABILITIES.missing(model)

    def __init__(self, model: Transformer, precision: Precision) -> None:
        """`unsupported` must have returned None."""
        encoder: list[EncoderLayer] = list(model.encoder)  # type: ignore[arg-type]
        decoder: list[DecoderLayer] = list(model.decoder)  # type: ignore[arg-type]
        self.pad_id = model.pad_id
        self.precision = precision
        self.vocab_size = model.projection.out_features
        self.rounded_vocab_size = native.rounded_up(self.vocab_size, native.GROUP)
        self.d_model = model.projection.in_features
        self.num_layers = len(decoder)
        weights = self._weights = _Weights(precision)
        src_VD = tgt_VD = model.tgt_embedding.weight.detach() * model.scale
        if model.src_embedding is not model.tgt_embedding:
            src_VD = model.src_embedding.weight.detach() * model.scale
        attentions = [layer.cross_attention for layer in decoder]
        memory = weights.linear([part for a in attentions for part in (a.key, a.value)])
        logits = weights.linear([model.projection], round_up=True)
        activation = _ACTIVATIONS[type(encoder[0].feed_forward.activation)]
        self.encoder = weights.stack(src_VD, encoder, activation, model.encoder_norm, memory)
        self.decoder = weights.stack(tgt_VD, decoder, activation, model.decoder_norm, logits)
        for stack in (self.encoder, self.decoder):
            stack.rotates_memory = model.config.rotary_cross_attention
        self.positions = PositionTable(model)
        self.native_model = NativeModel(self.encoder, self.decoder, self.positions, weights)

    @torch.inference_mode()
    def start(self, src_BS: Tensor) -> "CpuDecodingState":
        """Encode the sources."""
        src_BS = src_BS.contiguous()
        num_tokens = int((src_BS != self.pad_id).sum())
        memory_PL2D = empty(num_tokens, self.num_layers, 2, self.d_model)
        state = CpuDecodingState(self, memory_PL2D, *src_BS.shape)
        threads = torch.get_num_threads()
        workspace = native.workspace(self.encoder, num_tokens, src_BS.size(1), threads)
        positions = self.positions.up_to(src_BS.size(1))
        positions_BS = self.positions.of_sources(src_BS)
        native.library().encode(
            addressof(self.encoder),
            addressof(state.batch),
            num_tokens,
            src_BS.data_ptr(),
            self.pad_id,
            None if positions_BS is None else positions_BS.data_ptr(),
            positions.data_ptr(),
            workspace.ctypes.data,
            threads,
        )
        return state


class NativeModel:
    """A model as the search in C takes it."""

    def __init__(
        self,
        encoder: native.Stack,
        decoder: native.Stack,
        positions: PositionTable,
        alive: object,
    ) -> None:
        """`alive` keeps the memory that the structures point to."""
        self.encoder, self.decoder, self._positions = encoder, decoder, positions
        self._alive = alive

    def positions(self, length: int) -> NDArray[np.float32]:
        return self._positions.up_to(length).numpy()

    def places(self, src_BS: NDArray[np.int64]) -> NDArray[np.int64] | None:
        places_BS = self._positions.of_sources(torch.from_numpy(src_BS))
        return None if places_BS is None else places_BS.numpy()


class CpuDecodingState:
    """The `DecodingState` of one batch; keys and values are never moved.

    Each step of each hypothesis fills a slot; a hypothesis has a list of the slots of its past. A
    block has slots for the sentences that were there when it was allocated, a column for each.
    """

    def __init__(
        self, model: CpuDecoder, memory_PL2D: Tensor, sentences: int, longest: int
    ) -> None:
        """`memory_PL2D` is filled, and divided among the sentences, by cpu_decoder.c: encode."""
        self._model = model
        self._memory_PL2D = memory_PL2D
        self._starts_B, self._lengths_B = torch.empty(2, sentences, dtype=torch.int32)
        self._workspace, self._workspace_sizes = np.empty(0, np.uint8), (0, 0, 0)
        self._positions = torch.empty(0, 0)
        self.blocks: list[Tensor] = []  # of the KV cache
        self._addresses_C = torch.empty(0, dtype=torch.int64)
        self._num_columns_C = torch.empty(0, dtype=torch.int32)
        self._columns_BC = torch.empty(sentences, 0, dtype=torch.int32)
        self._slots_BWT: Tensor | None = None  # None: every hypothesis has all slots
        self._num_slots = 0
        # Always points to the present tensors.
        self.batch = native.NativeBatch(longest=longest, memory=memory_PL2D.data_ptr())
        self._point_to_sources()

    def logits(self, last_BW: Tensor) -> Tensor:
        logits_BWV = empty(*last_BW.shape, self._model.rounded_vocab_size)
        last_BW, threads = last_BW.contiguous(), torch.get_num_threads()
        self._add_slots(last_BW.size(1))
        rows, length = last_BW.numel(), self.batch.length
        had_rows, had_threads, until = self._workspace_sizes
        if rows > had_rows or threads > had_threads or length > until:  # for some more steps, too
            model, until = self._model, length + native.SLOTS
            self._workspace_sizes = (rows, threads, until)
            longest = max(self.batch.longest, until)
            self._workspace = native.workspace(model.decoder, rows, longest, threads)
            self._positions = model.positions.up_to(until)
        native.library().decode(
            addressof(self._model.decoder),
            addressof(self.batch),
            last_BW.data_ptr(),
            self._positions.data_ptr(),
            logits_BWV.data_ptr(),
            *(0, None, 0, None),  # choose no tokens
            self._workspace.ctypes.data,
            threads,
        )
        return logits_BWV

    def _add_slots(self, width: int) -> None:
        """Give every hypothesis a slot at the end of its list."""
        first, self._num_slots = self._num_slots, self._num_slots + width
        self.batch.width = width
        self.batch.length += 1
        while self._num_slots > native.SLOTS * len(self.blocks):
            columns_B = torch.arange(len(self._columns_BC), dtype=torch.int32)
            sizes = (native.SLOTS, len(columns_B), 2, self._model.d_model)
            self.blocks.append(empty(self._model.num_layers, *sizes))
            self._addresses_C = torch.tensor([block.data_ptr() for block in self.blocks])
            num_columns = [block.size(2) for block in self.blocks]
            self._num_columns_C = torch.tensor(num_columns, dtype=torch.int32)
            self._columns_BC = torch.cat([self._columns_BC, columns_B[:, None]], dim=1)
            self.batch.num_blocks = len(self.blocks)
            self.batch.blocks = self._addresses_C.data_ptr()
            self.batch.num_columns = self._num_columns_C.data_ptr()
            self.batch.columns = self._columns_BC.data_ptr()
        if self._slots_BWT is not None:
            new_W1 = torch.arange(first, self._num_slots, dtype=torch.int32)[:, None]
            new_BW1 = new_W1.expand(len(self._slots_BWT), -1, -1)
            self._slots_BWT = torch.cat([self._slots_BWT, new_BW1], dim=2)
            self.batch.slots = self._slots_BWT.data_ptr()

    def reorder(self, origin_BW: Tensor) -> None:
        if self._slots_BWT is None:
            if origin_BW.size(1) == 1:
                return
            slots_T = torch.arange(self.batch.length, dtype=torch.int32)
            self._slots_BWT = slots_T.expand(len(origin_BW), 1, -1)
        index = origin_BW[:, :, None].expand(-1, -1, self.batch.length)
        self._slots_BWT = self._slots_BWT.gather(1, index)

    def keep(self, sentences_B: Tensor) -> None:
        self._starts_B, self._lengths_B = self._starts_B[sentences_B], self._lengths_B[sentences_B]
        self._point_to_sources()
        self._columns_BC = self._columns_BC[sentences_B]
        self.batch.columns = self._columns_BC.data_ptr()
        if self._slots_BWT is not None:
            self._slots_BWT = self._slots_BWT[sentences_B]

    def _point_to_sources(self) -> None:
        self.batch.sentences = len(self._starts_B)
        self.batch.starts = self._starts_B.data_ptr()
        self.batch.lengths = self._lengths_B.data_ptr()


class _Weights:
    """Makes the C structures of a model, and keeps alive the memory that they point to."""

    def __init__(self, precision: Precision) -> None:
        self._precision = precision
        self._alive: list[object] = []

    def stack(
        self,
        scaled_VD: Tensor,
        layers: Sequence[EncoderLayer] | Sequence[DecoderLayer],
        activation: int,
        norm: nn.Module,
        output: native.Linear,
    ) -> native.Stack:
        array = (native.Layer * len(layers))(*map(self._layer, layers))
        self._alive.append(array)
        first = layers[0]
        feed_forward = first.feed_forward
        return native.Stack(
            num_layers=len(layers),
            d_model=feed_forward.contract.out_features,
            heads=first.self_attention.heads,
            d_ff=feed_forward.expand.out_features,
            norm_first=first.self_attention_residual.norm_first,
            activation=activation,
            vocabulary=len(scaled_VD),
            is_rotary=first.self_attention.is_rotary,
            embedding=self._address(scaled_VD),
            layers=array,
            norm=self._norm(norm),
            output=output,
        )

    def _layer(self, layer: EncoderLayer | DecoderLayer) -> native.Layer:
        attention = layer.self_attention
        structure = native.Layer(
            qkv=self.linear([scaled_query(attention), attention.key, attention.value]),
            out=self.linear([attention.output]),
            self_attention_norm=self._norm(layer.self_attention_residual.norm),
            expand=self.linear([layer.feed_forward.expand]),
            contract=self.linear([layer.feed_forward.contract]),
            feed_forward_norm=self._norm(layer.feed_forward_residual.norm),
        )
        if isinstance(layer, DecoderLayer):
            structure.query = self.linear([scaled_query(layer.cross_attention)])
            structure.cross_out = self.linear([layer.cross_attention.output])
            structure.cross_attention_norm = self._norm(layer.cross_attention_residual.norm)
        return structure

    def linear(self, layers: Sequence[nn.Linear], *, round_up: bool = False) -> native.Linear:
        """Join layers of the same input into one, their outputs side by side.

        With `round_up`, outputs of -inf fill up the last group.
        """
        weights = [layer.weight.detach() for layer in layers]
        weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        outputs, inputs = weight.shape
        rows = native.rounded_up(outputs, native.GROUP)
        bias = torch.full((rows,), -torch.inf if round_up else 0.0, dtype=torch.float32)
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        bias[:outputs] = torch.cat(biases) if biases else 0.0
        structure = native.Linear(
            inputs=inputs,
            outputs=rows if round_up else outputs,
            precision=native.PRECISIONS.index(self._precision),
            bias=self._address(bias),
        )
        if self._precision == "int8":
            scale = torch.ones(rows, dtype=torch.float32)
            scale[:outputs] = weight.abs().amax(dim=1).clamp_(min=1e-12) / 127
            weight = (weight / scale[:outputs, None]).round_().to(torch.int8)
            shift = torch.zeros(rows, dtype=torch.int32)
            shift[:outputs] = 128 * weight.sum(dim=1, dtype=torch.int32)
            structure.scale, structure.shift = self._address(scale), self._address(shift)
        elif self._precision == "bf16":
            weight = weight.bfloat16()
        structure.weight = self._address(_packed(weight))
        return structure

    def _norm(self, norm: nn.Module) -> native.Norm:
        if isinstance(norm, nn.Identity):
            return native.Norm()
        assert isinstance(norm, nn.LayerNorm), f"{type(norm).__name__} is not in _CAPABILITIES"
        weight, bias = norm.weight.detach().clone(), norm.bias.detach().clone()
        return native.Norm(self._address(weight), self._address(bias), norm.eps)

    def _address(self, tensor: Tensor) -> int:
        self._alive.append(tensor)
        return tensor.data_ptr()


def _packed(weight_OI: Tensor) -> Tensor:
    """Pack a weight into words of 32 bits: (groups, words, outputs of a group).

    O outputs, I inputs. In bf16 and int8, words are padded to whole tiles of AMX.
    """
    outputs, inputs = weight_OI.shape
    per_word = 4 // weight_OI.element_size()
    if per_word > 1:
        missing = -inputs % (per_word * native.LANES)
        weight_OI = F.pad(weight_OI, (0, missing))
    words_OW = weight_OI.view(torch.int32)
    num_words = words_OW.size(1)
    whole, rest = divmod(outputs, native.GROUP)
    packed = torch.empty(whole + (rest > 0), num_words, native.GROUP, dtype=torch.int32)
    packed[:whole] = words_OW[: whole * native.GROUP].view(whole, native.GROUP, num_words).mT
    packed[whole:, :, :rest] = words_OW[whole * native.GROUP :].mT
    packed[whole:, :, rest:] = 0
    return packed
