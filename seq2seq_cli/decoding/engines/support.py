"""Checks that an engine or an export, which repeats the model's arithmetic, knows the whole model.

The Transformer's own code is right for every model. An engine accepts a model only if it knows all
options of section `model` and all modules; a new one is unknown until it is added here.
"""

from collections.abc import Collection

from torch import nn

from seq2seq_cli.config.types import Activation
from seq2seq_cli.decoding.engines.known_options import unsupported_option
from seq2seq_cli.model.attention import MultiHeadAttention
from seq2seq_cli.model.attention_scale import NoScale, SqrtScale, TemperatureScale
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer, FeedForward, Residual
from seq2seq_cli.model.transformer import Transformer

_PARTS: tuple[type[nn.Module], ...] = (
    *(Transformer, EncoderLayer, DecoderLayer, MultiHeadAttention, FeedForward, Residual, Dropout),
    *(SqrtScale, NoScale, TemperatureScale),
    *(nn.ModuleList, nn.Embedding, nn.Linear, nn.LayerNorm, nn.Identity),
)
_ACTIVATIONS: dict[Activation, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}


def unsupported_model(
    model: Transformer, activations: Collection[Activation] | None = None
) -> str | None:
    """Return the reason why an engine would compute this model wrongly, or None.

    `activations` are those that the engine has; None if it calls the model's own.
    """
    return (
        unsupported_option(model.config, activations)
        or _unsupported_part(model, activations)
        or _difference_of_layers(model)
    )


def _unsupported_part(model: Transformer, activations: Collection[Activation] | None) -> str | None:
    for name, part in model.named_modules():
        known: Collection[type[nn.Module]] = _PARTS
        if name.endswith("feed_forward.activation"):
            if activations is None:
                continue
            known = [_ACTIVATIONS[activation] for activation in activations]
        if type(part) not in known:
            return f"{name} is {type(part).__name__}"
        if isinstance(part, nn.LayerNorm) and (part.weight is None or part.bias is None):
            return f"{name} has no weight or no bias"
        if isinstance(part, nn.GELU) and part.approximate != "none":
            return f"{name} is approximated by {part.approximate}"
    return None


def _difference_of_layers(model: Transformer) -> str | None:
    """Return an option in which layers differ, as the engines read the first layer only."""
    parts = list(model.modules())
    attentions = [part for part in parts if isinstance(part, MultiHeadAttention)]
    feed_forwards = [part for part in parts if isinstance(part, FeedForward)]
    same: dict[str, set[object]] = {
        "heads": {attention.heads for attention in attentions},
        "positions": {
            part.self_attention.is_rotary
            for part in parts
            if isinstance(part, EncoderLayer | DecoderLayer)
        },
        "rotary_cross_attention": {
            part.cross_attention.is_rotary for part in parts if isinstance(part, DecoderLayer)
        },
        "d_ff": {part.expand.out_features for part in feed_forwards},
        "activation": {type(part.activation) for part in feed_forwards},
        "norm": {part.norm_first for part in parts if isinstance(part, Residual)},
    }
    for name, values in same.items():
        if len(values) != 1:
            return f"layers differ in {name}"
    return None
