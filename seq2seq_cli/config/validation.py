"""When and by what a model is judged while it trains: the section `validation` of a config."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from seq2seq_cli.config.types import (
    METRICS,
    BleuTokenize,
    Metric,
    NonNegativeInt,
    PositiveInt,
    Section,
)

FEWEST_WITH_4_GRAMS = 0.1  # of the references; below it chrF tells more models apart than BLEU


class ValidationConfig(Section):
    every: PositiveInt = Field(1, description="epochs or steps between two validations")
    unit: Literal["epochs", "steps"] = Field("epochs", description="the unit of every")
    decode: bool = Field(
        True, description="translate the text too, for BLEU, chrF, exact match and, with ter, TER"
    )
    ter: bool = Field(
        False,
        description="translation edit rate of the translations too, the lower the better; slow for "
        "long sentences (seconds for 200 words)",
    )
    lowercase: bool = Field(
        False, description="BLEU, chrF, TER and exact match without regard to capitals"
    )
    bleu_tokenize: BleuTokenize = Field(
        "13a", description="sacrebleu's tokenization for BLEU; zh for Chinese, char for Japanese"
    )
    metric: Metric = Field(
        "auto",
        description="the score by which the best model is chosen and early stopping decides; of "
        "equal scores the one with the lower validation loss is better; auto: bleu, or chrf if "
        f"fewer than {FEWEST_WITH_4_GRAMS:.0%} of the references have the four words (of "
        "bleu_tokenize) that BLEU counts in a row, or loss if decode is false; a run keeps its "
        "metric",
    )
    patience: PositiveInt | None = Field(
        None, description="validations without a better metric before training stops; null: never"
    )
    keep_best: PositiveInt = Field(
        1, description="best models kept; more than one are in best/, for translate --model STEP"
    )
    samples: NonNegativeInt = Field(5, description="translations shown beside their references")

    @property
    def needs_translations(self) -> bool:
        """Whether its metric is of translated text."""
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
