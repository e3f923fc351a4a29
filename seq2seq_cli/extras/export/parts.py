"""Checks that an export, which repeats the model's arithmetic, knows every module of a model."""

from collections.abc import Collection

from torch import nn

from seq2seq_cli.model.attention import MultiHeadAttention
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer, FeedForward, Residual
from seq2seq_cli.model.transformer import Transformer

# What every Transformer is made of. Norms, activations and attention scales are each format's own.
STRUCTURE: tuple[type[nn.Module], ...] = (
    *(Transformer, EncoderLayer, DecoderLayer, MultiHeadAttention, FeedForward, Residual, Dropout),
    *(nn.ModuleList, nn.Embedding, nn.Linear, nn.Identity),
)


def unknown_part(model: Transformer, known: Collection[type[nn.Module]]) -> str | None:
    """Return which module has none of the known types, or that layers differ; else None.

    Subclasses count as unknown: they may compute something else.
    """
    for name, part in model.named_modules():
        if type(part) not in known:
            return f"{name} is {type(part).__name__}"
        if isinstance(part, nn.LayerNorm) and (part.weight is None or part.bias is None):
            return f"{name} has no weight or no bias"
        if isinstance(part, nn.GELU) and part.approximate != "none":
            return f"{name} is approximated by {part.approximate}"
    options: dict[str, set[object]] = {}  # that the other program has once for all layers
    for part in model.modules():
        of_part: dict[str, object] = {}
        if isinstance(part, MultiHeadAttention):
            of_part = {"heads": part.heads}
        elif isinstance(part, EncoderLayer | DecoderLayer):
            of_part = {"positions": part.self_attention.is_rotary}
            if isinstance(part, DecoderLayer):
                of_part["rotary_cross_attention"] = part.cross_attention.is_rotary
        elif isinstance(part, FeedForward):
            of_part = {"d_ff": part.expand.out_features, "activation": type(part.activation)}
        elif isinstance(part, Residual):
            of_part = {"norm": part.norm_first}
        for name, value in of_part.items():
            options.setdefault(name, set()).add(value)
    return next(
        (f"layers differ in {name}" for name, values in options.items() if len(values) > 1), None
    )
