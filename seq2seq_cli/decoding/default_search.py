"""The search that `auto` stands for in a trained run: what its validation text said of some."""

from typing import Annotated

from pydantic import Field

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.metrics import Metric
from seq2seq_cli.config.types import LengthPenalty, NonNegativeInt, PositiveInt, UpToThousand
from seq2seq_cli.data.record import Record, read_record
from seq2seq_cli.run_folder import RunFolder


class MeasuredSearch(Record):
    """A search, its score on the validation text, and its speed on this machine."""

    beam_size: UpToThousand
    length_penalty: Annotated[float, Field(ge=0, le=10)]
    score: float
    sentences_per_second: Annotated[float, Field(ge=0)]

    @property
    def name(self) -> str:
        if self.beam_size == 1:
            return "greedy"
        return f"beam {self.beam_size} with length penalty {self.length_penalty:g}"


class DefaultSearch(Record):
    step: NonNegativeInt  # updates of the run, or of all members of the ensemble
    # As in the run's state, or of the members' choices; earlier versions do not have it.
    scored_by: str = ""
    metric: Metric
    lines: PositiveInt  # sources of the validation text that were translated
    length_penalty_formula: LengthPenalty
    measured: Annotated[tuple[MeasuredSearch, ...], Field(strict=False, min_length=1, max_length=2)]
    beam_size: UpToThousand
    length_penalty: Annotated[float, Field(ge=0, le=10)]  # of a beam, if greedy search is chosen

    def resolve(self, options: DecodingConfig) -> DecodingConfig:
        """Return the options with this search in place of `auto`."""
        is_same = options.length_penalty_formula == self.length_penalty_formula
        return options.with_search(self.beam_size, self.length_penalty if is_same else 1.0)

    def __str__(self) -> str:
        measured = "; ".join(
            f"{one.name}: {self.metric} {one.score:.2f}, "
            f"{one.sentences_per_second:,.0f} sentences/s"
            for one in self.measured
        )
        default = "greedy" if self.beam_size == 1 else f"beam {self.beam_size}"
        return f"{measured}; default: {default} (on {self.lines:,} validation sources)"


def read_default_search(run: RunFolder) -> DefaultSearch | None:
    """Read the search; None if none was chosen, UserError if the file is damaged."""
    return read_record(run.search, DefaultSearch)
