"""What the pairs of a training text are like: a run keeps it, and translating goes by it."""

import itertools
from typing import Annotated, Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from seq2seq_cli.data.token_store import TokenStore
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import read_json, write_json
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.sentences import MARKS, find_inner_marks, split_sentences
from seq2seq_cli.text.tokenizer import Tokenizer

_LINES_TO_READ = 10_000  # of the source, for marks and sentences

Number = TypeVar("Number", int, float)
Count = Annotated[int, Field(ge=1)]
Ratio = Annotated[float, Field(gt=0)]


class _Record(BaseModel):
    """Written by this program, but read from anybody's run folder; later versions may hold more."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class Quantiles(_Record, Generic[Number]):
    """The least numbers that 50, 90, 99 and 99.9 percent of the pairs do not exceed, and all."""

    p50: Number
    p90: Number
    p99: Number
    p999: Number
    max: Number

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        values = list(self.model_dump().values())
        if any(one > other for one, other in itertools.pairwise(values)):
            raise ValueError("quantiles are not in order")
        return self


class Counts(Quantiles[Count]):
    """Of whole numbers."""


class Ratios(Quantiles[Ratio]):
    """Of one number over another."""


class TextStatistics(_Record):
    """Of the pairs that a run is trained on; EOS is not counted."""

    src_tokens: Counts
    tgt_tokens: Counts
    length_ratio: Ratios  # target tokens over source tokens
    src_sentences: Counts  # of a line
    src_inner_marks: str = Field(
        max_length=len(MARKS)
    )  # that end no sentence, see find_inner_marks


def text_statistics(store: TokenStore, src_tokenizer: Tokenizer) -> TextStatistics:
    """Lengths are those of all pairs; sentences those of 10,000 lines, from all parts of them."""
    src, tgt = (np.maximum(side.lengths() - 1, 1) for side in (store.src, store.tgt))
    places = np.linspace(0, len(store) - 1, min(len(store), _LINES_TO_READ)).astype(int)
    lines = [src_tokenizer.to_text(store.src[place][:-1].tolist()) for place in places]
    inner_marks = find_inner_marks(lines)
    sentences = [max(1, len(split_sentences(line, inner_marks))) for line in lines]
    return TextStatistics(
        src_tokens=Counts(**_quantiles(src)),
        tgt_tokens=Counts(**_quantiles(tgt)),
        length_ratio=Ratios(**_quantiles(tgt / src)),
        src_sentences=Counts(**_quantiles(np.array(sentences))),
        src_inner_marks=inner_marks,
    )


def _quantiles(values: npt.NDArray[Any]) -> dict[str, Any]:
    found = np.quantile(values, [0.5, 0.9, 0.99, 0.999, 1], method="inverted_cdf")
    return dict(zip(Quantiles.model_fields, found.tolist(), strict=True))


def write_statistics(run: RunFolder, statistics: TextStatistics) -> None:
    write_json(run.statistics, statistics.model_dump())


def read_statistics(run: RunFolder) -> TextStatistics | None:
    """None in a run of an earlier version; UserError for what this program has not written."""
    if not run.statistics.exists():
        return None
    try:
        return TextStatistics.model_validate(read_json(run.statistics))
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(
            f"{run.statistics} is damaged: {place or 'it'} is not what training writes"
        ) from None
