"""What an engine or an export that repeats the model's arithmetic can represent.

Anything else is rejected: each lists the modules and the options of section `model` that it knows.
The plain engine runs the model's own code, which is right for every model.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seq2seq_cli.model.attention import MultiHeadAttention, ScoreScale, rotations
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer, FeedForward, Residual
from seq2seq_cli.model.transformer import Transformer

# What every Transformer consists of today. An engine or export that knows another adds it.
MODULES: tuple[type[nn.Module], ...] = (
    *(Transformer, EncoderLayer, DecoderLayer, MultiHeadAttention, ScoreScale, FeedForward),
    *(Residual, Dropout, nn.ModuleList, nn.Embedding, nn.Linear, nn.LayerNorm, nn.Identity),
)
# The options of section `model` of which engines know all values, with None in place of values.
ALL_VALUES: Mapping[str, None] = {
    **dict.fromkeys(("d_model", "heads", "layers", "d_ff", "activation", "attention_bias")),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout")),
    **dict.fromkeys(("embedding_scale", "tie_embeddings")),
    **dict.fromkeys(("feature_positions", "rotary_cross_attention")),
}
# What all layers must have in common, as it is read from the first one.
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

    modules: Collection[type[nn.Module]]  # a subclass is another one: it may compute another thing
    activations: Collection[type[nn.Module]] | None  # None: it calls the model's own
    # Of section `model`, with their values; None: all values, or not checked here.
    options: Mapping[str, Collection[object] | None] | None = None

    def missing(self, model: Transformer) -> str | None:
        """Return the first option or module that is not known, or None."""
        if self.options is not None:
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
        self._model = model
        self._table = self._first(1)

    def up_to(self, length: int) -> Tensor:
        """Return at least the first `length` positions."""
        table = self._table  # another thread may replace it by a shorter one
        if length > len(table):
            table = self._table = self._first(2 * length)
        return table

    def of_sources(self, src_BS: Tensor) -> Tensor | None:
        """Return the position of every token of the sources; None: 0, 1, 2, ...."""
        return self._model.source_positions(src_BS)

    def _first(self, length: int) -> Tensor:
        vectors_TD = self._model.position_vectors(0, length)
        config, cpu = self._model.config, torch.device("cpu")
        head_size = config.d_model // config.heads
        return rotations(0, length, head_size, cpu) if vectors_TD is None else vectors_TD


def scaled_query(attention: MultiHeadAttention) -> nn.Linear:
    """Return the query projection such that q·k are the scores, which need no division by √K."""
    scaled = attention.query_with_scale()
    with torch.no_grad():
        for part in scaled.parameters():
            part.div_(math.sqrt(attention.head_size))
    return scaled
