"""Statistics of the training pairs, by which translation splits lines and limits its output."""

import math
from typing import Annotated, Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.data.record import Record
from seq2seq_cli.data.seen_words import SeenWords, seen_words
from seq2seq_cli.data.token_store import TokenStore
from seq2seq_cli.text.sentences import MARKS, find_inner_marks, split_sentences
from seq2seq_cli.tokenizers.tokenizer import Tokenizer

_LINES_TO_READ = 10_000  # source lines in which sentences and their marks are counted

Lengths = npt.NDArray[Any]  # in tokens
Number = TypeVar("Number", int, float)
Count = Annotated[int, Field(ge=1)]
Ratio = Annotated[float, Field(gt=0)]


class Quantiles(Record, Generic[Number]):
    """The 50th, 90th, 99th and 99.9th percentile over the pairs, and the maximum."""

    p50: Number
    p90: Number
    p99: Number
    p999: Number
    max: Number

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        values = list(self.model_dump().values())
        if values != sorted(values):
            raise ValueError("quantiles are not in order")
        return self

    @classmethod
    def of(cls, values: Lengths, counts: npt.NDArray[np.int64] | None = None) -> Self:
        """Return the quantiles of values, each of which occurs so often."""
        shares = [0.5, 0.9, 0.99, 0.999, 1]
        quantiles = np.quantile(values, shares, method="inverted_cdf", weights=counts)
        return cls(**dict(zip(cls.model_fields, quantiles.tolist(), strict=True)))


class Counts(Quantiles[Count]):
    """Quantiles of whole numbers; a named class, unlike Quantiles[Count], can be pickled."""


class Ratios(Quantiles[Ratio]):
    """Quantiles of ratios."""


class LengthLimit(Record):
    """The most tokens that a translation may have: factor × source tokens + extra."""

    factor: float = Field(2.0, ge=0, le=100)
    extra: int = Field(20, ge=1, le=10_000)

    @classmethod
    def fitting(
        cls, src: Lengths, tgt: Lengths, counts: npt.NDArray[np.int64] | None = None
    ) -> Self:
        """Return a limit that no pair reaches, a tenth beyond the ratio of 99% of them.

        The others, and short sources with long targets, determine what is added.
        """
        ratio = float(np.quantile(tgt / src, 0.99, method="inverted_cdf", weights=counts))
        factor = min(max(2.0, math.ceil(11 * ratio) / 10), 100.0)
        excess = int((tgt - (factor * src).astype(tgt.dtype)).max())
        return cls(factor=factor, extra=min(max(20, math.ceil(1.1 * excess)), 10_000))

    def resolve(self, options: DecodingConfig) -> DecodingConfig:
        """Return the options with these numbers in place of `auto`."""
        return options.resolved(max_len_factor=self.factor, max_len_extra=self.extra)


class TextStatistics(Record):
    """Statistics of the pairs that a run is trained on; EOS is not counted."""

    src_tokens: Counts
    tgt_tokens: Counts
    length_ratio: Ratios  # target tokens over source tokens
    src_sentences: Counts  # per line
    src_inner_marks: str = Field(max_length=len(MARKS))  # which end no sentence: find_inner_marks
    # A run of an earlier version has the defaults of these.
    length_limit: LengthLimit = LengthLimit()
    pairs: Count | None = None
    src_words: SeenWords | None = None
    fewest_src_tokens: Count | None = None


def text_statistics(store: TokenStore, src_tokenizer: Tokenizer) -> TextStatistics:
    """Compute the statistics: lengths of all pairs, and sentences of evenly spaced lines."""
    *lengths, counts = store.length_counts()
    src, tgt = (np.maximum(side - 1, 1) for side in lengths)
    sampled = np.linspace(0, len(store) - 1, min(len(store), _LINES_TO_READ)).astype(int)
    lines = [src_tokenizer.to_text(store.src[i][:-1].tolist()) for i in sampled]
    inner_marks = find_inner_marks(lines)
    sentences = [max(1, len(split_sentences(line, inner_marks))) for line in lines]
    return TextStatistics(
        src_tokens=Counts.of(src, counts),
        tgt_tokens=Counts.of(tgt, counts),
        length_ratio=Ratios.of(tgt / src, counts),
        src_sentences=Counts.of(np.array(sentences)),
        src_inner_marks=inner_marks,
        length_limit=LengthLimit.fitting(src, tgt, counts),
        pairs=len(store),
        src_words=seen_words(store.src, src_tokenizer),
        fewest_src_tokens=int(src.min()),
    )
