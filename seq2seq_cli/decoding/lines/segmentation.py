"""Segmentation of lines into what a model can translate: sentences, or parts of long ones."""

import itertools
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from seq2seq_cli.config.schema import Config
from seq2seq_cli.data.statistics import TextStatistics
from seq2seq_cli.decoding.requests import Ids
from seq2seq_cli.errors import short
from seq2seq_cli.text.sentences import split_sentences
from seq2seq_cli.text.words import split_words
from seq2seq_cli.tokenizers.tokenizer import UNKNOWN_TEXT, Tokenizer

logger = logging.getLogger(__name__)

_USUAL_SHARE = 0.03  # of lines of new text that have unusually many unseen words by chance
_MOST_NAMES = 5  # in a message


class Segment(NamedTuple):
    """A sentence of a line, or a part of one, that is translated separately."""

    ids: Ids
    sentence: str
    first_token: int = 0  # index in the sentence of the first of the ids
    first_word: int = 0  # index in the line of the sentence's first word
    control_ids: tuple[int, ...] = ()  # of tag and features, before the sentence

    @property
    def src_ids(self) -> Ids:
        """The input of the encoder, without EOS."""
        return [*self.control_ids, *self.ids]


class Bounds(NamedTuple):
    """Limits of what a model has learned to translate at once; a line beyond them is cut."""

    max_length: int  # tokens of a sentence
    tokens: int  # of a line of several sentences
    sentences: float = math.inf  # of a line
    inner_marks: str = ""  # punctuation that does not end a sentence in the training text

    @classmethod
    def of(cls, config: Config, statistics: TextStatistics | None) -> Self:
        """Take the limits from percentiles of the training text.

        They are the 99.9th of tokens and the 90th of sentences: a model that has seen only a few
        lines of several sentences omits some. A run of an earlier version has only `max_length`.
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
    """What a user should know of many lines: how many were cut, or unlike the training text."""

    lines: int = 0
    sentences: int = 0  # of those lines
    long_sentences: int = 0
    parts: int = 0  # of the long sentences
    at_length_limit: int = 0  # translations truncated at the length limit
    all_lines: int = 0  # with text
    unfamiliar: int = 0  # lines with unusually many words that the training text lacks
    unseen_words: tuple[str, ...] = ()  # some of those words
    short: int = 0  # lines with fewer tokens than all training lines
    featureless: int = 0  # lines without features, for a model that knows some
    oddly_featured: int = 0  # lines with features that the training text lacks
    unknown_features: tuple[str, ...] = ()  # some of those features

    def __add__(self, other: "Cuts") -> "Cuts":
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        sums: list[Any] = [
            one + two if isinstance(one, int) else distinct((*one, *two)) for one, two in pairs
        ]
        return Cuts(*sums)

    def report(self) -> None:
        """Log a warning for each kind that occurred."""
        is_unusual = self.unfamiliar > _USUAL_SHARE * self.all_lines
        of_all = f"of {self.all_lines:,} lines" if self.all_lines > 1 else "line"
        words = ", ".join(word for word in self.unseen_words if word.strip() != UNKNOWN_TEXT)
        longer = "longer than training lines in sentences or tokens"
        for count, one, many, rest in (
            (
                self.lines,
                f"line is {longer}; it was split",
                f"lines are {longer}; they were split",
                f"into {self.sentences:,} sentences, translated one by one",
            ),
            (
                self.long_sentences,
                "sentence is longer than data.max_length; it was translated",
                "sentences are longer than data.max_length; they were translated",
                f"in {self.parts:,} parts",
            ),
            (
                self.at_length_limit,
                "translation",
                "translations",
                "hit the length limit (decoding.max_len_factor, max_len_extra), often because the "
                "model repeats itself; more training usually helps",
            ),
            (
                self.unfamiliar if is_unusual else 0,
                f"{of_all} has",
                f"{of_all} have",
                f"words that the training text lacks ({words}): expect nonsense there"
                if words
                else "words or characters that the training text lacks: expect nonsense there",
            ),
            (
                self.short,
                "line is",
                "lines are",
                "shorter than every training line: expect nonsense there",
            ),
            (
                self.oddly_featured,
                "line has",
                "lines have",
                "features that the training text lacks, which say nothing to the model: "
                + ", ".join(self.unknown_features),
            ),
            (
                self.featureless,
                "line has",
                "lines have",
                "no features, which the model was trained with: translate takes them after a tab, "
                "eval with --features",
            ),
        ):
            if count:
                logger.warning(f"{count:,} {one if count == 1 else many} {rest}")


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Return the first few of the names, shortened, each once."""
    return tuple(itertools.islice(dict.fromkeys(map(short, names)), _MOST_NAMES))


def segment_lines(
    lines: Sequence[str], tokenizer: Tokenizer, bounds: Bounds, *, each: bool = False
) -> tuple[list[list[Segment]], Cuts]:
    """Return the segments of every line (none of an empty one), and how many lines were cut.

    A line beyond the bounds is cut into its sentences, and with `each` every line is, uncounted; a
    sentence beyond `max_length` is cut into parts.
    """
    line_ids = tokenizer.to_ids_batch(lines)
    split: dict[int, list[str]] = {}
    for number, (line, ids) in enumerate(zip(lines, line_ids, strict=True)):
        sentences = split_sentences(line, bounds.inner_marks)
        is_beyond = len(ids) > bounds.tokens or len(sentences) > bounds.sentences
        if len(sentences) > 1 and (each or is_beyond):
            split[number] = sentences
    sentence_ids = iter(tokenizer.to_ids_batch(list(itertools.chain.from_iterable(split.values()))))
    segments: list[list[Segment]] = []
    long: list[int] = []  # how many parts each long sentence has
    for number, line in enumerate(lines):
        line_segments: list[Segment] = []
        first_word = 0
        for sentence in split.get(number, [line]):
            ids = next(sentence_ids) if number in split else line_ids[number]
            # As few parts as possible, of about equal length; none of an empty sentence.
            count = -(-len(ids) // bounds.max_length)
            starts = [len(ids) * part // count for part in range(count)] if count else []
            line_segments += [
                Segment(ids[start:stop], sentence, start, first_word)
                for start, stop in itertools.pairwise([*starts, len(ids)])
            ]
            first_word += len(split_words(sentence)) if number in split else 0
            if count > 1:
                long.append(count)
        segments.append(line_segments)
    cut = [] if each else list(split.values())
    return segments, Cuts(len(cut), sum(map(len, cut)), len(long), sum(long))
