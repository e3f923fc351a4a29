"""How a run searches, for another program: options by its names, and what it does not have."""

from collections.abc import Mapping
from typing import Any

from seq2seq_cli.config.decoding import DecodingConfig

_LENGTHS = ("max_len_factor", "max_len_extra", "min_len_factor", "min_len_extra")
_OF_NO_MATTER = ("precision", "tokens_per_batch", "n_best", "seed")  # to what a translation is


def named(options: DecodingConfig, names: Mapping[str, str]) -> dict[str, Any]:
    """The options that differ from the defaults, by what the other program calls them."""
    given = _given(options)
    return {theirs: given[ours] for ours, theirs in names.items() if ours in given}


def left_out(options: DecodingConfig, names: Mapping[str, str]) -> str:
    """What a README says of the options that the other program does not have; mostly nothing."""
    known = {*names, *_LENGTHS, *_OF_NO_MATTER, "sampling"}
    others = [f"`decoding.{name}`" for name in _given(options) if name not in known]
    return f"\nNot taken along from the run: {', '.join(others)}.\n" if others else ""


def longest(options: DecodingConfig, length: str) -> str:
    """Python that computes the greatest length of a translation, in tokens, from the source's."""
    return f"int({options.max_len_factor} * {length}) + {options.max_len_extra}"


def shortest(options: DecodingConfig, length: str) -> str:
    """And its least length."""
    if not (options.min_len_factor or options.min_len_extra):
        return "0"
    return f"int({options.min_len_factor} * {length}) + {options.min_len_extra}"


def _given(options: DecodingConfig) -> dict[str, Any]:
    defaults = DecodingConfig()
    given = {name: value for name, value in options if value != getattr(defaults, name)}
    if not options.sampling:  # they mean nothing then, but would make CTranslate2 draw
        for name in ("temperature", "top_k", "top_p"):
            given.pop(name, None)
    if options.length_penalty_formula != "power":  # the number means something else
        given["length_penalty_formula"] = options.length_penalty_formula
        given.pop("length_penalty", None)
    return given
