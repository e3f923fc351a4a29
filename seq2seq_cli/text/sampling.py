"""The lines that a vocabulary is learnt from: a sample of a text, without its rare characters."""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from seq2seq_cli.errors import UserError

MAX_LINE_BYTES = 65_536  # longer lines teach the tokenizer nothing; they are still tokenized
MAX_CHARACTERS = 1 << 31  # to learn from, all lines together; SentencePiece holds them in memory
_LINES_AT_ONCE = 10_000

# `min_character_frequency: auto`. Entries are worth what their frequency is, and that of the last
# piece of a vocabulary grows with the text; so does that of noise.
LEAST_FREQUENCY = 5
_PER_CHARACTERS = 1_000_000
_MOST_RARE = 0.02  # of all characters: of a small text everything is rare


def sample(lines: Iterable[str], size: int, max_characters: int = MAX_CHARACTERS) -> list[str]:
    """So many of the lines at random, the same in every process; all if there are fewer.

    Vitter 1985, algorithm R. SentencePiece can sample too, but each time differently. Raises
    UserError for more text than memory should hold.
    """
    generator = random.Random(0)
    chosen: list[str] = []
    num_characters = 0
    learnable = (line for line in lines if len(line) <= MAX_LINE_BYTES)
    for seen, line in enumerate(learnable, start=1):
        if seen <= size:
            chosen.append(line)
        elif (place := generator.randrange(seen)) < size:
            num_characters -= len(chosen[place])
            chosen[place] = line
        else:
            continue
        num_characters += len(line)
        if num_characters > max_characters:
            raise UserError(
                f"tokenizer.max_sentences {size:,}: the sample has more than "
                f"{max_characters:,} characters; lower it"
            )
    return chosen


def without_rare_characters(
    lines: Sequence[str], min_frequency: int | Literal["auto"]
) -> Iterator[str]:
    """The lines with spaces in place of characters that occur less often."""
    if min_frequency == 1:
        yield from lines
        return
    counts = _character_counts(lines)
    least = _automatic_least(counts) if min_frequency == "auto" else min_frequency
    rare = np.flatnonzero((counts > 0) & (counts < least))
    if not len(rare):
        yield from lines
        return
    pattern = re.compile(f"[{re.escape(''.join(map(chr, rare)))}]")
    yield from (pattern.sub(" ", line) for line in lines)


def _automatic_least(counts: npt.NDArray[np.int64]) -> int:
    total = int(counts.sum())
    least = max(LEAST_FREQUENCY, total // _PER_CHARACTERS)
    return least if counts[counts < least].sum() <= _MOST_RARE * total else 1


def _character_counts(lines: Sequence[str]) -> npt.NDArray[np.int64]:
    """How often each code point occurs; spaces are not counted."""
    counts = np.zeros(0x110000, np.int64)
    for start in range(0, len(lines), _LINES_AT_ONCE):
        text = "".join(lines[start : start + _LINES_AT_ONCE])
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        counts += np.bincount(points, minlength=len(counts))
    counts[ord(" ")] = 0
    return counts
