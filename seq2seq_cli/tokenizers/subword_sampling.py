"""Subword sampling: the segmentation of text into subwords, sampled again in every epoch.

`extras/subwords` makes the samplers.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]


class Sampler(Protocol):
    """Samples the segmentations of sentences, which are given by their ids without sampling."""

    key: str  # identifies the options that the lengths of sampled sentences depend on

    def __call__(
        self, sentences: Sequence[Ids], pairs: Sequence[int] | Ids, epoch: int
    ) -> Sequence[Ids]:
        """Return sampled ids of sentences; `pairs` are the indices of their pairs in the corpus."""


class Samplers(NamedTuple):
    """The samplers of both sides; None for a side that is not sampled."""

    src: Sampler | None = None
    tgt: Sampler | None = None

    @property
    def key(self) -> str:
        """Identifies the options that the lengths of sampled sentences depend on."""
        return " ".join(str(sampler and sampler.key) for sampler in self) if any(self) else ""
