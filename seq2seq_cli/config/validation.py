"""The section `validation` of a config: validation interval, metrics, early stopping."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from seq2seq_cli.config.metrics import (
    METRICS,
    METRICS_ON_REQUEST,
    RENAMED_METRICS,
    TEXT_METRICS,
    Metric,
    MetricOnRequest,
)
from seq2seq_cli.config.types import (
    AutoOrPositiveInt,
    BleuTokenize,
    Free,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Section,
)

# The smallest share of references with 4-grams for which BLEU tells models apart better than chrF.
FEWEST_WITH_4_GRAMS = 0.1


def _current_name(metric: Any) -> Any:
    """Read a metric's former name, as run folders of earlier versions have."""
    return RENAMED_METRICS.get(metric, metric) if isinstance(metric, str) else metric


class ValidationConfig(Section):
    every: Free[AutoOrPositiveInt] = "auto"
    """Interval between validations, in unit. auto: the shortest interval at which validations are
    estimated to take at most 10% of the training time: 1 epoch, unless the text is small or the
    beam is large. A resumed run keeps the number."""
    unit: Free[Literal["epochs", "steps"]] = "epochs"
    """Unit of validation.every."""
    decode: bool = True
    """Also translate the validation text, to compute BLEU, chrF, exact match, metric and metrics.
    """
    metrics: Free[tuple[Annotated[MetricOnRequest, BeforeValidator(_current_name)], ...]] = Field(
        (),
        strict=False,
        description="Further metrics of translations: "
        + "; ".join(f"{name} ({METRICS[name].on_request})" for name in METRICS_ON_REQUEST)
        + ". Lower error rates are better.",
    )
    lowercase: bool = False
    """Ignore case in all metrics of translations."""
    merge_references: bool = False
    """Use the targets of all lines with the same source as alternative references for it, such as
    several pronunciations of a word."""
    bleu_tokenize: BleuTokenize = "13a"
    """sacreBLEU tokenization for BLEU; use zh for Chinese and char for Japanese."""
    metric: Annotated[Metric, BeforeValidator(_current_name)] = Field(
        "auto",
        description="Metric for choosing the best model and for early stopping; ties are broken by "
        f"the validation loss. auto: bleu, or chrf if fewer than {FEWEST_WITH_4_GRAMS:.0%} of "
        "the references have at least four words (as split by bleu_tokenize), or loss if decode is "
        "false. A resumed run keeps its metric.",
    )
    patience: Free[PositiveInt | None] = None
    """Early stopping: number of validations without improvement of the metric after which training
    ends; null: no early stopping."""
    general_tolerance: NonNegativeFloat = 1.0
    """By how much a model may become worse on data.general than before training, in units of
    metric."""
    keep_best: Free[PositiveInt] = 1
    """Number of best models to keep. If there are several, they are in best/, for translate --model
    STEP, and their average is scored at the end of the run; it becomes the run's model if it is
    better."""
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
        left_out = {*METRICS_ON_REQUEST} - {self.metric, *self.metrics}
        return tuple(name for name in TEXT_METRICS if name not in left_out)

    @classmethod
    def mistake(cls, option: str, value: Any, above: Mapping[str, Any]) -> str | None:
        if above.get("decode") is not False:
            return None
        chosen = {"metrics": value, "metric": (value,)}.get(option, ())
        of_text = ", ".join(name for name in chosen if name in TEXT_METRICS)
        return f"{of_text} needs validation.decode: true" if of_text else None

    @model_validator(mode="before")
    @classmethod
    def _read_earlier_options(cls, given: Any) -> Any:
        """Read `ter: true`, as run folders of earlier versions have."""
        if not isinstance(given, dict) or not isinstance(given.get("ter"), bool):
            return given
        read = {name: value for name, value in given.items() if name != "ter"}
        if given["ter"] and read.get("decode") is not False:
            read.setdefault("metrics", ["ter"])
        return read
