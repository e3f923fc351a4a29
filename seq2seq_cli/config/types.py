"""The value types of options, and the base class of sections."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_serializer,
)

from seq2seq_cli.errors import short

T = TypeVar("T")

_MAX_INT = 2**31 - 1  # larger numbers overflow in arrays and other libraries

PositiveInt = Annotated[int, Field(gt=0, le=_MAX_INT)]
NonNegativeInt = Annotated[int, Field(ge=0, le=_MAX_INT)]
UpToThousand = Annotated[int, Field(gt=0, le=1_000)]


def _auto_or(wanted: str) -> WrapValidator:
    """Replace pydantic's messages for the alternatives of a union with a single one."""

    def validate(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        try:
            return check(value)
        except ValidationError:
            raise ValueError(
                f"must be auto or {wanted}, not {short(repr(value))}{without_quotes(value)}"
            ) from None

    return WrapValidator(validate)


def without_quotes(value: Any) -> str:
    """Return what to do about a number, true or false in quotes; nothing for other values."""
    is_quoted = isinstance(value, str) and re.fullmatch(
        r"-?\d+(\.\d+)?([eE][-+]?\d+)?|true|false", value
    )
    return ": write it without quotes" if is_quoted else ""


def one_for_all(*names: str) -> Callable[[Any], Any]:
    """Accept a single value in place of a section: all of its options have it."""
    return lambda value: (
        value if isinstance(value, dict | BaseModel) else dict.fromkeys(names, value)
    )


Seed = Annotated[int, Field(ge=0, lt=2**63)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Factor = Annotated[float, Field(ge=0, le=100)]
Auto = Literal["auto"]
AutoOrPositiveInt = Annotated[Auto | PositiveInt, _auto_or("a whole number greater than 0")]
AutoOrNonNegativeInt = Annotated[Auto | NonNegativeInt, _auto_or("a whole number of at least 0")]
AutoOrVocabSize = Annotated[
    Auto | Annotated[int, Field(ge=8, le=10_000_000)],
    _auto_or("a whole number from 8 to 10,000,000"),
]
AutoOrThousand = Annotated[Auto | UpToThousand, _auto_or("a whole number from 1 to 1,000")]
AutoOrTenThousand = Annotated[
    Auto | Annotated[int, Field(gt=0, le=10_000)], _auto_or("a whole number from 1 to 10,000")
]
AutoOrLengthPenalty = Annotated[
    Auto | Annotated[float, Field(ge=0, le=10)], _auto_or("a number from 0 to 10")
]
AutoOrFactor = Annotated[Auto | Factor, _auto_or("a number from 0 to 100")]
Probability = Annotated[float, Field(ge=0, lt=1)]

OnBadLine = Literal["error", "skip"]
Direction = Literal["forward", "reverse", "both"]
Side = Literal["src", "tgt"]
SIDES: tuple[Side, Side] = ("src", "tgt")
TokenizerKind = Literal[
    "word", "char", "bpe", "unigram", "spm_vocab"
]  # a line of TOKENIZER_KINDS each
Normalization = Literal["nfkc", "nfkc_cf", "nfd", "identity"]
NormPosition = Literal["pre", "post"]
AttentionScale = Literal["sqrt", "none", "temperature"]
Activation = Literal["relu", "gelu", "silu"]
Positions = Literal["sinusoidal", "rotary"]
OptimizerName = Literal["adam", "adamw", "schedule_free_adamw", "muon"]
PresetName = Literal["auto", "none", "small", "medium", "large", "fine_tuning"]
Schedule = Literal["inverse_sqrt", "cosine", "linear", "constant"]
BleuTokenize = Literal["13a", "intl", "zh", "char", "none"]
ModelPart = Literal["embeddings", "encoder", "decoder", "projection"]
DeviceName = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "bf16"]
DecodingPrecision = Literal["auto", "fp32", "bf16", "int8"]
EngineName = Literal["auto", "native", "plain"]
LengthPenalty = Literal["power", "gnmt"]


class TokenizerFacts(NamedTuple):
    """What is known of a kind of tokenizer; `tokenizer` names its class.

    A kind of subwords has bytes, so that no character of any script is lost. Other vocabularies
    are closed: anything unseen in training becomes <unk>.
    """

    tokenizer: str  # as `package.module.name`
    units: Literal["words", "characters", "symbols"] = "words"  # that its tokens or texts are of
    has_subwords: bool = False

    @property
    def is_sentencepiece(self) -> bool:
        return self.tokenizer == _SENTENCEPIECE


_SENTENCEPIECE = "tokenizers.sentencepiece_tokenizer.SentencePieceTokenizer"
TOKENIZER_KINDS: dict[TokenizerKind, TokenizerFacts] = {
    "word": TokenizerFacts(_SENTENCEPIECE, "symbols"),
    "char": TokenizerFacts(_SENTENCEPIECE, "characters"),
    "bpe": TokenizerFacts(_SENTENCEPIECE, has_subwords=True),
    "unigram": TokenizerFacts(_SENTENCEPIECE, has_subwords=True),
    "spm_vocab": TokenizerFacts("extras.convert.spm_vocab_tokenizer.SpmVocabTokenizer"),
}

# Whether a run may be resumed with another value of an option: free; ask: only with
# `--allow-changed`; fixed: never, as it would change the meaning of the weights or the data order.
OnResume = Literal["free", "ask", "fixed"]
Free = Annotated[T, Field(json_schema_extra={"on_resume": "free"})]
Ask = Annotated[T, Field(json_schema_extra={"on_resume": "ask"})]
Fixed = Annotated[T, Field(json_schema_extra={"on_resume": "fixed"})]


class Section(BaseModel):
    """A frozen, strict model: unknown options and values of another type are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    on_resume: ClassVar[OnResume] = "ask"  # for options without a policy of their own

    @classmethod
    def resume_policy(cls, name: str) -> OnResume:
        """Return the policy of one of the section's own options."""
        extra = cls.model_fields[name].json_schema_extra
        return cast(OnResume, extra["on_resume"]) if isinstance(extra, dict) else cls.on_resume

    @classmethod
    def mistake(cls, option: str, value: Any, above: Mapping[str, Any]) -> str | None:
        """Return what is wrong with an option, given the valid options above it in the section."""
        return None

    def resolved(self, **values: Any) -> Self:
        """Return the section with these values of options that are `auto`."""
        found = {name: value for name, value in values.items() if getattr(self, name) == "auto"}
        return self.model_copy(update=found)

    @field_validator("*")
    @classmethod
    def _has_no_mistake(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        if mistake := cls.mistake(info.field_name, value, info.data):
            raise ValueError(mistake)
        return value


class BySide(BaseModel, Generic[T]):
    """The values of an option for both sides, written as one if they are equal."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    src: T
    """Value for the source."""
    tgt: T
    """Value for the target."""

    def of(self, side: Side) -> T:
        return self.src if side == "src" else self.tgt

    @model_serializer
    def _as_given(self) -> Any:
        return self.src if self.src == self.tgt else {"src": self.src, "tgt": self.tgt}


def inner_sections(value: Any) -> dict[str, Section]:
    """Return the sections in the value of an option, by the suffix of their names.

    The suffix is empty for a single section; several in a tuple have `.0`, `.1` and so on.
    """
    if isinstance(value, Section):
        return {"": value}
    sections = value if isinstance(value, tuple) else ()
    if not sections or not all(isinstance(section, Section) for section in sections):
        return {}
    numbered = {f".{number}": section for number, section in enumerate(sections)}
    return numbered if len(sections) > 1 else {"": sections[0]}
