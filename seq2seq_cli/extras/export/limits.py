"""What of a config other programs cannot represent, by format; never imports torch."""

from collections.abc import Callable
from typing import Literal

from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.text import SUBWORDS, Kinds
from seq2seq_cli.config.types import TOKENIZER_KINDS, Activation
from seq2seq_cli.decoding.engines.known_options import unsupported_option
from seq2seq_cli.tokenizers.tokenizer import Tokenizers

FormatName = Literal["ctranslate2", "huggingface", "argos"]

ACTIVATIONS: tuple[Activation, ...] = ("relu", "gelu")  # of all formats


def unsupported(
    file_format: FormatName, config: Config, tokenizers: Tokenizers | None = None
) -> str | None:
    """Return the reason why a format cannot represent a model of this config; None if it can.

    `tokenizers` are those of the run; with `tokenizer.reuse` they differ from the config.
    """
    if tokenizers is not None:
        kinds = Kinds(src=tokenizers.src.kind, tgt=tokenizers.tgt.kind)
        actual = {"shared": tokenizers.is_shared, "kind": kinds}
        tokenizer = config.tokenizer.model_copy(update=actual)
        config = config.model_copy(update={"tokenizer": tokenizer})
    return _FORMATS[file_format](config) or unsupported_option(config.model, ACTIVATIONS)


def exports(config: Config, tokenizers: Tokenizers | None = None) -> dict[FormatName, str | None]:
    """Return for every format the reason why it cannot represent the model, or None."""
    return {name: unsupported(name, config, tokenizers) for name in _FORMATS}


def exports_text(reasons: dict[FormatName, str | None]) -> str:
    """Return on one line to which formats `export` can write, and why not to the others."""
    possible = [name for name, reason in reasons.items() if reason is None]
    refused = [f"not {name}: {reason}" for name, reason in reasons.items() if reason is not None]
    return "; ".join([", ".join(possible) or "none", *refused])


def _ctranslate2(config: Config) -> str | None:
    if config.train_text.has_features and not config.model.feature_positions:
        return "model.feature_positions is false"
    if config.model.rotary_cross_attention:
        return "model.rotary_cross_attention is true"
    return None


def _huggingface(config: Config) -> str | None:
    """Marian and Pegasus have one matrix of embeddings, and no rotary positions."""
    needed = {
        "tokenizer.shared": config.tokenizer.shared,
        "model.tie_embeddings": config.model.tie_embeddings,
        "model.positions: sinusoidal": config.model.positions == "sinusoidal",
    }
    if lacking := [option for option, is_given in needed.items() if not is_given]:
        return f"it needs {' and '.join(lacking)}"
    if reason := _no_sentencepiece(config):
        return reason
    if config.train_text.has_features and not config.model.feature_positions:
        return "model.feature_positions is false"
    return None


def _no_sentencepiece(config: Config) -> str | None:
    kinds = (config.tokenizer.kind.src, config.tokenizer.kind.tgt)
    other = [kind for kind in kinds if not TOKENIZER_KINDS[kind].is_sentencepiece]
    return f"tokenizer.kind {other[0]} is not SentencePiece's" if other else None


def _argos(config: Config) -> str | None:
    kind = config.tokenizer.kind
    if reason := _no_sentencepiece(config):
        return reason
    if config.train_text.has_features:
        return "its sources have features, which Argos Translate cannot give"
    if not config.tokenizer.shared and kind.tgt in SUBWORDS and kind.src not in SUBWORDS:
        return (
            "one SentencePiece model reads the source and writes the target, but only the target's "
            "vocabulary has bytes"
        )
    return _ctranslate2(config)


_FORMATS: dict[FormatName, Callable[[Config], str | None]] = {
    "ctranslate2": _ctranslate2,
    "huggingface": _huggingface,
    "argos": _argos,
}
