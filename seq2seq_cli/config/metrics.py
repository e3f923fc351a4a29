"""The table of metrics. Scoring is in the package `metrics`."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias


class MetricFacts(NamedTuple):
    """What is known of a metric; `scorer` names the class or function in `metrics/` that makes it.

    Every validation computes a metric of text unless it is `on_request`.
    """

    unit: str
    scorer: str | None = None  # as `module.name`; None: computed without translations
    higher_is_better: bool = True
    on_request: str = ""  # what it measures, for the help of `validation.metrics`
    is_of_strings: bool = False  # suits pronunciations, forms and other strings
    ranks_lines: bool = True  # says how bad a line is, not only whether it is right

    @property
    def is_of_text(self) -> bool:
        """True if it compares translations, which must be made first."""
        return self.scorer is not None


# Every metric: the config, the options of commands, and scoring read this table.
METRICS: dict[str, MetricFacts] = {
    "loss": MetricFacts("nats per target token", higher_is_better=False),
    "perplexity": MetricFacts("exp(loss)", higher_is_better=False),
    "accuracy": MetricFacts("% of target tokens"),
    "bleu": MetricFacts("0 to 100", "scorers.bleu"),
    "chrf": MetricFacts("0 to 100", "scorers.chrf"),
    "chrf++": MetricFacts(
        "0 to 100", "scorers.chrf_plus_plus", on_request="chrF with pairs of words"
    ),
    "ter": MetricFacts(
        "% of reference words",
        "scorers.ter",
        higher_is_better=False,
        on_request="translation edit rate, which takes seconds for sentences of 200 words",
    ),
    "exact_match": MetricFacts(
        "% of lines", "scorers.ExactMatch", is_of_strings=True, ranks_lines=False
    ),
    "symbol_error_rate": MetricFacts(
        "% of reference symbols",
        "scorers.SymbolErrorRate",
        higher_is_better=False,
        on_request="edits per symbol, such as phones, which spaces separate",
        is_of_strings=True,
    ),
    "cer": MetricFacts(
        "% of reference characters",
        "scorers.CharacterErrorRate",
        higher_is_better=False,
        on_request="character error rate",
        is_of_strings=True,
    ),
    "exact_match_error": MetricFacts(
        "% of lines",
        "scorers.ExactMatchError",
        higher_is_better=False,
        on_request="100 - exact_match, the word error rate where each line is a word",
        is_of_strings=True,
        ranks_lines=False,
    ),
}
TEXT_METRICS = tuple(name for name, facts in METRICS.items() if facts.is_of_text)
METRICS_ON_REQUEST = tuple(name for name, facts in METRICS.items() if facts.on_request)

# Names of earlier versions, and the phone error rate, which are read in configs, scores of weights,
# and options.
RENAMED_METRICS = dict.fromkeys(("ser", "per"), "symbol_error_rate") | {"wer": "exact_match_error"}
_RENAMED_SCORES = {f"valid/{old}": f"valid/{new}" for old, new in RENAMED_METRICS.items()}


def with_current_names(point: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of metrics.jsonl, which an earlier version may have written."""
    return {_RENAMED_SCORES.get(name, name): value for name, value in point.items()}


if TYPE_CHECKING:
    Metric: TypeAlias = str
    MetricOnRequest: TypeAlias = str
else:
    Metric = Literal[("auto", *METRICS)]
    MetricOnRequest = Literal[METRICS_ON_REQUEST]
