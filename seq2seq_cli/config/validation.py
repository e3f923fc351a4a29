"""The section `validation` of a config: when a model is scored in training, and by which metric."""

from typing import Any, Literal, get_args

from pydantic import Field, ValidationInfo, field_validator, model_validator

from seq2seq_cli.config.types import (
    FREE_ON_RESUME,
    METRICS,
    AutoOrPositiveInt,
    BleuTokenize,
    Metric,
    MetricOnRequest,
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
        description="Further metrics of translations: chrf++; error rates, of which lower ones are "
        "better: ser (of symbols separated by spaces, such as phones), cer (of characters), wer "
        "(of lines: 100 - exact_match, the word error rate if each line is a word); and ter "
        "(translation edit rate), which takes seconds for sentences of 200 words.",
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
        left_out = {*get_args(MetricOnRequest)} - {self.metric, *self.metrics}
        return tuple(
            name for name, facts in METRICS.items() if facts.is_of_text and name not in left_out
        )

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
    def _read_removed_option(cls, given: Any) -> Any:
        """Read `ter: true` and `ter: false` of earlier versions, which are in their run folders."""
        if not isinstance(given, dict) or not isinstance(given.get("ter"), bool):
            return given
        others = {name: value for name, value in given.items() if name != "ter"}
        is_computed = given["ter"] and given.get("decode") is not False
        return {"metrics": ["ter"], **others} if is_computed else others

    @field_validator("metrics")
    @classmethod
    def _metrics_are_measured(
        cls, metrics: tuple[MetricOnRequest, ...], info: ValidationInfo
    ) -> tuple[MetricOnRequest, ...]:
        if metrics and info.data.get("decode") is False:
            raise ValueError(f"{', '.join(metrics)} needs validation.decode: true")
        return metrics
