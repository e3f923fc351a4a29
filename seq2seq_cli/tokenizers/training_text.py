"""The text that a vocabulary is learned from: a sample of lines without rare characters."""

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from seq2seq_cli.config.tokenizer import is_symbol
from seq2seq_cli.errors import UserError

MAX_LINE_BYTES = 65_536  # the vocabulary is not learned from longer lines
MAX_CHARACTERS = 1 << 31  # in all lines together, which SentencePiece keeps in memory
_CHARACTERS_AT_ONCE = 1 << 20  # which take 12 bytes each while they are counted

# `min_character_frequency: auto`. An entry is worth its frequency. The frequency of the rarest
# pieces of a vocabulary grows with the text, as does the frequency of noise.
LEAST_FREQUENCY = 5
_PER_CHARACTERS = 1_000_000
_MOST_RARE = 0.02  # of all characters; in a small text every character is rare


def clusters(text: str) -> list[str]:
    """Split text into what readers take for characters (Unicode Standard Annex 29)."""
    import regex  # 10 ms, which translating does not need

    return regex.findall(r"\X", text)


def sample(lines: Iterable[str], size: int, max_characters: int = MAX_CHARACTERS) -> list[str]:
    """Draw up to `size` lines at random (Vitter 1985, algorithm R).

    Raises UserError if they have too many characters. SentencePiece can sample too, but not
    reproducibly.
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
    rare = np.flatnonzero((counts > 0) & (counts < _least(counts, min_frequency)))
    if not len(rare):
        yield from lines
        return
    pattern = re.compile(f"[{re.escape(''.join(map(chr, rare)))}]")
    yield from (pattern.sub(" ", line) for line in lines)


def num_frequent_characters(lines: Iterable[str], min_frequency: int | Literal["auto"]) -> int:
    """Return the number of different characters that are not rare."""
    counts = _character_counts(lines)
    return int(np.count_nonzero(counts >= _least(counts, min_frequency)))


def _least(counts: npt.NDArray[np.int64], min_frequency: int | Literal["auto"]) -> int:
    """Return the frequency below which a character is rare."""
    if min_frequency != "auto":
        return min_frequency
    total = int(counts.sum())
    least = max(LEAST_FREQUENCY, total // _PER_CHARACTERS)
    return least if counts[counts < least].sum() <= _MOST_RARE * total else 1


def _character_counts(lines: Iterable[str]) -> npt.NDArray[np.int64]:
    """Count each code point except spaces."""
    counts = np.zeros(0x110000, np.int64)
    for block in _blocks(lines):
        points = np.frombuffer(block.encode("utf-32-le"), np.uint32)
        counts += np.bincount(points, minlength=len(counts))
    counts[ord(" ")] = 0
    return counts


def _blocks(lines: Iterable[str]) -> Iterator[str]:
    """Join the lines to blocks of at least `_CHARACTERS_AT_ONCE`, except for the last one."""
    block, size = [], 0
    for line in lines:
        block.append(line)
        size += len(line)
        if size >= _CHARACTERS_AT_ONCE:
            yield "".join(block)
            block, size = [], 0
    yield "".join(block)


def grapheme_clusters(lines: Iterable[str], most: int) -> list[str]:
    """Return the most frequent characters of several code points that may be entries, sorted."""
    counts = Counter(x for line in lines for x in clusters(line) if len(x) > 1)
    found = {x: count for x, count in counts.items() if is_symbol(x)}
    return sorted(sorted(found, key=lambda x: (-found[x], x))[:most])
