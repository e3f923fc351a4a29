"""How translations are searched for: the section `decoding` of a config."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from seq2seq_cli.config.types import (
    DecodingPrecision,
    EngineName,
    Factor,
    LengthPenalty,
    NonNegativeInt,
    PositiveInt,
    Section,
    Seed,
    UpToThousand,
)


class DecodingConfig(Section):
    beam_size: UpToThousand = Field(1, description="hypotheses of a beam search; 1: greedy search")
    length_penalty: Annotated[float, Field(ge=0, le=10)] = Field(
        1.0, description="exponent of length normalization in beam search; 0: none"
    )
    length_penalty_formula: LengthPenalty = Field(
        "power",
        description="log-probability over length^a (power), or over ((5 + length) / 6)^a (gnmt)",
    )
    n_best: UpToThousand = Field(
        1, description="translations of each sentence: of the beam, or samples"
    )
    diversity_groups: PositiveInt = Field(
        1, description="groups that a beam is divided into, each avoiding what others choose"
    )
    diversity_penalty: Factor = Field(
        0.5, description="what a token costs for each time that other groups have just chosen it"
    )
    sampling: bool = Field(False, description="draw tokens by chance instead of searching")
    temperature: Annotated[float, Field(ge=1e-6, le=1_000)] = Field(
        1.0, description="softmax temperature of sampling; below 1: nearer to greedy"
    )
    top_k: PositiveInt | None = Field(None, description="sample from so many tokens; null: all")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="sample from the likeliest tokens that have this probability together"
    )
    seed: Seed = Field(1, description="random seed of sampling")
    max_len_factor: Factor = Field(
        2.0, description="a translation has at most factor x source tokens + max_len_extra tokens"
    )
    max_len_extra: Annotated[int, Field(gt=0, le=10_000)] = Field(
        20, description="see max_len_factor"
    )
    min_len_factor: Factor = Field(
        0.0, description="shortest translation: factor x source tokens + min_len_extra tokens"
    )
    min_len_extra: NonNegativeInt = Field(0, description="see min_len_factor")
    no_repeat_ngram_size: NonNegativeInt = Field(
        0, description="no sequence of so many tokens occurs twice; 0: any may"
    )
    repetition_penalty: Annotated[float, Field(ge=1, le=1_000)] = Field(
        1.0,
        description="divides logits of tokens that occurred, multiplies negative ones",
    )
    banned_words: tuple[str, ...] = Field(
        (), strict=False, description="words that no translation may hold"
    )
    replace_unk: bool = Field(
        False,
        description="where the model would put <unk>, the source token it looks at most, as it is "
        "written there; otherwise it never does",
    )
    precision: DecodingPrecision = Field(
        "auto",
        description="the type of matrix products when translating; auto: int8 on a processor made "
        "for it, bf16 on a GPU that has it, else fp32; evaluation is fp32 unless told otherwise",
    )
    engine: EngineName = Field(
        "auto",
        description="the code that computes the model when decoding; native: C, on CPUs with "
        "AVX-512; torch: PyTorch with a KV cache in place, on CPUs; plain: the model's own; auto: "
        "the first of them that supports the model",
    )
    tokens_per_batch: Annotated[int, Field(gt=0, le=10_000_000)] = Field(
        4_096, description="source tokens translated at once, padding included"
    )

    @model_validator(mode="before")
    @classmethod
    def _without_what_is_gone(cls, given: Any) -> Any:
        """Run folders of earlier versions name every option, also one that was removed since."""
        if isinstance(given, dict) and given.get("cuda_graphs") is False:
            return {name: value for name, value in given.items() if name != "cuda_graphs"}
        return given

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not self.sampling and self.n_best > self.beam_size:
            raise ValueError(f"n_best {self.n_best} is more than beam_size {self.beam_size}")
        if self.sampling and self.beam_size > 1:
            raise ValueError("sampling and beam_size exclude each other")
        if self.beam_size % self.diversity_groups:
            raise ValueError(
                f"diversity_groups {self.diversity_groups} do not divide beam_size {self.beam_size}"
            )
        return self
