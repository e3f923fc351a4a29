"""Lines in the segments that a model can translate: sentences, or parts of one that is too long."""

import itertools
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from seq2seq_cli.config.schema import Config
from seq2seq_cli.data.statistics import TextStatistics
from seq2seq_cli.decoding.requests import Ids
from seq2seq_cli.text.sentences import split_sentences
from seq2seq_cli.text.tokenizer import Tokenizer
from seq2seq_cli.text.words import split_words

logger = logging.getLogger(__name__)


class Segment(NamedTuple):
    """A sentence of a line, or a part of one, that is translated by itself."""

    ids: Ids
    sentence: str
    first_token: int = 0  # of the sentence's, from which on the ids are
    first_word: int = 0  # of the line's, with which the sentence begins


class Bounds(NamedTuple):
    """What a model has learnt to translate at once; a line beyond it is cut."""

    max_length: int  # tokens that a sentence may have
    tokens: int  # that a line may have if it holds several sentences
    sentences: float = math.inf
    inner_marks: str = ""  # that end no sentence

    @classmethod
    def of(cls, config: Config, statistics: TextStatistics | None) -> Self:
        """A line may be longer than its like in one of a thousand training pairs, not in more.

        It may hold more sentences than a tenth of the training sources do: models that have seen a
        few such lines leave sentences out. A run of an earlier version knows `max_length` alone.
        """
        max_length = config.data.max_length
        if statistics is None:
            return cls(max_length, max_length)
        return cls(
            max_length,
            min(max_length, statistics.src_tokens.p999),
            statistics.src_sentences.p90,
            statistics.src_inner_marks,
        )


@dataclass(frozen=True)
class Cuts:
    """How many lines and sentences were cut, and into what."""

    lines: int = 0
    sentences: int = 0  # that those lines hold
    long_sentences: int = 0
    parts: int = 0  # of the long sentences

    def __add__(self, other: "Cuts") -> "Cuts":
        return Cuts(
            self.lines + other.lines,
            self.sentences + other.sentences,
            self.long_sentences + other.long_sentences,
            self.parts + other.parts,
        )

    def report(self) -> None:
        """A warning for each kind, if there are any."""
        if self.lines:
            logger.warning(
                "lines with more sentences or tokens than those of the training text: "
                f"{self.lines:,}, translated as {self.sentences:,} sentences, one by one"
            )
        if self.long_sentences:
            logger.warning(
                f"sentences longer than data.max_length: {self.long_sentences:,}, translated in "
                f"{self.parts:,} parts"
            )


def segment_lines(
    lines: Sequence[str], tokenizer: Tokenizer, bounds: Bounds, *, each: bool = False
) -> tuple[list[list[Segment]], Cuts]:
    """The segments of every line, none of an empty one; and what was cut without being asked for.

    A line beyond the bounds is cut at every end of a sentence, and with `each` every line is; a
    sentence beyond `max_length` is cut into parts.
    """
    ids_of_lines = tokenizer.to_ids_batch(lines)
    split: dict[int, list[str]] = {}
    for number, (line, ids) in enumerate(zip(lines, ids_of_lines, strict=True)):
        sentences = split_sentences(line, bounds.inner_marks)
        is_beyond = len(ids) > bounds.tokens or len(sentences) > bounds.sentences
        if len(sentences) > 1 and (each or is_beyond):
            split[number] = sentences
    ids_of_sentences = iter(
        tokenizer.to_ids_batch(list(itertools.chain.from_iterable(split.values())))
    )
    segments: list[list[Segment]] = []
    long: list[int] = []  # in how many parts
    for number, line in enumerate(lines):
        of_line: list[Segment] = []
        first_word = 0
        for sentence in split.get(number, [line]):
            ids = next(ids_of_sentences) if number in split else ids_of_lines[number]
            parts = _parts(ids, sentence, first_word, bounds.max_length)
            first_word += len(split_words(sentence)) if number in split else 0
            long += [len(parts)] * (len(parts) > 1)
            of_line += parts
        segments.append(of_line)
    cut = [] if each else list(split.values())
    return segments, Cuts(len(cut), sum(map(len, cut)), len(long), sum(long))


def _parts(ids: Ids, sentence: str, first_word: int, limit: int) -> list[Segment]:
    """As few as possible, of nearly equal length; none where there is nothing."""
    count = -(-len(ids) // limit)
    cuts = [len(ids) * i // count for i in range(count + 1)] if count else []
    return [
        Segment(ids[start:stop], sentence, start, first_word)
        for start, stop in itertools.pairwise(cuts)
    ]
