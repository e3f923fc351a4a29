"""Which models the decoders for CPUs can compute; they repeat the Transformer's arithmetic.

A model with any other part is decoded by its own code, until the decoders know that part too.
"""

from collections.abc import Collection

from torch import nn

from seq2seq_cli.model.attention import MultiHeadAttention
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer, FeedForward, Residual
from seq2seq_cli.model.transformer import Transformer

_PARTS: tuple[type[nn.Module], ...] = (
    *(Transformer, EncoderLayer, DecoderLayer, MultiHeadAttention, FeedForward, Residual, Dropout),
    *(nn.ModuleList, nn.Embedding, nn.Linear, nn.LayerNorm, nn.Identity),
)


def unsupported_part(
    model: Transformer, activations: Collection[type[nn.Module]] | None = None
) -> str | None:
    """What a decoder would compute wrongly, in words; None if it would compute all of the model.

    `activations`: those that it has; None if it calls the model's own.
    """
    for name, part in model.named_modules():
        known: Collection[type[nn.Module]] = _PARTS
        if name.endswith("feed_forward.activation"):
            if activations is None:
                continue
            known = activations
        if type(part) not in known:
            return f"{name} is {type(part).__name__}"
        if isinstance(part, nn.LayerNorm) and (part.weight is None or part.bias is None):
            return f"{name} has no weight or no bias"
        if isinstance(part, nn.GELU) and part.approximate != "none":
            return f"{name} is approximated by {part.approximate}"
    return _difference_of_layers(model)


def _difference_of_layers(model: Transformer) -> str | None:
    """What is not the same in all layers, though the decoders look at the first alone."""
    parts = list(model.modules())
    attentions = [part for part in parts if isinstance(part, MultiHeadAttention)]
    feed_forwards = [part for part in parts if isinstance(part, FeedForward)]
    same: dict[str, set[object]] = {
        "heads": {attention.heads for attention in attentions},
        "d_ff": {part.expand.out_features for part in feed_forwards},
        "activation": {type(part.activation) for part in feed_forwards},
        "place of norms": {part.norm_first for part in parts if isinstance(part, Residual)},
    }
    for name, values in same.items():
        if len(values) != 1:
            return f"layers differ in {name}"
    return None
