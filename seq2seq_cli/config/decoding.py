"""The section `decoding` of a config: how translations are searched for."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from seq2seq_cli.config.text import TagText
from seq2seq_cli.config.types import (
    FREE_ON_RESUME,
    AutoOrFactor,
    AutoOrTenThousand,
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
    beam_size: UpToThousand = Field(1, description="Beam size; 1 is greedy search.")
    length_penalty: Annotated[float, Field(ge=0, le=10)] = Field(
        1.0, description="Exponent of the length penalty in beam search; 0 turns it off."
    )
    length_penalty_formula: LengthPenalty = Field(
        "power",
        description="Divisor of a hypothesis's log-probability, with a = length_penalty: length^a "
        "(power) or ((5 + length) / 6)^a (gnmt).",
    )
    n_best: UpToThousand = Field(
        1, description="Translations returned for each sentence, from the beam or by sampling."
    )
    diversity_groups: PositiveInt = Field(
        1,
        description="Groups of a diverse beam search; each avoids the tokens that earlier groups "
        "chose.",
    )
    diversity_penalty: Factor = Field(
        0.5,
        description="Penalty on a token's log-probability for each time that an earlier group has "
        "chosen it in the same step.",
    )
    sampling: bool = Field(False, description="Sample tokens instead of searching for the best.")
    temperature: Annotated[float, Field(ge=1e-6, le=1_000)] = Field(
        1.0, description="Softmax temperature of sampling; values below 1 are closer to greedy."
    )
    top_k: PositiveInt | None = Field(
        None, description="Sample from the k most probable tokens only; null: from all tokens."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0,
        description="Nucleus sampling: sample from the smallest set of most probable tokens whose "
        "total probability reaches this value.",
    )
    seed: Seed = Field(1, description="Random seed of sampling.")
    tag: TagText | None = Field(
        None,
        description="Tag that is put before every source sentence that has none of its own; it "
        "must be the tag of a corpus in data.train or one of tokenizer.user_defined_symbols; null: "
        "none.",
    )
    max_len_factor: AutoOrFactor = Field(
        "auto",
        description="Maximum length of a translation: max_len_factor x source tokens + "
        "max_len_extra. auto: learnt from the training pairs, so that all their targets could be "
        "output with room to spare; at least 2.",
    )
    max_len_extra: AutoOrTenThousand = Field(
        "auto",
        description="Tokens added to the maximum length, see max_len_factor. auto: learnt from "
        "the training pairs; at least 20.",
    )
    min_len_factor: Factor = Field(
        0.0,
        description="Minimum length of a translation: min_len_factor x source tokens + "
        "min_len_extra.",
    )
    min_len_extra: NonNegativeInt = Field(
        0, description="Tokens added to the minimum length, see min_len_factor."
    )
    no_repeat_ngram_size: NonNegativeInt = Field(
        0, description="No n-gram of this many tokens occurs twice in a translation; 0: no limit."
    )
    repetition_penalty: Annotated[float, Field(ge=1, le=1_000)] = Field(
        1.0,
        description="Penalty on tokens that already occur in the translation: positive logits are "
        "divided by it, negative ones multiplied.",
    )
    banned_words: tuple[str, ...] = Field(
        (), strict=False, description="Words that no translation may contain."
    )
    replace_unk: bool = Field(
        False,
        description="Replace each out-of-vocabulary token <unk> by the source token with the "
        "highest attention weight; without it the model never produces <unk>.",
    )
    precision: DecodingPrecision = Field(
        "auto",
        description="Numeric precision of matrix products when translating. auto: int8 "
        "(quantization) on CPUs with fast int8 instructions, bf16 on GPUs that support it, else "
        "fp32; evaluation uses fp32 for auto.",
    )
    engine: EngineName = Field(
        "auto",
        description="Decoding engine. native: C code for CPUs with AVX-512; torch: PyTorch on CPUs "
        "with a preallocated KV cache; plain: the model itself; auto: the first of these that "
        "supports the model.",
    )
    tokens_per_batch: Annotated[int, Field(gt=0, le=10_000_000)] = Field(
        4_096,
        description="Source tokens per decoding batch, padding included.",
        json_schema_extra=FREE_ON_RESUME,
    )

    def max_length(self, src_length: int) -> int:
        """Return the most tokens that a translation of `src_length` source tokens may have."""
        factor, extra = self.max_len_factor, self.max_len_extra
        assert factor != "auto" and extra != "auto", "resolved before the first search"
        return int(factor * src_length) + extra

    @model_validator(mode="before")
    @classmethod
    def _drop_removed_options(cls, given: Any) -> Any:
        """Ignore the default of a removed option, which run folders written before still name."""
        if isinstance(given, dict) and given.get("cuda_graphs") is False:
            return {name: value for name, value in given.items() if name != "cuda_graphs"}
        return given

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        if not self.sampling and self.n_best > self.beam_size:
            raise ValueError(
                f"n_best {self.n_best} is greater than beam_size {self.beam_size}: raise it "
                "(--beam-size), or sample (--sampling)"
            )
        if self.sampling and self.beam_size > 1:
            raise ValueError("sampling and beam search exclude each other; set beam_size to 1")
        if self.beam_size % self.diversity_groups:
            raise ValueError(
                f"diversity_groups {self.diversity_groups} does not divide beam_size "
                f"{self.beam_size}"
            )
        return self
