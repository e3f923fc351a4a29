"""Parts of the section `training`: subword sampling and consistency training."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from seq2seq_cli.config.types import OnResume, PositiveFloat, Probability, Section

ConsistencyKind = Literal["r_drop", "simcut"]

WEIGHTS: dict[ConsistencyKind, float] = {"r_drop": 5.0, "simcut": 3.0}  # of their papers
_CUTOFF = 0.05


class SubwordSampling(Section):
    """`subword_sampling: 0.1` is short for `subword_sampling: {src: 0.1, tgt: 0.1}`."""

    on_resume: ClassVar[OnResume] = "ask"

    src: Probability | None = Field(
        None,
        description="Sampling of the source's segmentations, anew in every epoch; null: none. With "
        "kind bpe the probability of dropping a merge (BPE-dropout), usually 0.1; with kind "
        "unigram the exponent of the segmentations' probabilities, usually 0.2: the smaller, the "
        "more they vary.",
    )
    tgt: Probability | None = Field(None, description="The same of the target.")

    @property
    def is_on(self) -> bool:
        return self.src is not None or self.tgt is not None


class Consistency(Section):
    """A second pass over every batch, whose predictions are to agree with those of the first."""

    on_resume: ClassVar[OnResume] = "ask"

    kind: ConsistencyKind = Field(
        description="r_drop: two passes that differ in their dropout; simcut: the second one also "
        "lacks the embeddings of some tokens.",
    )
    weight: PositiveFloat = Field(
        default_factory=lambda given: WEIGHTS[given.get("kind", "r_drop")],
        description="Weight of the divergence of the two predictions beside the cross-entropy; "
        + "; ".join(f"{kind}: {weight:g}" for kind, weight in WEIGHTS.items())
        + " by default.",
    )
    cutoff: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default_factory=lambda given: _CUTOFF if given.get("kind") == "simcut" else None,
        validate_default=True,
        description=f"Probability of cutting off a token's embedding, {_CUTOFF} by default (simcut "
        "only).",
    )

    @field_validator("cutoff")
    @classmethod
    def _only_simcut_cuts(cls, cutoff: float | None, info: ValidationInfo) -> float | None:
        kind = info.data.get("kind")
        if kind == "r_drop" and cutoff is not None:
            raise ValueError("r_drop cuts nothing off: choose simcut, or leave it out")
        if kind == "simcut" and cutoff is None:
            raise ValueError("simcut needs a probability")
        return cutoff
