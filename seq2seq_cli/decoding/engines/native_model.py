"""A model for the native library: weights packed for C, in int8 quantized, in NumPy arrays.

V vocabulary, D d_model, K size of one head, J pairs of its dimensions, T positions, B sentences, S
source positions, O outputs and I inputs of a linear layer, G groups of outputs, W words of 32 bits.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seq2seq_cli.config.schema import ModelConfig
from seq2seq_cli.native import library as native
from seq2seq_cli.native.library import Precision
from seq2seq_cli.native.model_code import PACKAGE, is_edited
from seq2seq_cli.tokenizers.tokenizer import EOS_ID

Array = NDArray[np.float32]
Weights = Mapping[str, Array]  # by the names of the model's parameters; tied ones once
Parts = Mapping[str, NDArray[Any]]  # what C reads, by names of this file

ACTIVATIONS: Mapping[object, int] = {"relu": 1, "gelu": 2, "silu": 3}  # as in C
# The options of section `model` with the values that C knows; None: all.
OPTIONS: Mapping[str, Collection[object] | None] = {
    **dict.fromkeys(("d_model", "heads", "layers", "d_ff", "attention_bias")),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout")),
    **dict.fromkeys(("embedding_scale", "tie_embeddings", "output_bias", "norm_epsilon")),
    **dict.fromkeys(("position_base", "position_offset", "source_eos")),
    **dict.fromkeys(("feature_positions", "rotary_cross_attention")),
    **dict.fromkeys(("ngrams", "ngram_buckets", "ngram_dropout")),
    "activation": ACTIVATIONS,
    "norm": ("pre", "post"),
    "attention_scale": ("sqrt", "none", "temperature"),
    "positions": ("sinusoidal", "rotary"),
}
_ALIGNMENT = 64  # bytes: one cache line, and the largest register


def unsupported(config: ModelConfig, precision: Precision) -> str | None:
    """Return why the library cannot compute a model, without comparing logits, or None."""
    if reason := unsupported_option(config, precision):
        return reason
    return f"the code in {PACKAGE / 'model'} has been edited" if is_edited() else None


def unsupported_option(config: ModelConfig, precision: Precision) -> str | None:
    """Return why the library cannot compute in this precision or with these options, or None."""
    if precision not in native.precisions():
        kernels = native.kernels_name()
        return f"its kernels {kernels} lack {precision}" if kernels else "it was not compiled"
    return config.unknown_option(OPTIONS)


def parameter_shapes(
    config: ModelConfig, src_vocab: int, tgt_vocab: int, *, is_shared: bool
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's parameters by their names; tied ones once."""
    d_model, d_ff = config.d_model, config.d_ff
    shapes: dict[str, tuple[int, ...]] = {"tgt_embedding.weight": (tgt_vocab, d_model)}
    if not (is_shared and config.tie_embeddings):
        shapes["src_embedding.weight"] = (src_vocab, d_model)
    if config.ngrams > 1:
        shapes["src_ngrams.embedding.weight"] = (config.ngram_buckets, d_model)
    if not config.tie_embeddings:
        shapes["projection.weight"] = (tgt_vocab, d_model)
    if config.output_bias:
        shapes["projection.bias"] = (tgt_vocab,)

    def add(name: str, *shape: int, has_bias: bool = True) -> None:
        shapes[f"{name}.weight"] = shape
        if has_bias:
            shapes[f"{name}.bias"] = shape[:1]

    for stack, count in (("encoder", config.layers.encoder), ("decoder", config.layers.decoder)):
        kinds = ("self_attention", "cross_attention") if stack == "decoder" else ("self_attention",)
        for layer in (f"{stack}.{number}" for number in range(count)):
            for kind in kinds:
                for part in ("query", "key", "value", "output"):
                    add(f"{layer}.{kind}.{part}", d_model, d_model, has_bias=config.attention_bias)
                if config.attention_scale == "temperature":
                    shapes[f"{layer}.{kind}.scale.inverse_temperature_H"] = (config.heads,)
            add(f"{layer}.feed_forward.expand", d_ff, d_model)
            add(f"{layer}.feed_forward.contract", d_model, d_ff)
            for kind in (*kinds, "feed_forward"):
                add(f"{layer}.{kind}_residual.norm", d_model)
        if config.norm == "pre":
            add(f"{stack}_norm", d_model)
    return shapes


