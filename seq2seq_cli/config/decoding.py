"""The section `decoding` of a config: search, sampling and decoding engines."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from seq2seq_cli.config.tokenizer import TagText
from seq2seq_cli.config.types import (
    AutoOrFactor,
    AutoOrLengthPenalty,
    AutoOrTenThousand,
    AutoOrThousand,
    DecodingPrecision,
    EngineName,
    Factor,
    Free,
    LengthPenalty,
    NonNegativeInt,
    PositiveInt,
    Section,
    Seed,
    UpToThousand,
)


class DecodingConfig(Section):
    beam_size: AutoOrThousand = "auto"
    """Beam size; 1 is greedy search. auto: 1, or n_best if greater, until training ends; then 5
    if it scores at least 0.3 more on the validation text than greedy search."""
    length_penalty: AutoOrLengthPenalty = "auto"
    """Exponent of the length penalty in beam search; 0 turns it off. auto: 1 until training ends;
    then the best one on the validation text."""
    length_penalty_formula: LengthPenalty = "power"
    """Divisor of a hypothesis's log-probability, with a = length_penalty: length^a (power) or ((5 +
    length) / 6)^a (gnmt)."""
    n_best: UpToThousand = 1
    """Number of translations per sentence, from the beam or by sampling."""
    diversity_groups: PositiveInt = 1
    """Number of groups for diverse beam search (Vijayakumar et al. 2018)."""
    diversity_penalty: Factor = 0.5
    """Diverse beam search: penalty on a token's log-probability for each time an earlier group
    chose it in the same step."""
    sampling: bool = False
    """Sample tokens instead of searching for the best."""
    temperature: Annotated[float, Field(ge=1e-6, le=1_000)] = 1.0
    """Softmax temperature for sampling; values below 1 are closer to greedy."""
    top_k: PositiveInt | None = None
    """Sample from the k most probable tokens only; null: from all tokens."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling: sample from the smallest set of most probable tokens whose total
    probability reaches this value."""
    seed: Seed = 1
    """Random seed for sampling."""
    tag: TagText | None = None
    """Tag to prepend to source sentences that have no tag of their own: the tag of a corpus in
    data.train or one of tokenizer.user_defined_symbols; null: no tag."""
    max_len_factor: AutoOrFactor = "auto"
    """Maximum length of a translation: max_len_factor x source tokens + max_len_extra. auto:
    derived from the training pairs so that all their targets fit with room to spare; at least 2."""
    max_len_extra: AutoOrTenThousand = "auto"
    """Tokens added to the maximum length, see max_len_factor. auto: derived from the training
    pairs; at least 20."""
    min_len_factor: Factor = 0.0
    """Minimum length of a translation: min_len_factor x source tokens + min_len_extra, but not
    above the maximum."""
    min_len_extra: NonNegativeInt = 0
    """Tokens added to the minimum length, see min_len_factor."""
    no_repeat_ngram_size: NonNegativeInt = 0
    """Size of n-grams of tokens that may not occur twice in a translation; 0: no limit."""
    repetition_penalty: Annotated[float, Field(ge=1, le=1_000)] = 1.0
    """Penalty on tokens that already occur in the translation: positive logits are divided by it,
    negative logits multiplied."""
    banned_words: tuple[str, ...] = Field((), strict=False)
    """Words that translations may not contain."""
    replace_unk: bool = False
    """Allow <unk> in translations, and replace it with the source token that has the highest
    attention weight."""
    precision: DecodingPrecision = "auto"
    """Precision of matrix products. auto: fp32 for evaluation; otherwise int8 (quantization) on
    CPUs, bf16 on GPUs that support it, else fp32."""
    engine: EngineName = "auto"
    """Decoding engine. native: C code for CPUs; plain: the model itself, in PyTorch; auto: the
    first that supports the model."""
    tokens_per_batch: Free[Annotated[int, Field(gt=0, le=10_000_000)]] = 4_096
    """Decoding batch size in source tokens, padding included; the search in C takes at most
    1,024."""

    @property
    def width(self) -> int:
        """The beam size as a number."""
        if self.beam_size != "auto":
            return self.beam_size
        return 1 if self.sampling else self.n_best

    @property
    def alpha(self) -> float:
        """The length penalty as a number."""
        return 1.0 if self.length_penalty == "auto" else self.length_penalty

    def with_search(self, beam_size: int = 1, length_penalty: float = 1.0) -> Self:
        """Return the options with these numbers in place of `auto`, where they fit the others."""
        if self.sampling or self.diversity_groups > 1:
            beam_size = self.width
        return self.resolved(beam_size=max(beam_size, self.width), length_penalty=length_penalty)

    def max_length(self, src_length: int) -> int:
        """Return the maximum number of tokens in a translation of `src_length` source tokens."""
        factor, extra = self.max_len_factor, self.max_len_extra
        assert factor != "auto" and extra != "auto", "resolved before the first search"
        return int(factor * src_length) + extra

    @model_validator(mode="before")
    @classmethod
    def _drop_removed_options(cls, given: Any) -> Any:
        """Ignore `cuda_graphs: false` and `engine: torch`, which older run folders may have."""
        if not isinstance(given, dict):
            return given
        removed = {"cuda_graphs": False, "engine": "torch"}
        return {n: v for n, v in given.items() if n not in removed or v != removed[n]}

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        if not self.sampling and self.n_best > self.width:
            raise ValueError(
                f"n_best {self.n_best} is greater than beam_size {self.beam_size}: raise it "
                "(--beam-size), or sample (--sampling)"
            )
        if self.sampling and self.width > 1:
            raise ValueError("sampling and beam search exclude each other; set beam_size to 1")
        if self.width % self.diversity_groups:
            raise ValueError(
                f"diversity_groups {self.diversity_groups} does not divide beam_size {self.width}"
            )
        return self
