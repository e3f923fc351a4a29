"""Scores of translations against references, with intervals and sacreBLEU's signatures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.types import METRICS, BleuTokenize, Metric
from seq2seq_cli.config.validation import ValidationConfig
from seq2seq_cli.errors import UserError
from seq2seq_cli.metrics.significance import (
    SEED,
    Interval,
    LineStatistics,
    References,
    Texts,
    interval_of,
)
from seq2seq_cli.metrics.test_sets import PublicTestSet
from seq2seq_cli.metrics.units import WORDS, Units, units_of


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
        names = options.text_metrics if metrics is None else _parse_metrics(metrics)
        merge = options.merge_references and settings.get("test_set") is None
        return cls(names, options.bleu_tokenize, options.lowercase, merge, **settings)

    @classmethod
    def of_run(cls, config: Config, metrics: str | None = None, **settings: Any) -> Self:
        """Return the scoring of a trained run, as its validations do, but for strings.

        Of these it has exact match and an error rate, and no overlap of n-grams. Lines are ranked
        by the run's metric, if it says how bad they are: by chrF, or the error rate of strings, for
        one that only says whether a line is right, and by chrF for one without translations.
        """
        src, tgt = units_of(config)
        scoring, metric = cls.of(config.validation, metrics, **settings), config.validation.metric
        names = list(scoring.names)
        if metrics is None and tgt != WORDS:
            names = [name for name in names if name not in ("bleu", "chrf")]
            names += [] if {"ser", "cer"} & {*names} else [tgt.error_rate]
        if not METRICS[metric].is_of_text or metric in ("exact_match", "wer"):
            metric = "chrf" if tgt == WORDS else tgt.error_rate
        return replace(
            scoring, names=tuple(names), src_units=src, tgt_units=tgt, line_metric=metric
        )

    def signature(self, name: Metric, metric: Any, **settings: int) -> str | None:
        """Return sacreBLEU's signature of a metric that has scored text; None if it is not its."""
        if not METRICS[name].is_of_sacrebleu:
            return None
        signature = metric.get_signature()
        bootstrap = {"bs": self.resamples, "seed": SEED} if self.resamples else {}
        public = {"test": self.test_set.name, "lang": self.test_set.langs} if self.test_set else {}
        for key, value in (bootstrap | public | settings).items():
            signature.update(key, value)
        text: str = signature.format(short=False)
        return text


def score_text(
    hypotheses: Texts, references: Sequence[References], scoring: Scoring
) -> dict[Metric, TextScore]:
    """Return corpus scores by name; none for empty text.

    `references` holds one translation or more of the text, the first of the whole text.
    """
    assert all(len(hypotheses) == len(lines) for lines in references)
    return {
        name: text_score(name, statistics_of(name, hypotheses, references, scoring), scoring)
        for name in (scoring.names if hypotheses else ())
    }


def statistics_of(
    name: Metric, hypotheses: Texts, references: Sequence[References], scoring: Scoring
) -> LineStatistics:
    """Return a metric's statistics of every line."""
    return LineStatistics(make_metric(name, scoring), hypotheses, references)


def text_score(
    name: Metric, statistics: LineStatistics, scoring: Scoring, **settings: int
) -> TextScore:
    """Return the score of a text with these statistics; the signature will name the settings."""
    resampled = statistics.resampled_scores(scoring.resamples)
    return TextScore(
        statistics.score,
        scoring.signature(name, statistics.metric, **settings),
        interval_of(resampled) if scoring.resamples else None,
    )


def make_metric(name: Metric, scoring: Scoring) -> Any:
    """Return a new metric of sacreBLEU's kind."""
    return TEXT_METRICS[name](scoring.tokenize, scoring.lowercase)


def make_line_metric(name: Metric, scoring: Scoring) -> Any:
    """Return a new metric of sacreBLEU's kind that scores single lines."""
    metric = make_metric(name, scoring)
    if name == "bleu":
        metric.effective_order = True  # a short line has no 4-grams
    return metric


def _bleu(tokenize: BleuTokenize, lowercase: bool) -> Any:
    """Papineni et al. 2002."""
    from sacrebleu.metrics.bleu import BLEU

    # With "none" the text is meant to be tokenized already: sacreBLEU need not warn of that.
    return BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")


def _chrf(_: BleuTokenize, lowercase: bool) -> Any:
    """chrF2 (Popović 2015)."""
    from sacrebleu.metrics.chrf import CHRF

    return CHRF(lowercase=lowercase)


def _chrf_plus_plus(_: BleuTokenize, lowercase: bool) -> Any:
    """chrF2++, with words and pairs of words (Popović 2017)."""
    from sacrebleu.metrics.chrf import CHRF

    return CHRF(lowercase=lowercase, word_order=2)


def _ter(tokenize: BleuTokenize, lowercase: bool) -> Any:
    """Edits per reference word (Snover et al. 2006), or per character of CJK text."""
    from sacrebleu.metrics.ter import TER

    is_spaceless = tokenize in ("zh", "char")
    return TER(normalized=is_spaceless, asian_support=is_spaceless, case_sensitive=not lowercase)


def _exact_match(_: BleuTokenize, lowercase: bool) -> Any:
    from seq2seq_cli.metrics.exact_match import ExactMatch

    return ExactMatch(lowercase)


def _ser(_: BleuTokenize, lowercase: bool) -> Any:
    """Edits per 100 symbols, which are separated by white space."""
    from seq2seq_cli.metrics.error_rates import ErrorRate

    return ErrorRate(str.split, lowercase)


def _cer(_: BleuTokenize, lowercase: bool) -> Any:
    """Edits per 100 characters; spaces between words count."""
    from seq2seq_cli.metrics.error_rates import ErrorRate

    return ErrorRate(str, lowercase)


def _wer(_: BleuTokenize, lowercase: bool) -> Any:
    from seq2seq_cli.metrics.error_rates import WordErrorRate

    return WordErrorRate(lowercase)


TEXT_METRICS: dict[Metric, Callable[[BleuTokenize, bool], Any]] = {
    "bleu": _bleu,
    "chrf": _chrf,
    "chrf++": _chrf_plus_plus,
    "ter": _ter,
    "exact_match": _exact_match,
    "ser": _ser,
    "cer": _cer,
    "wer": _wer,
}


def word_splitter(tokenize: BleuTokenize, lowercase: bool = False) -> Callable[[str], list[str]]:
    """Return a function that splits a line into the words that BLEU counts."""
    split = _bleu(tokenize, lowercase).tokenizer
    return lambda line: split((line.lower() if lowercase else line).rstrip()).split()


def _parse_metrics(text: str) -> tuple[Metric, ...]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in TEXT_METRICS:
            raise UserError(
                f"there is no metric {name} of translations (valid: {', '.join(TEXT_METRICS)})"
            )
    return tuple(name for name in TEXT_METRICS if name in names)


def share_with_4_grams(references: Sequence[str], bleu_tokenize: BleuTokenize) -> float:
    """Return the fraction of lines with at least four words; no others have 4-grams for BLEU."""
    split = word_splitter(bleu_tokenize)
    return sum(len(split(line)) >= 4 for line in references) / len(references)