class NativeModel:
    """The structures of a model for native.h, and the memory they point to; it can be copied."""

    def __init__(
        self,
        parts: Parts,
        config: ModelConfig,
        precision: Precision,
        num_features: int = 0,
    ) -> None:
        """`parts` come from `packed`; `num_features`: the ids after EOS that are features."""
        self._parts = {name: _aligned(array) for name, array in parts.items()}
        self._config = config
        self._num_shared = 0 if config.feature_positions else num_features  # with one position
        self.source_eos = config.source_eos
        self.precision = precision
        self.num_layers = self._count("decoder")
        self.d_model = config.d_model
        self.vocab_size = len(parts["decoder.embedding"])
        self.num_outputs = native.rounded_up(self.vocab_size, native.GROUP)  # -inf beyond it
        memory = self._linear("memory", 2 * self.num_layers * self.d_model, self.d_model)
        logits = self._linear("logits", self.num_outputs, self.d_model)
        self.encoder, self.decoder = self._stack("encoder", memory), self._stack("decoder", logits)
        self._table = _positions(config, 1)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._parts, self._config, self.precision, self._num_shared)

    @property
    def way_to_read(self) -> tuple[bool, int]:
        """Whether sources end with EOS, and how many tokens are features that share a position."""
        return self.source_eos, self._num_shared

    def positions(self, length: int) -> Array:
        """Return at least the first `length` positions: vectors, TD, or rotations, TJ2."""
        table = self._table  # another thread may replace it by a shorter one
        if length > len(table):
            table = self._table = _positions(self._config, 2 * length)
        return table

    def places(self, src_BS: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the places of tokens as model/positions.py: source_positions; None: 0, 1, ..."""
        if not self._num_shared:
            return None
        is_feature_BS = (src_BS > EOS_ID) & (src_BS <= EOS_ID + self._num_shared)
        index_S = np.arange(src_BS.shape[1])
        last_B1 = (index_S * is_feature_BS).max(axis=1, keepdims=True)
        return np.maximum(index_S - last_B1, 0)

    def _stack(self, name: str, output: native.Linear) -> native.Stack:
        layers = [self._layer(f"{name}.{number}") for number in range(self._count(name))]
        config, embedding = self._config, self._parts[f"{name}.embedding"]
        return native.Stack(
            num_layers=len(layers),
            d_model=config.d_model,
            heads=config.heads,
            d_ff=config.d_ff,
            norm_first=config.norm == "pre",
            activation=ACTIVATIONS[config.activation],
            vocabulary=len(embedding),
            is_rotary=config.positions == "rotary",
            rotates_memory=config.rotary_cross_attention,
            embedding=embedding.ctypes.data,
            ngrams=self._address(f"{name}.ngrams"),
            longest_ngram=config.ngrams,
            ngram_buckets=config.ngram_buckets,
            layers=(native.Layer * len(layers))(*layers),
            norm=self._norm(f"{name}_norm"),
            output=output,
        )

    def _layer(self, name: str) -> native.Layer:
        d_model, d_ff = self._config.d_model, self._config.d_ff
        layer = native.Layer(
            qkv=self._linear(f"{name}.qkv", 3 * d_model, d_model),
            out=self._linear(f"{name}.out", d_model, d_model),
            self_attention_norm=self._norm(f"{name}.self_attention_norm"),
            expand=self._linear(f"{name}.expand", d_ff, d_model),
            contract=self._linear(f"{name}.contract", d_model, d_ff),
            feed_forward_norm=self._norm(f"{name}.feed_forward_norm"),
        )
        if name.startswith("decoder"):
            layer.query = self._linear(f"{name}.query", d_model, d_model)
            layer.cross_out = self._linear(f"{name}.cross_out", d_model, d_model)
            layer.cross_attention_norm = self._norm(f"{name}.cross_attention_norm")
        return layer

    def _linear(self, name: str, outputs: int, inputs: int) -> native.Linear:
        precision = native.PRECISIONS.index(self.precision)
        parts = (self._address(f"{name}.{part}") for part in ("weight", "bias", "scale", "shift"))
        return native.Linear(inputs, outputs, precision, *parts)

    def _norm(self, name: str) -> native.Norm:
        weight, bias = (self._address(f"{name}.{part}") for part in ("weight", "bias"))
        return native.Norm(weight, bias, self._config.norm_epsilon)

    def _address(self, name: str) -> int | None:
        array = self._parts.get(name)
        return None if array is None else array.ctypes.data

    def _count(self, stack: str) -> int:
        return sum(name.startswith(stack) and name.endswith("expand.bias") for name in self._parts)


@np.errstate(over="ignore", invalid="ignore")  # the search reports infinity and NaN
def packed(weights: Weights, config: ModelConfig, precision: Precision) -> Parts:
    """Return what C reads of the weights of a model."""
    parts: dict[str, NDArray[Any]] = {}
    scale = np.float32(math.sqrt(config.d_model) if config.embedding_scale else 1.0)
    tgt_VD = weights["tgt_embedding.weight"]
    parts["decoder.embedding"] = parts["encoder.embedding"] = tgt_VD * scale
    if "src_embedding.weight" in weights:
        parts["encoder.embedding"] = weights["src_embedding.weight"] * scale
    if "src_ngrams.embedding.weight" in weights:
        parts["encoder.ngrams"] = weights["src_ngrams.embedding.weight"] * scale
    crossing = []

    def add(name: str, *linears: tuple[Array, Array | None], round_up: bool = False) -> None:
        made = packed_linear(linears, precision, round_up=round_up)
        parts.update({f"{name}.{part}": array for part, array in made.items()})

    def linear(name: str) -> tuple[Array, Array | None]:
        return weights[f"{name}.weight"], weights.get(f"{name}.bias")

    def add_norm(name: str, source: str) -> None:
        if f"{source}.weight" in weights:
            parts[f"{name}.weight"] = weights[f"{source}.weight"].copy()
            parts[f"{name}.bias"] = weights[f"{source}.bias"].copy()

    layers = (name.partition(".feed_forward.") for name in weights)
    for layer in dict.fromkeys(before for before, found, _ in layers if found):
        attention = f"{layer}.self_attention"
        query = _scaled_query(weights, attention, config)
        add(f"{layer}.qkv", query, linear(f"{attention}.key"), linear(f"{attention}.value"))
        add(f"{layer}.out", linear(f"{attention}.output"))
        if f"{layer}.cross_attention.query.weight" in weights:
            attention = f"{layer}.cross_attention"
            crossing += [linear(f"{attention}.key"), linear(f"{attention}.value")]
            add(f"{layer}.query", _scaled_query(weights, attention, config))
            add(f"{layer}.cross_out", linear(f"{attention}.output"))
        for part in ("expand", "contract"):
            add(f"{layer}.{part}", linear(f"{layer}.feed_forward.{part}"))
        for kind in ("self_attention", "cross_attention", "feed_forward"):
            add_norm(f"{layer}.{kind}_norm", f"{layer}.{kind}_residual.norm")
    for stack in ("encoder", "decoder"):
        add_norm(f"{stack}_norm", f"{stack}_norm")
    add("memory", *crossing)
    projection = weights.get("projection.weight", tgt_VD), weights.get("projection.bias")
    add("logits", projection, round_up=True)
    return parts


def _scaled_query(
    weights: Weights, attention: str, config: ModelConfig
) -> tuple[Array, Array | None]:
    """Return the query projection such that q·k are the scores, which need no division by √K."""
    size = config.d_model // config.heads
    root = np.float32(math.sqrt(size))
    factors = np.array([root if config.attention_scale == "none" else 1], np.float32)
    if config.attention_scale == "temperature":
        factors = weights[f"{attention}.scale.inverse_temperature_H"].repeat(size)
    weight, bias = weights[f"{attention}.query.weight"], weights.get(f"{attention}.query.bias")
    scaled_bias = None if bias is None else bias * factors / root
    return weight * factors[:, None] / root, scaled_bias


def packed_linear(
    linears: Sequence[tuple[Array, Array | None]], precision: Precision, *, round_up: bool = False
) -> dict[str, NDArray[Any]]:
    """Join layers of one input, weights OI and biases; `round_up`: -inf fills the last group."""
    weight_OI = np.concatenate([weight for weight, _ in linears]) if linears[1:] else linears[0][0]
    outputs = len(weight_OI)
    rows = native.rounded_up(outputs, native.GROUP)
    bias = np.full(rows, -np.inf if round_up else 0.0, np.float32)
    biases = [one for _, one in linears if one is not None]
    bias[:outputs] = np.concatenate(biases) if biases else 0.0
    if precision != "int8":
        rounded_OI = weight_OI if precision == "fp32" else _rounded_to_bf16(weight_OI)
        return {"weight": _packed_words(rounded_OI), "bias": bias}
    scale, shift = np.ones(rows, np.float32), np.zeros(rows, np.int32)
    greatest_O = np.maximum(weight_OI.max(axis=1), -weight_OI.min(axis=1))
    scale[:outputs] = np.maximum(greatest_O, np.float32(1e-12)) / np.float32(127)
    quotients_OI = weight_OI / scale[:outputs, None]  # NaN stays in the scale
    whole_OI = np.rint(quotients_OI, out=quotients_OI).astype(np.int8)
    shift[:outputs] = 128 * whole_OI.sum(axis=1, dtype=np.int32)
    return {"weight": _packed_words(whole_OI), "bias": bias, "scale": scale, "shift": shift}


def _rounded_to_bf16(weight_OI: Array) -> NDArray[np.uint16]:
    """Round to the nearest, ties to even."""
    bits_OI = np.ascontiguousarray(weight_OI).view(np.uint32)
    rounded_OI = (bits_OI + 0x7FFF + (bits_OI >> 16 & 1)) >> 16
    return np.where(np.isnan(weight_OI), 0x7FC0, rounded_OI).astype(np.uint16)


def _packed_words(weight_OI: NDArray[Any]) -> NDArray[np.int32]:
    """Pack a weight into words of 32 bits, GW by outputs of a group; padded to tiles of AMX."""
    outputs, inputs = weight_OI.shape
    per_word = 4 // weight_OI.itemsize
    if missing := -inputs % (per_word * native.LANES) if per_word > 1 else 0:
        weight_OI = np.pad(weight_OI, ((0, 0), (0, missing)))
    words_OW = np.ascontiguousarray(weight_OI).view(np.int32)
    num_words = words_OW.shape[1]
    whole, rest = divmod(outputs, native.GROUP)
    made: NDArray[np.int32] = _empty((whole + (rest > 0), num_words, native.GROUP), np.int32)
    split = whole * native.GROUP
    made[:whole] = words_OW[:split].reshape(whole, native.GROUP, num_words).swapaxes(1, 2)
    made[whole:, :, :rest] = words_OW[split:].T
    made[whole:, :, rest:] = 0
    return made


def _positions(config: ModelConfig, length: int) -> Array:
    """Return vectors of positions, TD, or rotations, TJ2, as model/positions.py does."""
    is_rotary = config.positions == "rotary"
    size = config.d_model // config.heads if is_rotary else config.d_model
    slope = np.float32(-math.log(config.position_base) / size)
    exponents_J = np.arange(0, size, 2, dtype=np.float32) * slope
    rates_J = np.exp(exponents_J, dtype=np.float64).astype(np.float32)
    first = 0 if is_rotary else config.position_offset
    angles_TJ = np.arange(first, first + length, dtype=np.float32)[:, None] * rates_J
    pairs = (np.cos, np.sin) if is_rotary else (np.sin, np.cos)
    made_TJ2 = _aligned(np.stack([function(angles_TJ) for function in pairs], axis=-1))
    return made_TJ2 if is_rotary else made_TJ2.reshape(length, size)


def _aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array where vectors of C do not cross cache lines; a copy if it is elsewhere."""
    if array.ctypes.data % _ALIGNMENT == 0 and array.flags.c_contiguous:
        return array
    made = _empty(array.shape, array.dtype)
    made[...] = array
    return made


def _empty(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + num_bytes].view(dtype).reshape(shape)
