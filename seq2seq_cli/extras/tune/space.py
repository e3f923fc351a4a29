"""What `seq2seq tune` searches: options of the config, each in a range or among choices."""

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from seq2seq_cli.config.loader import flatten, yaml_text, yaml_value
from seq2seq_cli.config.metrics import METRICS
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.tokenizer import SUBWORDS
from seq2seq_cli.errors import UserError, short

_LOG_FROM = 10  # times its low end, from which a range is searched on a logarithmic scale
_DIGITS = 3  # of a number that is tried
# What is scored, and how. Normalization of the target changes references.
_OF_SCORES = (
    *("validation.", "data.valid", "data.general", "data.direction", "data.on_bad_line"),
    "tokenizer.normalization",
)

Check = Callable[[str], object]  # raises UserError if the config does not take `section.key=value`


# What is searched of an option unless the user says something else, and why.
DEFAULTS = {
    "tokenizer.vocab_size": (
        "x0.5..x2",
        "a small corpus has few examples of each piece; a large one needs more pieces",
    ),
    "model.layers.encoder": ("x1..x2", "a deep encoder makes up for a shallow decoder"),
    "model.layers.decoder": ("x0.5..x1", "decoding takes most of the translation time"),
    "model.dropout": ("0..0.4", "less text needs more dropout"),
    "model.attention_dropout": ("0..0.2", "additional dropout on attention weights"),
    "model.activation_dropout": ("0..0.2", "additional dropout in feed-forward layers"),
    "training.tokens_per_batch": ("x0.5..x2", "the best learning rate depends on it"),
    "training.lr": ("x0.25..x4", "matters most; depends on optimizer, batch size and run length"),
    "training.warmup_steps": ("x0.5..x2", "high rates need a longer warm-up"),
    "training.weight_decay": ("0.0,0.01,0.1", "0, or several orders of magnitude"),
    "training.label_smoothing": ("0..0.2", "most papers use 0.1"),
    "training.ema_decay": ("null,0.99,0.999", "long averages suit long runs"),
    "training.subword_sampling": ("null,0.1,0.2", "more variety for little text"),
}


@dataclass(frozen=True)
class Option:
    """An option that is searched; its values are texts, as in `--set`."""

    name: str
    choices: tuple[str, ...] = ()  # none: a range
    low: float = 0.0
    high: float = 0.0
    is_whole: bool = False  # whether the range has whole numbers only

    @property
    def is_log(self) -> bool:
        return self.low > 0 and self.high >= _LOG_FROM * self.low

    @property
    def values(self) -> str:
        """What is searched, as the user writes it."""
        return ",".join(self.choices) or f"{self.low:g}..{self.high:g}"

    def text_of(self, value: float | str) -> str:
        """Return a choice, or a number of the range with few digits."""
        if self.is_whole or isinstance(value, str):
            return str(value)
        return yaml_text(min(max(float(f"{value:.{_DIGITS}g}"), self.low), self.high))

    def value_of(self, text: str) -> float | str | None:
        """Return the choice or number that a text stands for; None if it is not searched."""
        if self.choices:
            return text if text in self.choices else None
        try:
            number = int(text) if self.is_whole else float(text)
        except ValueError:
            return None
        return number if self.low <= number <= self.high else None


def search_space(given: Sequence[str], config: Config, check: Check) -> list[Option]:
    """Return the options to search: the given ones, or all of `DEFAULTS` that the config takes.

    Raises UserError for a mistake in a given one.
    """
    if given:
        options = [parse(one, config, check) for one in given]
        for one, other in itertools.permutations((option.name for option in options), 2):
            if f"{one}.".startswith(f"{other}."):
                raise UserError(f"--search {one} and --search {other} set the same option")
        return options
    options = []
    for name in DEFAULTS:
        if name == "tokenizer.vocab_size" and config.tokenizer.kind.tgt not in SUBWORDS:
            continue  # all words or characters are learned
        with suppress(UserError):  # `auto`, or an option of other tokenizers or optimizers
            options.append(parse(name, config, check))
    return options


def parse(given: str, config: Config, check: Check) -> Option:
    """Read `KEY=LOW..HIGH`, `KEY=A,B,C`, or a `KEY` of `DEFAULTS`. Raises UserError for mistakes.

    An end of a range may be a factor of the config's value: `x0.5..x2`.
    """
    name, equals, text = (part.strip() for part in given.partition("="))
    shown = f"--search {short(given)}"
    if not equals and name in DEFAULTS:
        text, _ = DEFAULTS[name]
    if "." not in name or not text:
        raise UserError(f"{shown}: write it as section.key=LOW..HIGH or section.key=A,B,C")
    if name.startswith(_OF_SCORES):
        raise UserError(f"{shown}: all trials must be scored alike")
    metric = config.validation.metric
    is_of_text = config.validation.decode if metric == "auto" else METRICS[metric].is_of_text
    if name.startswith("tokenizer.") and not is_of_text:
        raise UserError(
            f"{shown}: scores per token of different vocabularies cannot be compared; choose "
            "another validation.metric, such as bleu or chrf"
        )
    if name == "data.max_length" and not is_of_text:
        raise UserError(
            f"{shown}: loss, perplexity and accuracy leave out pairs of more than 8 times as many "
            "tokens; choose another validation.metric, such as bleu or chrf"
        )
    try:
        option = _option(name, text, config, check)
        for value in option.choices or (option.text_of(option.low), option.text_of(option.high)):
            check(f"{name}={value}")
    except UserError as error:
        raise UserError(f"{shown}: {error}") from None
    return option


def _option(name: str, text: str, config: Config, check: Check) -> Option:
    """Return an option with the choices, or in the range, of a text. Raises UserError."""
    if ".." not in text:
        choices = tuple(dict.fromkeys(map(yaml_text, yaml_value(f"[{text}]", text))))
        if len(choices) < 2:
            raise UserError("give at least two values, or a range such as 0.1..0.3")
        return Option(name, choices)
    own = own_value(name, config)
    if own is None:
        check(f"{name}=1")
    low, high = (_end(end.strip(), own or "several values") for end in text.split("..", 1))
    if not -math.inf < low < high < math.inf:
        raise UserError(f"{low:g} is not lower than {high:g}")
    is_whole = float(low).is_integer() and float(high).is_integer()
    if is_whole:
        try:
            check(f"{name}={low + 0.5}")
            is_whole = False
        except UserError:
            low, high = int(low), int(high)
    return Option(name, (), low, high, is_whole)


def _end(text: str, own: str) -> float:
    """Return an end of a range, for the config's value as YAML, which it may be a factor of."""
    try:
        if not text.startswith("x"):
            return float(text)
        factor = float(text[1:])
    except ValueError:
        raise UserError(f"{text!r} is not a number") from None
    given = yaml_value(own, text)  # one number for both sides
    if type(given) not in (int, float):
        raise UserError(f"{text} needs a number to multiply, but the config has {own}")
    product = float(factor * given)
    return round(product) if isinstance(given, int) and math.isfinite(product) else product


def own_values(options: Sequence[Option], config: Config) -> dict[str, str]:
    """Return the values that the config itself has for the options."""
    own = {option.name: own_value(option.name, config) for option in options}
    return {name: value for name, value in own.items() if value is not None}


def own_value(name: str, config: Config) -> str | None:
    """Return the config's value of an option, or of all in a group, as YAML; None for several."""
    values = flatten(config)
    texts = {yaml_text(values[n]) for n in values if n == name or n.startswith(f"{name}.")}
    return texts.pop() if len(texts) == 1 else None
