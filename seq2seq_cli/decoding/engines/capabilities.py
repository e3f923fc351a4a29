"""What an engine or an export that repeats the model's arithmetic can represent.

Anything else is rejected: modules that are not listed here, activations that it does not know, and
unknown options of section `model` (`ModelConfig.unknown_option`). The plain engine runs the model's
own code, which is right for every model.
"""

from collections.abc import Callable, Collection
from typing import Any

from torch import nn

from seq2seq_cli.model.attention import MultiHeadAttention, ScoreScale
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer, FeedForward, Residual
from seq2seq_cli.model.ngrams import NgramEmbedding
from seq2seq_cli.model.transformer import Transformer

# What every Transformer consists of. A subclass is another module: it may compute another thing.
_MODULES: tuple[type[nn.Module], ...] = (
    *(Transformer, EncoderLayer, DecoderLayer, MultiHeadAttention, ScoreScale, FeedForward),
    NgramEmbedding,
    *(Residual, Dropout, nn.ModuleList, nn.Embedding, nn.Linear, nn.LayerNorm, nn.Identity),
)
# What all layers must have in common, as it is read from the first one.
_OF_ALL_LAYERS: tuple[tuple[str, Any, Callable[[Any], object]], ...] = (
    ("heads", MultiHeadAttention, lambda attention: attention.heads),
    ("d_ff", FeedForward, lambda layer: layer.expand.out_features),
    ("activation", FeedForward, lambda layer: type(layer.activation)),
    ("norm", Residual, lambda residual: residual.norm_first),
    ("norm_epsilon", nn.LayerNorm, lambda norm: norm.eps),
    ("positions", EncoderLayer | DecoderLayer, lambda layer: layer.self_attention.is_rotary),
    ("rotary_cross_attention", DecoderLayer, lambda layer: layer.cross_attention.is_rotary),
)


def unknown_part(model: Transformer, activations: Collection[type[nn.Module]]) -> str | None:
    """Return the first part of a model that is not known, or None; `activations` are known."""
    for name, module in model.named_modules():
        known = activations if name.endswith("feed_forward.activation") else _MODULES
        if type(module) not in known:
            return f"{name} is {type(module).__name__}"
        if isinstance(module, nn.LayerNorm) and (module.weight is None or module.bias is None):
            return f"{name} has no weight or no bias"
        if isinstance(module, nn.GELU) and module.approximate != "none":
            return f"{name} is approximated by {module.approximate}"
    for option, kind, value_of in _OF_ALL_LAYERS:
        if len({value_of(part) for part in model.modules() if isinstance(part, kind)}) > 1:
            return f"layers differ in {option}"
    return None
