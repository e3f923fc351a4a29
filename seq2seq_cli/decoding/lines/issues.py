"""What a user should know of translated lines: how many were cut, or unlike the training text."""

import itertools
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from seq2seq_cli.errors import short
from seq2seq_cli.tokenizers.tokenizer import UNKNOWN_TEXT

logger = logging.getLogger(__name__)

_USUAL_SHARE = 0.03  # of lines of new text that have unusually many unseen words by chance
_MOST_NAMES = 5  # in a message


@dataclass(frozen=True)
class Issues:
    """Counts of lines; the sum of two is of both texts."""

    lines: int = 0
    sentences: int = 0  # of those lines
    long_sentences: int = 0
    parts: int = 0  # of the long sentences
    at_length_limit: int = 0  # translations truncated at the length limit
    all_lines: int = 0  # with text
    unfamiliar: int = 0  # lines with unusually many words that the training text lacks
    unseen_words: tuple[str, ...] = ()  # some of those words
    short: int = 0  # lines with fewer tokens than all training lines
    lines_without_features: int = 0  # for a model that knows some
    lines_with_unknown_features: int = 0  # that the training text lacks
    unknown_features: tuple[str, ...] = ()  # some of those features
    lines_without_tag: int = 0  # for a model that was trained with tags only

    def __add__(self, other: "Issues") -> "Issues":
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        sums: list[Any] = [
            one + two if isinstance(one, int) else distinct((*one, *two)) for one, two in pairs
        ]
        return Issues(*sums)

    def report(self) -> None:
        """Log a warning for each kind that occurred."""
        longer = "longer than training lines in sentences or tokens"
        _warn(
            self.lines,
            f"line is {longer}; it was split",
            f"lines are {longer}; they were split",
            f"into {self.sentences:,} sentences, translated one by one",
        )
        _warn(
            self.long_sentences,
            "sentence is longer than data.max_length; it was translated",
            "sentences are longer than data.max_length; they were translated",
            f"in {self.parts:,} parts",
        )
        _warn(
            self.at_length_limit,
            "translation",
            "translations",
            "hit the length limit (decoding.max_len_factor, max_len_extra), often because the "
            "model repeats itself; more training usually helps",
        )
        if self.unfamiliar > _USUAL_SHARE * self.all_lines:
            of_all = f"of {self.all_lines:,} lines" if self.all_lines > 1 else "line"
            words = ", ".join(word for word in self.unseen_words if UNKNOWN_TEXT not in word)
            unseen, listed = ("words", f" ({words})") if words else ("words or characters", "")
            _warn(
                self.unfamiliar,
                f"{of_all} has",
                f"{of_all} have",
                f"{unseen} that the training text lacks{listed}: expect nonsense there",
            )
        _warn(
            self.short,
            "line is",
            "lines are",
            "shorter than every training line: expect nonsense there",
        )
        _warn(
            self.lines_with_unknown_features,
            "line has",
            "lines have",
            "features that the training text lacks, which say nothing to the model: "
            + ", ".join(self.unknown_features),
        )
        _warn(
            self.lines_without_features,
            "line has",
            "lines have",
            "no features, which the model was trained with: translate takes them after a tab, "
            "eval and score with --features",
        )
        _warn(
            self.lines_without_tag,
            "line has",
            "lines have",
            "no tag, which all training sources have: give --tag, or set decoding.tag",
        )


def _warn(count: int, one: str, many: str, rest: str) -> None:
    """Log a warning of a number, if it is not 0; `one` or `many` follows it."""
    if count:
        logger.warning(f"{count:,} {one if count == 1 else many} {rest}")


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Return the first few of the names, shortened, each once."""
    return tuple(itertools.islice(dict.fromkeys(map(short, names)), _MOST_NAMES))
