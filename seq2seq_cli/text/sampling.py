"""Selects the lines that a vocabulary is learnt from: a sample, without rare characters."""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from seq2seq_cli.errors import UserError

MAX_LINE_BYTES = 65_536  # the vocabulary is not learnt from longer lines
MAX_CHARACTERS = 1 << 31  # in all lines together, which SentencePiece keeps in memory
_LINES_AT_ONCE = 10_000

# `min_character_frequency: auto`. An entry is worth its frequency. The frequency of the rarest
# pieces of a vocabulary grows with the text, and so does that of noise.
LEAST_FREQUENCY = 5
_PER_CHARACTERS = 1_000_000
_MOST_RARE = 0.02  # of all characters; in a small text every character is rare


def sample(lines: Iterable[str], size: int, max_characters: int = MAX_CHARACTERS) -> list[str]:
    """Draw up to `size` lines at random (Vitter 1985, algorithm R), the same in every process.

    SentencePiece can sample too, but not reproducibly. Raises UserError if the sample is too large
    for memory.
    """
    generator = random.Random(0)
    sampled: list[str] = []
    num_characters = 0
    learnable = (line for line in lines if len(line) <= MAX_LINE_BYTES)
    for seen, line in enumerate(learnable, start=1):
        if seen <= size:
            sampled.append(line)
        elif (index := generator.randrange(seen)) < size:
            num_characters -= len(sampled[index])
            sampled[index] = line
        else:
            continue
        num_characters += len(line)
        if num_characters > max_characters:
            raise UserError(
                f"tokenizer.max_sentences {size:,}: the sample has more than "
                f"{max_characters:,} characters; lower it"
            )
    return sampled


def without_rare_characters(
    lines: Sequence[str], min_frequency: int | Literal["auto"]
) -> Iterator[str]:
    """Yield the lines with rare characters replaced by spaces."""
    if min_frequency == 1:
        yield from lines
        return
    counts = _character_counts(lines)
    least = _auto_min_frequency(counts) if min_frequency == "auto" else min_frequency
    rare = np.flatnonzero((counts > 0) & (counts < least))
    if not len(rare):
        yield from lines
        return
    pattern = re.compile(f"[{re.escape(''.join(map(chr, rare)))}]")
    yield from (pattern.sub(" ", line) for line in lines)


def _auto_min_frequency(counts: npt.NDArray[np.int64]) -> int:
    total = int(counts.sum())
    least = max(LEAST_FREQUENCY, total // _PER_CHARACTERS)
    return least if counts[counts < least].sum() <= _MOST_RARE * total else 1


def _character_counts(lines: Sequence[str]) -> npt.NDArray[np.int64]:
    """Count each code point except spaces."""
    counts = np.zeros(0x110000, np.int64)
    for start in range(0, len(lines), _LINES_AT_ONCE):
        text = "".join(lines[start : start + _LINES_AT_ONCE])
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        counts += np.bincount(points, minlength=len(counts))
    counts[ord(" ")] = 0
    return counts
