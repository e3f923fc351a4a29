"""Subword sampling: the segmentation of text into subwords, sampled again in every epoch.

`extras/subwords` has the samplers.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from seq2seq_cli import plugins
from seq2seq_cli.config.schema import TrainingConfig
from seq2seq_cli.config.types import TOKENIZER_KINDS
from seq2seq_cli.errors import UserError
from seq2seq_cli.tokenizers.tokenizer import Tokenizers

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


def make_samplers(tokenizers: Tokenizers, training: TrainingConfig, max_length: int) -> Samplers:
    """Return the samplers of `training.subword_sampling`.

    A sentence that sampling would make longer than `max_length` (EOS not counted) is not sampled.
    Raises UserError if a vocabulary, which may come from another run, has no subwords.
    """
    sampling = training.subword_sampling
    sides: list[Sampler | None] = [None, None]
    for side, strength in enumerate((sampling.src, sampling.tgt)):
        if strength is None:
            continue
        tokenizer = tokenizers[side]
        if not TOKENIZER_KINDS[tokenizer.kind].has_subwords:
            raise UserError(
                f"training.subword_sampling: the vocabulary is of kind {tokenizer.kind}, which has "
                "no subwords to sample: choose one of kind bpe or unigram, or leave the option out"
            )
        seed = [training.seed, side]
        sampler = plugins.load("subwords", "sampler").SubwordSampler
        sides[side] = sampler(tokenizer, strength, max_length + 1, seed)
    return Samplers(*sides)
