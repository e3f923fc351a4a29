"""Segmentation of lines into what a model can translate: sentences, or parts of long ones."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, Self

from seq2seq_cli.config.schema import Config
from seq2seq_cli.data.statistics import TextStatistics
from seq2seq_cli.decoding.lines.issues import Issues
from seq2seq_cli.decoding.requests import Ids
from seq2seq_cli.text.quoting import SPACE
from seq2seq_cli.text.sentences import split_sentences
from seq2seq_cli.text.words import is_spaceless, split_words
from seq2seq_cli.tokenizers.tokenizer import Tokenizer


class Segment(NamedTuple):
    """A sentence of a line, or a part of one, that is translated separately."""

    ids: Ids
    sentence: str
    first_token: int = 0  # index in the sentence of the first of the ids
    first_word: int = 0  # index in the line of the sentence's first word
    begins_in_word: bool = False  # as a part of a long sentence
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
        lines of several sentences omits some. Strings, such as formulas, and targets of a fixed
        length, such as labels, are of the whole source, whatever the number of its sentences. A run
        of an earlier version has only `max_length`.
        """
        max_length = config.data.max_length
        if statistics is None or config.decoding.max_len_factor == 0:
            return cls(max_length, max_length)
        return cls(
            max_length,
            min(max_length, statistics.src_tokens.p999),
            math.inf if config.is_of_strings else statistics.src_sentences.p90,
            statistics.src_inner_marks,
        )


def segment_lines(
    lines: Sequence[str], tokenizer: Tokenizer, bounds: Bounds, *, each: bool = False
) -> tuple[list[list[Segment]], Issues]:
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
    sentence_ids = iter(tokenizer.to_ids_batch([*itertools.chain(*split.values())]))
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
                Segment(
                    ids[start:stop],
                    sentence,
                    start,
                    first_word,
                    begins_in_word=_is_in_word(ids[max(0, start - 1) : start + 1], tokenizer),
                )
                for start, stop in itertools.pairwise([*starts, len(ids)])
            ]
            first_word += len(split_words(sentence)) if number in split else 0
            if count > 1:
                long.append(count)
        segments.append(line_segments)
    cut = [] if each else list(split.values())
    return segments, Issues(len(cut), sum(map(len, cut)), len(long), sum(long))


def _is_in_word(around: Ids, tokenizer: Tokenizer) -> bool:
    """Return True if two tokens are of one word; False for the first one alone."""
    if len(around) == 1:
        return False
    before, after = tokenizer.pieces_of(around)
    has_space = before.endswith(SPACE) or after.startswith(SPACE)
    return not (has_space or is_spaceless(before[-1:] + after[:1]))
