"""Scores of translations against references, with intervals and sacreBLEU's signatures.

Lines are taken apart into words or, for strings such as pronunciations, forms and formulas, into
characters or symbols. The targets of a run are strings if its metric is for strings, such as exact
match, and if their tokens are characters or symbols between spaces.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self

from seq2seq_cli.config.metrics import METRICS, RENAMED_METRICS, TEXT_METRICS, Metric
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.types import TOKENIZER_KINDS, BleuTokenize
from seq2seq_cli.config.validation import ValidationConfig
from seq2seq_cli.errors import UserError
from seq2seq_cli.metrics.references import PublicTestSet, References, Texts
from seq2seq_cli.metrics.significance import SEED, Interval, LineStatistics, interval_of
from seq2seq_cli.plugins import implementation
from seq2seq_cli.text.words import split_words
from seq2seq_cli.tokenizers.training_text import clusters


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
CLUSTERS = CHARACTERS._replace(split=clusters)  # several code points are one character


def units_of(config: Config) -> tuple[Units, Units]:
    """Return the units of sources and targets of a run, which are words unless it is of strings."""
    characters = CLUSTERS if config.tokenizer.graphemes else CHARACTERS
    units = {"words": WORDS, "characters": characters, "symbols": SYMBOLS}
    if not config.is_of_strings:
        return WORDS, WORDS
    kinds = config.tokenizer.kind
    return units[TOKENIZER_KINDS[kinds.src].units], units[TOKENIZER_KINDS[kinds.tgt].units]


class TextScore(NamedTuple):
    value: float
    signature: str | None = None  # sacreBLEU's description of the exact metric
    interval: Interval | None = None

    def __format__(self, digits: str) -> str:
        """Write the score, as in f"{score:.2f}", and ± half of its interval."""
        value = format(self.value, digits)
        return f"{value} ± {self.interval.half_width:{digits}}" if self.interval else value

    def report(self, name: str) -> dict[str, Any]:
        """Return value and interval as JSON has them."""
        interval = {f"{name}_interval": list(self.interval)} if self.interval else {}
        return {name: self.value} | interval


@dataclass(frozen=True)
class Scoring:
    """Which scores of translations are computed, and how."""

    names: tuple[Metric, ...]
    tokenize: BleuTokenize = "13a"
    lowercase: bool = False
    merge_references: bool = False  # of lines with the same source
    resamples: int = 0  # of the bootstrap, for intervals; 0: none
    test_set: PublicTestSet | None = None
    src_units: Units = WORDS
    tgt_units: Units = WORDS
    line_metric: Metric = "chrf"  # by which lines are ranked

    @classmethod
    def of(cls, options: ValidationConfig, metrics: str | None = None, **settings: Any) -> Self:
        """Return the scoring of the validations during training, or one with other metrics.

        `metrics` is a list such as `bleu,chrf++`. Raises UserError for unknown names.
        """
        names = options.text_metrics
        if metrics is not None:
            asked = [RENAMED_METRICS.get(n.strip(), n.strip()) for n in metrics.split(",")]
            if unknown := [name for name in asked if name not in TEXT_METRICS]:
                raise UserError(
                    f"there is no metric {unknown[0]} of translations (valid: "
                    f"{', '.join(TEXT_METRICS)})"
                )
            names = tuple(name for name in TEXT_METRICS if name in asked)
        merge = options.merge_references and settings.get("test_set") is None
        return cls(names, options.bleu_tokenize, options.lowercase, merge, **settings)

    @classmethod
    def of_run(cls, config: Config, metrics: str | None = None, **settings: Any) -> Self:
        """Return the scoring of a trained run, which is the scoring of its validations.

        Strings have exact match and an error rate in place of BLEU and chrF. Lines are ranked by
        the run's metric, or else by chrF, or by the error rate of strings.
        """
        src, tgt = units_of(config)
        scoring, metric = cls.of(config.validation, metrics, **settings), config.validation.metric
        names = list(scoring.names)
        if metrics is None and tgt != WORDS:
            names = [name for name in names if name not in ("bleu", "chrf")]
            names += [] if {"symbol_error_rate", "cer"} & {*names} else [tgt.error_rate]
        facts = METRICS.get(metric)  # none for auto: the run had no validation text
        if facts is None or not (facts.is_of_text and facts.ranks_lines):
            metric = "chrf" if tgt == WORDS else tgt.error_rate
        return replace(
            scoring, names=tuple(names), src_units=src, tgt_units=tgt, line_metric=metric
        )

    def signature(self, metric: Any, **settings: int) -> str | None:
        """Return the signature of a metric of sacreBLEU that has scored text, or None."""
        if not type(metric).__module__.startswith("sacrebleu."):
            return None
        signature = metric.get_signature()
        bootstrap = {"bs": self.resamples, "seed": SEED} if self.resamples else {}
        public = {"test": self.test_set.name, "lang": self.test_set.langs} if self.test_set else {}
        for key, value in (bootstrap | public | settings).items():
            signature.update(key, value)
        return signature.format(short=False)


def score_text(
    hypotheses: Texts, references: Sequence[References], scoring: Scoring
) -> dict[Metric, TextScore]:
    """Return corpus scores by name; none for empty text. The first references have all lines."""
    assert all(len(hypotheses) == len(lines) for lines in references)
    return {
        name: text_score(statistics_of(name, hypotheses, references, scoring), scoring)
        for name in (scoring.names if hypotheses else ())
    }


def statistics_of(
    name: Metric, hypotheses: Texts, references: Sequence[References], scoring: Scoring
) -> LineStatistics:
    """Return a metric's statistics of every line."""
    return LineStatistics(make_metric(name, scoring), hypotheses, references)


def text_score(statistics: LineStatistics, scoring: Scoring, **settings: int) -> TextScore:
    """Return the score of a text with these statistics; the signature will name the settings."""
    resampled = statistics.resampled_scores(scoring.resamples)
    return TextScore(
        statistics.score,
        scoring.signature(statistics.metric, **settings),
        interval_of(resampled) if scoring.resamples else None,
    )


def make_metric(name: Metric, scoring: Scoring) -> Any:
    """Return a new metric of sacreBLEU's kind."""
    scorer = METRICS[name].scorer
    assert scorer is not None, "a metric of text"
    return implementation(f"metrics.{scorer}")(scoring.tokenize, scoring.lowercase)


def word_splitter(tokenize: BleuTokenize, lowercase: bool = False) -> Callable[[str], list[str]]:
    """Return a function that splits a line into the words that BLEU counts."""
    from seq2seq_cli.metrics.scorers import bleu

    split = bleu(tokenize, lowercase).tokenizer
    return lambda line: split((line.lower() if lowercase else line).rstrip()).split()


def share_with_4_grams(references: Sequence[str], bleu_tokenize: BleuTokenize) -> float:
    """Return the fraction of lines with at least four words; no others have 4-grams for BLEU."""
    split = word_splitter(bleu_tokenize)
    return sum(len(split(line)) >= 4 for line in references) / len(references)
