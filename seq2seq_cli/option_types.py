"""Kinds of values that options of a config have, and what every section is."""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

# Of what a foreign config may ask for, before it meets what there is: text, weights, memory.
_MOST = 10**12

PositiveInt = Annotated[int, Field(gt=0, le=_MOST)]
NonNegativeInt = Annotated[int, Field(ge=0, le=_MOST)]


def _in_one_message(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Instead of one for each kind of value that would be right."""
    try:
        return check(value)
    except ValidationError:
        wanted = "auto or a whole number greater than 0"
        raise ValueError(f"must be {wanted}, not {value!r}") from None


AutoOrPositiveInt = Annotated[Literal["auto"] | PositiveInt, WrapValidator(_in_one_message)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]

OnBadLine = Literal["error", "skip"]
OnNonfinite = Literal["stop", "skip"]
TokenizerKind = Literal["word", "char", "bpe", "unigram"]
Normalization = Literal["nfkc", "nfkc_cf", "identity"]
NormPlace = Literal["pre", "post"]
Activation = Literal["relu", "gelu"]
OptimizerName = Literal["adam", "adamw"]
Schedule = Literal["inverse_sqrt", "cosine", "linear", "constant"]
BleuTokenize = Literal["13a", "intl", "zh", "char", "none"]
ModelPart = Literal["embeddings", "encoder", "decoder", "projection"]
Metric = Literal["loss", "perplexity", "accuracy", "bleu", "chrf", "exact_match"]
DeviceName = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "bf16"]
DecodingPrecision = Literal["auto", "fp32", "bf16", "int8"]
LengthPenalty = Literal["power", "gnmt"]

DECODED_METRICS = ("bleu", "chrf", "exact_match")


class Section(BaseModel):
    """Frozen and strict: an unknown option or a value of another type is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
