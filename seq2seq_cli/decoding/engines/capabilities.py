"""What an engine that repeats the model's arithmetic can represent; anything else is rejected.

Each engine lists the options of section `model` and the modules that it knows. The plain engine
runs the model's own code, which is right for every model.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

import torch
from torch import Tensor, nn

from seq2seq_cli.model.attention import MultiHeadAttention, rotations
from seq2seq_cli.model.layers import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    Residual,
    sinusoidal_positions,
)
from seq2seq_cli.model.transformer import Transformer

# What all layers must have in common, as engines read it from the first one.
_OF_ALL_LAYERS: tuple[tuple[str, Any, Callable[[Any], object]], ...] = (
    ("heads", MultiHeadAttention, lambda attention: attention.heads),
    ("d_ff", FeedForward, lambda layer: layer.expand.out_features),
    ("activation", FeedForward, lambda layer: type(layer.activation)),
    ("norm", Residual, lambda residual: residual.norm_first),
    ("positions", EncoderLayer | DecoderLayer, lambda layer: layer.self_attention.is_rotary),
    ("rotary_cross_attention", DecoderLayer, lambda layer: layer.cross_attention.is_rotary),
)


@dataclass(frozen=True)
class Capabilities:
    """The models that an engine or an export can represent."""

    options: Mapping[str, Collection[object] | None]  # of section `model`; None: all values
    modules: Collection[type[nn.Module]]
    activations: Collection[type[nn.Module]] | None  # None: it calls the model's own

    def missing(self, model: Transformer) -> str | None:
        """Return the first option or module that is not known, or None."""
        for option, value in model.config:
            values = self.options.get(option, ())
            if values is not None and value not in values:
                return f"model.{option} is {value}"
        for name, module in model.named_modules():
            known: Collection[type[nn.Module]] | None = self.modules
            if name.endswith("feed_forward.activation"):
                known = self.activations
            if known is not None and type(module) not in known:
                return f"{name} is {type(module).__name__}"
            if isinstance(module, nn.LayerNorm) and (module.weight is None or module.bias is None):
                return f"{name} has no weight or no bias"
            if known is not None and isinstance(module, nn.GELU) and module.approximate != "none":
                return f"{name} is approximated by {module.approximate}"
        for option, kind, value_of in _OF_ALL_LAYERS:
            if len({value_of(part) for part in model.modules() if isinstance(part, kind)}) > 1:
                return f"layers differ in {option}"
        return None


class PositionTable:
    """What an engine needs to know of each position: its vector, TD, or its rotations, TJ2."""

    def __init__(self, model: Transformer) -> None:
        self.kind = model.config.positions
        self._d_model = model.config.d_model
        self._head_size = model.config.d_model // model.config.heads
        self._table = self._first(1)

    def up_to(self, length: int) -> Tensor:
        """Return at least the first `length` positions."""
        table = self._table  # another thread may replace it by a shorter one
        if length > len(table):
            table = self._table = self._first(2 * length)
        return table

    def _first(self, length: int) -> Tensor:
        match self.kind:
            case "rotary":
                return rotations(0, length, self._head_size, torch.device("cpu"))
            case "sinusoidal":
                return sinusoidal_positions(0, length, self._d_model)
        assert_never(self.kind)


def scaled_query(attention: MultiHeadAttention) -> nn.Linear:
    """Return the query projection such that q·k are the scores, which need no division by √K."""
    scaled = attention.query_with_scale()
    with torch.no_grad():
        for part in scaled.parameters():
            part.div_(math.sqrt(attention.head_size))
    return scaled
