"""The section `validation` of a config: when a model is scored in training, and by which metric."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from seq2seq_cli.config.types import (
    FREE_ON_RESUME,
    METRICS,
    BleuTokenize,
    Metric,
    NonNegativeInt,
    PositiveInt,
    Section,
)

# The smallest share of references with 4-grams for which BLEU tells models apart better than chrF.
FEWEST_WITH_4_GRAMS = 0.1


class ValidationConfig(Section):
    every: PositiveInt = Field(
        1,
        description="Interval between two validations, in unit.",
        json_schema_extra=FREE_ON_RESUME,
    )
    unit: Literal["epochs", "steps"] = Field(
        "epochs",
        description="Unit of the validation interval, validation.every.",
        json_schema_extra=FREE_ON_RESUME,
    )
    decode: bool = Field(
        True,
        description="Translate the validation text too, to compute BLEU, chrF, exact match and, "
        "with ter, TER.",
    )
    ter: bool = Field(
        False,
        description="Compute the translation edit rate (TER) too; lower is better. It is slow for "
        "long sentences (seconds for 200 words).",
        json_schema_extra=FREE_ON_RESUME,
    )
    lowercase: bool = Field(False, description="Ignore case in BLEU, chrF, TER and exact match.")
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
    def text_metrics(self) -> tuple[Metric, ...]:
        """The metrics that compare translations with references."""
        asked = {self.metric, *(["ter"] if self.ter else [])}
        return tuple(
            name
            for name, facts in METRICS.items()
            if facts.is_of_text and (name in asked or not facts.on_request)
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
        if metric == "ter" and info.data.get("ter") is False:
            raise ValueError("ter needs validation.ter: true")
        return metric
