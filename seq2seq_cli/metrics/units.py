"""The units of a task's lines: words, or the characters or symbols of strings.

Strings are pronunciations, forms and formulas. The targets of a run are strings if its metric is
for strings, such as exact match, and if their tokens are characters or symbols between spaces.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import regex

from seq2seq_cli.config.metrics import METRICS, Metric
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.types import TOKENIZER_KINDS
from seq2seq_cli.text.words import split_words

_CLUSTER = regex.compile(r"\X")  # Unicode Standard Annex 29


def spaced(line: str, *, lowercase: bool) -> str:
    """Return a line with single spaces, as lines are compared."""
    return " ".join((line.lower() if lowercase else line).split())


class Units(NamedTuple):
    """How lines are taken apart."""

    name: Literal["words", "characters", "symbols"]
    split: Callable[[str], list[str]]
    between: str  # two of them
    error_rate: Metric


WORDS = Units("words", split_words, " ", "symbol_error_rate")
SYMBOLS = Units("symbols", str.split, " ", "symbol_error_rate")
CHARACTERS = Units("characters", list, "", "cer")
CLUSTERS = CHARACTERS._replace(split=_CLUSTER.findall)  # several code points are one character


def units_of(config: Config) -> tuple[Units, Units]:
    """Return the units of sources and targets of a run, which are words unless it is of strings."""
    characters = CLUSTERS if config.tokenizer.graphemes else CHARACTERS
    units = {"words": WORDS, "characters": characters, "symbols": SYMBOLS}
    kinds, metric = config.tokenizer.kind, METRICS.get(config.validation.metric)  # none for auto
    src, tgt = (units[TOKENIZER_KINDS[kind].units] for kind in (kinds.src, kinds.tgt))
    return (src, tgt) if tgt != WORDS and metric and metric.is_of_strings else (WORDS, WORDS)
