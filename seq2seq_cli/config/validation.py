"""The section `validation` of a config: when a model is scored in training, and by which metric."""

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from seq2seq_cli.config.metrics import (
    METRICS,
    METRICS_ON_REQUEST,
    RENAMED_METRICS,
    TEXT_METRICS,
    Metric,
    MetricOnRequest,
)
from seq2seq_cli.config.types import (
    FREE_ON_RESUME,
    AutoOrPositiveInt,
    BleuTokenize,
    NonNegativeInt,
    PositiveInt,
    Section,
)

# The smallest share of references with 4-grams for which BLEU tells models apart better than chrF.
FEWEST_WITH_4_GRAMS = 0.1


class ValidationConfig(Section):
    every: AutoOrPositiveInt = Field(
        "auto",
        description="Interval between two validations, in unit. auto: the shortest with which "
        "validations are estimated to take at most a tenth of the time of the updates; 1 epoch, "
        "unless the text is small or the beam is large. A run keeps the number it began with.",
        json_schema_extra=FREE_ON_RESUME,
    )
    unit: Literal["epochs", "steps"] = Field(
        "epochs",
        description="Unit of the validation interval, validation.every.",
        json_schema_extra=FREE_ON_RESUME,
    )
    decode: bool = Field(
        True,
        description="Translate the validation text too, to compute BLEU, chrF and exact match, the "
        "metric if it is another one, and metrics.",
    )
    metrics: tuple[MetricOnRequest, ...] = Field(
        (),
        strict=False,
        description="Further metrics of translations: "
        + "; ".join(f"{name} ({METRICS[name].on_request})" for name in METRICS_ON_REQUEST)
        + ". Lower error rates are better.",
        json_schema_extra=FREE_ON_RESUME,
    )
    lowercase: bool = Field(False, description="Ignore case in all metrics of translations.")
    merge_references: bool = Field(
        False,
        description="Translate a source that several lines have once, with the targets of all of "
        "them as its references, such as several pronunciations of a word.",
    )
    bleu_tokenize: BleuTokenize = Field(
        "13a",
        description="sacreBLEU tokenization for BLEU; use zh for Chinese and char for Japanese.",
    )
    metric: Metric = Field(
        "auto",
        description="Metric for choosing the best model and for early stopping; ties are broken by "
        f"the validation loss. auto: bleu, or chrf if fewer than {FEWEST_WITH_4_GRAMS:.0%} of "
        "the references have at least four words (as split by bleu_tokenize), or loss if decode is "
        "false. A run keeps the metric that it began with.",
    )
    patience: PositiveInt | None = Field(
        None,
        description="Early stopping: training ends after this many validations without a better "
        "metric; null: never.",
        json_schema_extra=FREE_ON_RESUME,
    )
    keep_best: PositiveInt = Field(
        1,
        description="Best models to keep; with more than one they are in best/, for translate "
        "--model STEP, and their average is scored at the end of the run; it becomes the run's "
        "model if it is better than the best of them.",
        json_schema_extra=FREE_ON_RESUME,
    )
    samples: NonNegativeInt = Field(
        5,
        description="Translations that each validation logs beside their references.",
        json_schema_extra=FREE_ON_RESUME,
    )
    attention: bool = Field(
        False,
        description="Draw the attention in the first validation sentences (at most three, and no "
        "more than samples), and measure the entropy of each head on the first 100, at every "
        "validation, for TensorBoard. Needs matplotlib; without data.valid it has no effect.",
        json_schema_extra=FREE_ON_RESUME,
    )

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

    @property
    def needs_translations(self) -> bool:
        """True if the metric compares translations with references."""
        return self.metric != "auto" and METRICS[self.metric].is_of_text

    @field_validator("metric")
    @classmethod
    def _metric_is_measured(cls, metric: Metric, info: ValidationInfo) -> Metric:
        if metric == "auto":
            return metric
        if METRICS[metric].is_of_text and info.data.get("decode") is False:
            raise ValueError(f"{metric} needs validation.decode: true")
        return metric

    @model_validator(mode="before")
    @classmethod
    def _read_earlier_options(cls, given: Any) -> Any:
        """Read `ter: true` and metrics' former names, as run folders of earlier versions have."""
        if not isinstance(given, dict):
            return given
        read = dict(given)
        if isinstance(given.get("ter"), bool):
            is_computed = read.pop("ter") and read.get("decode") is not False
            read |= {"metrics": read.get("metrics", ["ter"])} if is_computed else {}
        if isinstance(read.get("metric"), str):
            read["metric"] = RENAMED_METRICS.get(read["metric"], read["metric"])
        if isinstance(read.get("metrics"), list | tuple):
            read["metrics"] = [
                RENAMED_METRICS.get(name, name) if isinstance(name, str) else name
                for name in read["metrics"]
            ]
        return read

    @field_validator("metrics")
    @classmethod
    def _metrics_are_measured(
        cls, metrics: tuple[MetricOnRequest, ...], info: ValidationInfo
    ) -> tuple[MetricOnRequest, ...]:
        if metrics and info.data.get("decode") is False:
            raise ValueError(f"{', '.join(metrics)} needs validation.decode: true")
        return metrics
