"""Translates a run's search options to those of another program."""

from collections.abc import Mapping
from typing import Any

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.schema import Config
from seq2seq_cli.tokenizers.tokenizer import Tokenizers

_LENGTHS = ("max_len_factor", "max_len_extra", "min_len_factor", "min_len_extra")
# For the best translation.
_IRRELEVANT = ("precision", "engine", "tokens_per_batch", "n_best", "seed")


def named(options: DecodingConfig, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that differ from the defaults, by the other program's names."""
    given = _given(options)
    return {theirs: given[ours] for ours, theirs in names.items() if ours in given}


def notes(
    config: Config, tokenizers: Tokenizers, names: Mapping[str, str], *, tag: str, features: str
) -> str:
    """Return what the README says of left-out options, tags and features.

    `names` are those of the other program's options; `tag` and `features` say how to give them.
    """
    parts = (_left_out(config.decoding, names), _tags(config, tag), _features(tokenizers, features))
    return "".join(parts)


def _left_out(options: DecodingConfig, names: Mapping[str, str]) -> str:
    """Return a note for the README on options that the other program lacks; usually empty."""
    known = {*names, *_LENGTHS, *_IRRELEVANT, "sampling", "tag"}
    unsupported = [f"`decoding.{name}`" for name in _given(options) if name not in known]
    return f"\nUnsupported options of the run: {', '.join(unsupported)}.\n" if unsupported else ""


def _tags(config: Config, how: str) -> str:
    """Return a note for the README on the tags of the model, and `how` to give one."""
    default = config.decoding.tag
    tags = dict.fromkeys([*config.train_text.tags, *([default] if default else [])])
    if not tags:
        return ""
    known = ", ".join(f"`{tag}`" for tag in tags)
    always = f" The run puts `{default}` before every line." if default else ""
    return f"\nThe model knows the tags {known}.{always} {how}\n"


def _features(tokenizers: Tokenizers, how: str) -> str:
    """Return a note for the README on the features of a source, and `how` to give some."""
    features = [f"`{symbol}`" for symbol in tokenizers.src.features]
    if not features:
        return ""
    return f"\nThe model knows features of a source: {', '.join(features)}. {how}\n"


def longest(options: DecodingConfig, length: str) -> str:
    """Return Python code that computes the maximum length of a translation in tokens."""
    return f"int({options.max_len_factor} * {length}) + {options.max_len_extra}"


def shortest(options: DecodingConfig, length: str) -> str:
    """Return Python code that computes the minimum length of a translation in tokens."""
    if not (options.min_len_factor or options.min_len_extra):
        return "0"
    return f"int({options.min_len_factor} * {length}) + {options.min_len_extra}"


def _given(options: DecodingConfig) -> dict[str, Any]:
    defaults = DecodingConfig()
    given = {name: value for name, value in options if value != getattr(defaults, name)}
    if not options.sampling:  # else CTranslate2 would sample
        for name in ("temperature", "top_k", "top_p"):
            given.pop(name, None)
    if options.length_penalty_formula != "power":  # the number has another meaning then
        given["length_penalty_formula"] = options.length_penalty_formula
        given.pop("length_penalty", None)
    return given
