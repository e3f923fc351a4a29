"""The section `validation` of a config: validation interval, metrics, early stopping."""

from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from pydantic import Field, model_validator

from seq2seq_cli.config.types import (
    METRICS,
    AutoOrPositiveInt,
    BleuTokenize,
    Free,
    Metric,
    MetricOnRequest,
    NonNegativeInt,
    PositiveInt,
    Section,
)

# The smallest share of references with 4-grams for which BLEU tells models apart better than chrF.
FEWEST_WITH_4_GRAMS = 0.1


class ValidationConfig(Section):
    every: Free[AutoOrPositiveInt] = "auto"
    """Interval between validations, in unit. auto: the shortest interval at which validations are
    estimated to take at most 10 % of the training time: 1 epoch, unless the text is small or the
    beam is large. A resumed run keeps the number."""
    unit: Free[Literal["epochs", "steps"]] = "epochs"
    """Unit of validation.every."""
    decode: bool = True
    """Also translate the validation text, to compute BLEU, chrF, exact match, metric and metrics.
    """
    metrics: Free[tuple[MetricOnRequest, ...]] = Field((), strict=False)
    """Further metrics of translations: chrf++; error rates, of which lower ones are better: ser (of
    symbols separated by spaces, such as phones), cer (of characters), wer (of lines: 100 -
    exact_match, the word error rate if each line is a word); and ter (translation edit rate), which
    takes seconds for sentences of 200 words."""
    lowercase: bool = False
    """Ignore case in all metrics of translations."""
    merge_references: bool = False
    """Use the targets of all lines with the same source as alternative references for it, such as
    several pronunciations of a word."""
    bleu_tokenize: BleuTokenize = "13a"
    """sacreBLEU tokenization for BLEU; use zh for Chinese and char for Japanese."""
    metric: Metric = Field(
        "auto",
        description="Metric for choosing the best model and for early stopping; ties are broken by "
        f"the validation loss. auto: bleu, or chrf if fewer than {FEWEST_WITH_4_GRAMS:.0%} of "
        "the references have at least four words (as split by bleu_tokenize), or loss if decode is "
        "false. A resumed run keeps its metric.",
    )
    patience: Free[PositiveInt | None] = None
    """Early stopping: number of validations without improvement of the metric after which training
    ends; null: no early stopping."""
    keep_best: Free[PositiveInt] = 1
    """Number of best models to keep. More than one are kept in best/, for translate --model STEP,
    and their average is scored at the end of the run; it becomes the run's model if it is better.
    """
    samples: Free[NonNegativeInt] = 5
    """Number of translations that each validation logs with their references."""
    attention: Free[bool] = False
    """At every validation, plot the attention in the first validation sentences (at most three, and
    at most samples), and log the entropy of each head on the first 100 to TensorBoard. Needs
    matplotlib and data.valid."""

    @property
    def interval(self) -> int:
        """`every` as a number."""
        assert self.every != "auto", "resolved before the first validation"
        return self.every

    @property
    def text_metrics(self) -> tuple[Metric, ...]:
        """The metrics that compare translations with references."""
        left_out = {*get_args(MetricOnRequest)} - {self.metric, *self.metrics}
        return tuple(
            name for name, facts in METRICS.items() if facts.is_of_text and name not in left_out
        )

    @property
    def needs_translations(self) -> bool:
        """Return True if the metric compares translations with references."""
        return self.metric != "auto" and METRICS[self.metric].is_of_text

    @classmethod
    def mistake(cls, option: str, value: Any, above: Mapping[str, Any]) -> str | None:
        if above.get("decode") is not False:
            return None
        if option == "metrics" and value:
            return f"{', '.join(value)} needs validation.decode: true"
        if option == "metric" and value != "auto" and METRICS[cast(Metric, value)].is_of_text:
            return f"{value} needs validation.decode: true"
        return None

    @model_validator(mode="before")
    @classmethod
    def _read_removed_option(cls, given: Any) -> Any:
        """Read `ter: true` and `ter: false`, which are in the configs of older run folders."""
        if not isinstance(given, dict) or not isinstance(given.get("ter"), bool):
            return given
        others = {name: value for name, value in given.items() if name != "ter"}
        is_computed = given["ter"] and given.get("decode") is not False
        return {"metrics": ["ter"], **others} if is_computed else others
