"""Parts of the section `training`: subword sampling and consistency training."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from seq2seq_cli.config.types import PositiveFloat, Probability, Section

ConsistencyKind = Literal["r_drop", "simcut"]

WEIGHTS: dict[ConsistencyKind, float] = {"r_drop": 5.0, "simcut": 3.0}  # of their papers
_CUTOFF = 0.05


class SubwordSampling(Section):
    """`subword_sampling: 0.1` is short for `subword_sampling: {src: 0.1, tgt: 0.1}`."""

    src: Probability | None = None
    """Subword regularization of the source: segmentations are re-sampled in each epoch; null
    disables it. With kind bpe, the probability of dropping a merge (BPE-dropout), usually 0.1; with
    kind unigram, the exponent of the probabilities of segmentations, usually 0.2: smaller values
    give more varied segmentations."""
    tgt: Probability | None = None
    """The same for the target."""

    @property
    def is_on(self) -> bool:
        return self.src is not None or self.tgt is not None


class Consistency(Section):
    """A second forward pass over every batch, trained to agree with the first."""

    kind: ConsistencyKind
    """r_drop: two forward passes with different dropout; simcut: the second pass also cuts off the
    embeddings of some tokens."""
    weight: PositiveFloat = Field(
        default_factory=lambda given: WEIGHTS[given.get("kind", "r_drop")],
        description="Weight of the divergence between the two predictions, relative to the "
        "cross-entropy. Defaults: "
        + ", ".join(f"{weight:g} for {kind}" for kind, weight in WEIGHTS.items())
        + ".",
    )
    cutoff: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default_factory=lambda given: _CUTOFF if given.get("kind") == "simcut" else None,
        validate_default=True,
        description=f"Probability of cutting off the embedding of a token, {_CUTOFF} by default "
        "(simcut only).",
    )

    @classmethod
    def mistake(cls, option: str, value: Any, above: Mapping[str, Any]) -> str | None:
        kind = above.get("kind")
        if option == "cutoff" and kind == "r_drop" and value is not None:
            return "r_drop has no cutoff: choose simcut, or leave it out"
        if option == "cutoff" and kind == "simcut" and value is None:
            return "simcut needs a probability"
        return None
