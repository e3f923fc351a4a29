"""A GPU's decoder whose step is recorded once, as a CUDA graph, and replayed.

A step of a small model is some hundred kernels, which take less time than starting them one by one.
A graph starts them all at once; but what it reads and writes has to stay where it is. So there are
buffers for each shape of a batch: sentences to a power of two, positions to a multiple.

B sentences, W hypotheses of each, N = B·W rows, S source positions, C positions for which there is
room, H heads, K size of one head, V vocabulary.
"""

from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import Tensor

from seq2seq_cli.decoding.states import rows_of
from seq2seq_cli.model.attention import KeysValues
from seq2seq_cli.model.device import activation_dtype
from seq2seq_cli.model.layers import DecoderLayer, LayerCache, sinusoidal_positions
from seq2seq_cli.model.layout import Padded
from seq2seq_cli.model.transformer import Cache, Transformer

_SOURCE = 16  # source positions are rounded up to it
_ROOM = 64  # target positions for which there is room at first
_KEPT = 8  # shapes whose buffers are kept


class Shape(NamedTuple):
    """Of a batch."""

    sentences: int
    width: int
    source: int
    room: int


class RecordedDecoder:
    """One batch at a time: a second `start` ends what the first began."""

    def __init__(self, model: Transformer, *, use_bf16: bool = False) -> None:
        self.model = model
        self.use_bf16 = use_bf16
        self.device = model.device
        self.vocab_size = model.projection.out_features
        self.running: RecordedStates | None = None
        self._steps: OrderedDict[Shape, Step] = OrderedDict()

    @torch.inference_mode()
    def start(self, src_BS: Tensor) -> "RecordedStates":
        count, length = src_BS.shape
        shape = Shape(_power_of_two(count), 1, -(-length // _SOURCE) * _SOURCE, _ROOM)
        padded_BS = src_BS.new_full((shape.sentences, shape.source), self.model.pad_id)
        padded_BS[:count, :length] = src_BS
        padded_BS[count:] = padded_BS[0]
        with precision(self.model, self.use_bf16):
            cache = self.model.start_cache(self.model.encode(padded_BS))
        self.running = RecordedStates(self, shape, cache, count)
        return self.running

    def step(self, shape: Shape) -> "Step":
        if shape in self._steps:
            self._steps.move_to_end(shape)
        else:
            self._steps[shape] = Step(self.model, shape, self.use_bf16)
            if len(self._steps) > _KEPT:
                self._steps.popitem(last=False)
        return self._steps[shape]


class RecordedStates:
    """One batch: its hypotheses are rows of buffers, and so are sentences that have left."""

    def __init__(self, decoder: RecordedDecoder, shape: Shape, cache: Cache, count: int) -> None:
        self._decoder = decoder
        self._shape = shape
        self._step = decoder.step(shape)
        self._step.keep_N11S.copy_(cache.keep_B11S)
        for own, layer in zip(self._step.memory, cache.layers, strict=True):
            _copy(layer.memory, own)
        self._places_B = torch.arange(count, device=decoder.device)  # in the buffers
        self._length = 0

    @torch.inference_mode()
    def logits(self, last_BW: Tensor) -> Tensor:
        assert self._decoder.running is self, "another batch has been started"
        if self._length == self._shape.room:
            rows_N = torch.arange(len(self._step.last_N1), device=last_BW.device)
            self._move(self._shape._replace(room=2 * self._shape.room), rows_N)
        shape = self._shape
        self._step.last_N1.view(shape.sentences, shape.width)[self._places_B] = last_BW
        self._step.position_1.fill_(self._length)
        self._length += 1
        logits_BWV = self._step.logits().view(shape.sentences, shape.width, -1)
        return logits_BWV[self._places_B].float()

    @torch.inference_mode()
    def reorder(self, origin_BW: Tensor) -> None:
        width = origin_BW.size(1)
        all_BW = origin_BW.new_zeros(self._shape.sentences, width)
        all_BW[self._places_B] = origin_BW
        self._move(self._shape._replace(width=width), rows_of(all_BW, self._shape.width))

    @torch.inference_mode()
    def keep(self, sentences_B: Tensor) -> None:
        self._places_B = self._places_B[sentences_B]
        sentences = _power_of_two(len(self._places_B))
        if sentences < self._shape.sentences:
            missing = sentences - len(self._places_B)
            places = torch.cat([self._places_B, self._places_B[:1].expand(missing)])
            hypotheses_W = torch.arange(self._shape.width, device=places.device)
            rows_N = (places[:, None] * self._shape.width + hypotheses_W).flatten()
            self._move(self._shape._replace(sentences=sentences), rows_N)
            self._places_B = torch.arange(len(self._places_B), device=places.device)

    def _move(self, shape: Shape, rows_N: Tensor) -> None:
        """Go on with the given rows, in buffers of that shape."""
        old, new = self._step, self._decoder.step(shape)
        for old_past, new_past in zip(old.past, new.past, strict=True):
            _copy(KeysValues(*(part[rows_N, :, : self._length] for part in old_past)), new_past)
        if new is not old:
            new.keep_N11S.copy_(old.keep_N11S[rows_N])
            for old_memory, new_memory in zip(old.memory, new.memory, strict=True):
                _copy(old_memory.select(rows_N), new_memory)
        self._shape, self._step = shape, new


class Step:
    """Buffers of one shape, and the step that reads and writes them."""

    def __init__(self, model: Transformer, shape: Shape, use_bf16: bool) -> None:
        self._model = model
        self._use_bf16 = use_bf16
        self._layers: list[DecoderLayer] = list(model.decoder)  # type: ignore[arg-type]
        heads = self._layers[0].cross_attention.heads
        size = model.projection.in_features // heads
        rows = shape.sentences * shape.width
        is_half = use_bf16 and model.device.type == "cuda"  # on a CPU attention is fp32
        dtype = torch.bfloat16 if is_half else torch.float32

        def keys_values(positions: int) -> list[KeysValues]:
            zeros_NHMK = torch.zeros(rows, heads, positions, size, dtype=dtype, device=model.device)
            return [KeysValues(zeros_NHMK.clone(), zeros_NHMK.clone()) for _ in self._layers]

        self.last_N1 = torch.zeros(rows, 1, dtype=torch.int64, device=model.device)
        self.position_1 = torch.zeros(1, dtype=torch.int64, device=model.device)
        self.keep_N11S = torch.ones(
            (rows, 1, 1, shape.source), dtype=torch.bool, device=model.device
        )
        self.memory = keys_values(shape.source)
        self.past = keys_values(shape.room)
        d_model = model.projection.in_features
        self._signals_CD = sinusoidal_positions(0, shape.room, d_model, model.device)
        self._positions_C = torch.arange(shape.room, device=model.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits_NV: Tensor | None = None

    def logits(self) -> Tensor:
        """Of the token after `last_N1`, which stands at `position_1`; overwritten by the next."""
        if self._model.device.type != "cuda":
            return self._compute()
        if self._graph is None:
            self._graph, self._logits_NV = self._record()
        self._graph.replay()
        assert self._logits_NV is not None
        return self._logits_NV

    def _record(self) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """As PyTorch's notes on CUDA graphs say: a few steps on another stream come first."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits_NV = self._compute()
        return graph, logits_NV

    def _compute(self) -> Tensor:
        with precision(self._model, self._use_bf16):
            return self._decode()

    def _decode(self) -> Tensor:
        model = self._model
        signal_1D = self._signals_CD.index_select(0, self.position_1)
        states_N1D = model.tgt_embedding(self.last_N1) * model.scale + signal_1D
        states_N1D = states_N1D.to(activation_dtype(states_N1D))
        keep_111C = (self._positions_C <= self.position_1)[None, None, None]
        for layer, memory, past in zip(self._layers, self.memory, self.past, strict=True):
            cache = LayerCache(memory, _Past(past, self.position_1))  # type: ignore[arg-type]
            states_N1D = layer(states_N1D, Padded(self.last_N1), cache, keep_111C, self.keep_N11S)
        logits_N1V: Tensor = model.projection(model.decoder_norm(states_N1D))
        return logits_N1V[:, 0]


class _Past:
    """Keys and values that are written into their place, where `KeysValues` are concatenated."""

    def __init__(self, whole: KeysValues, position_1: Tensor) -> None:
        self._whole, self._position_1 = whole, position_1

    def extend(self, new: KeysValues) -> KeysValues:
        for whole_NHCK, new_NH1K in zip(self._whole, new, strict=True):
            whole_NHCK.index_copy_(2, self._position_1, new_NH1K.to(whole_NHCK))
        return self._whole


def precision(model: Transformer, use_bf16: bool) -> torch.autocast:
    """Weights are cast anew in every step: a graph cannot keep what was made outside of it."""
    return torch.autocast(model.device.type, torch.bfloat16, enabled=use_bf16, cache_enabled=False)


def _copy(source: KeysValues, target: KeysValues) -> None:
    """Into the first positions of the target."""
    for from_NHMK, to_NHCK in zip(source, target, strict=True):
        to_NHCK[:, :, : from_NHMK.size(2)] = from_NHMK


def _power_of_two(count: int) -> int:
    """The least that is not smaller."""
    return 1 << (count - 1).bit_length()
