"""Which options of section `model` the engines and exports know; never imports torch."""

from collections.abc import Collection

from seq2seq_cli.config.schema import ModelConfig
from seq2seq_cli.config.types import Activation

# Options of which engines and exports support all values. The values of the others are checked one
# by one.
_OPTIONS = {
    *("d_model", "heads", "layers", "d_ff", "attention_bias", "embedding_scale", "tie_embeddings"),
    *("dropout", "attention_dropout", "activation_dropout"),
    "feature_positions",  # exports look at `Transformer.feature_ids`
    "rotary_cross_attention",  # exports look at the option itself
}
_VALUES = {
    "norm": {"pre", "post"},
    "attention_scale": {"sqrt", "none", "temperature"},
    "positions": {"sinusoidal", "rotary"},
}


def unsupported_option(
    config: ModelConfig, activations: Collection[Activation] | None = None
) -> str | None:
    """Return the first option whose name or value an engine with these activations lacks."""
    for name, value in config:
        if name == "activation":
            is_known = activations is None or value in activations
        else:
            is_known = name in _OPTIONS or value in _VALUES.get(name, ())
        if not is_known:
            return f"model.{name} is {value}"
    return None
