"""Subword sampling: the segmentation of text into subwords, sampled again in every epoch.

A sentence is cut into stretches that no piece of the vocabulary reaches across, such as words.
These are segmented independently, each with random bits that depend on seed, side, epoch, pair and
position alone; so the ids of a pair do not depend on when and in which process it is read.

N tokens of B sentences, W stretches, C of them that may change.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seq2seq_cli.config.schema import TrainingConfig
from seq2seq_cli.config.types import TOKENIZER_KINDS
from seq2seq_cli.errors import UserError
from seq2seq_cli.plugins import implementation
from seq2seq_cli.tokenizers.tokenizer import LearnedPiece, Tokenizer, Tokenizers

Ids = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint64]
Pieces = Mapping[str, LearnedPiece]


class Stretches(NamedTuple):
    """Stretches of text that are segmented apart from one another."""

    ids_N: Ids  # of all text, as the tokenizer segments it without sampling
    starts_W: Counts  # of each stretch in `ids_N`
    sizes_W: Counts  # in tokens
    numbers_W: Numbers  # random bits of each, which determine its segmentation


class Segmentations(NamedTuple):
    """New ids of the stretches that may differ, one after the other."""

    changed_C: Counts  # the indices of these stretches, in order
    sizes_C: Counts  # in tokens
    ids_N: Counts


_Segment = Callable[[Stretches], Segmentations]
NO_SEGMENTATIONS = Segmentations(*np.zeros((3, 0), np.int64))


class SubwordSampler:
    """Samples the segmentations of sentences, which are given by their ids without sampling."""

    def __init__(
        self, tokenizer: Tokenizer, strength: float, longest: int, seed: Sequence[int]
    ) -> None:
        """`strength`: see `SubwordSampling`; `seed` also tells the two sides apart.

        A sentence that would get more than `longest` ids is not sampled.
        """
        segmenter = implementation("tokenizers", TOKENIZER_KINDS[tokenizer.kind].sampler or "")
        learned = tokenizer.learned_pieces()
        # Characters are pieces in every vocabulary that this package learns.
        pieces = {piece: entry for piece, entry in learned.items() if learned.keys() >= set(piece)}
        self._seams = _Seams(pieces, len(tokenizer))
        self._segment: _Segment = segmenter(pieces, len(tokenizer), strength).segment
        self.key = f"{strength:g}"
        self._longest = longest
        self._seed = np.random.SeedSequence(seed).generate_state(1, np.uint64)

    def __call__(
        self, sentences: Sequence[Ids], pairs: Sequence[int] | Ids, epoch: int
    ) -> Sequence[Ids]:
        """Return sampled ids of sentences; `pairs` are the indices of their pairs in the corpus."""
        ids_N = np.concatenate(sentences)
        ends_B = np.cumsum([len(sentence) for sentence in sentences])
        starts_W = self._seams.starts(ids_N)
        rows_W = np.searchsorted(ends_B, starts_W, side="right")  # the sentence of each stretch
        offsets_W = starts_W - np.append(0, ends_B)[rows_W]
        numbers_W = mix(self._seed + np.uint64(epoch))
        numbers_W = mix(numbers_W + np.asarray(pairs).astype(np.uint64)[rows_W])
        numbers_W = mix(numbers_W + offsets_W.astype(np.uint64))
        sizes_W = np.diff(np.append(starts_W, len(ids_N)))
        changed_C, new_sizes_C, new_ids_N = self._segment(
            Stretches(ids_N, starts_W, sizes_W, numbers_W)
        )
        is_kept_W = np.ones(len(sizes_W), np.bool_)
        is_kept_W[changed_C] = False
        kept_W = ranges(starts_W[is_kept_W], sizes_W[is_kept_W])
        sizes_W[changed_C] = new_sizes_C
        starts_W = np.cumsum(sizes_W) - sizes_W
        sampled_N = np.empty(sizes_W.sum(), np.int32)
        sampled_N[ranges(starts_W[is_kept_W], sizes_W[is_kept_W])] = ids_N[kept_W]
        sampled_N[ranges(starts_W[changed_C], new_sizes_C)] = new_ids_N
        sizes_B = np.bincount(rows_W, weights=sizes_W).astype(np.int64)
        new_B = np.split(sampled_N, np.cumsum(sizes_B)[:-1])
        is_new_B = np.bincount(rows_W[changed_C], minlength=len(sizes_B)) > 0
        is_new_B &= sizes_B <= self._longest
        return [
            new if is_new else old
            for is_new, new, old in zip(is_new_B.tolist(), new_B, sentences, strict=True)
        ]


class _Seams:
    """Finds where text can be cut into stretches that are segmented apart from one another.

    There, no piece of the vocabulary has the last character before the cut and the first one after
    it side by side. A token that was not learned from text, as EOS or a byte, stands alone.
    """

    def __init__(self, pieces: Pieces, vocab_size: int) -> None:
        characters = {piece: index for index, piece in enumerate(p for p in pieces if len(p) == 1)}
        self._num_classes = len(characters) + 1
        self._first_V, self._last_V = np.full((2, vocab_size), len(characters))
        adjacent: set[tuple[int, int]] = set()
        for piece, (number, _) in pieces.items():
            classes = [characters[character] for character in piece]
            self._first_V[number], self._last_V[number] = classes[0], classes[-1]
            adjacent.update(itertools.pairwise(classes))
        self._adjacent = np.array(sorted(a * self._num_classes + b for a, b in adjacent) or [-1])

    def starts(self, ids_N: Ids) -> Counts:
        """Return the positions where stretches begin."""
        pairs = self._last_V[ids_N[:-1]] * self._num_classes + self._first_V[ids_N[1:]]
        is_within, _ = find_in_sorted(self._adjacent, pairs)
        return np.flatnonzero(np.append(True, ~is_within))


class Samplers(NamedTuple):
    """The samplers of both sides; None for a side that is not sampled."""

    src: SubwordSampler | None = None
    tgt: SubwordSampler | None = None

    @property
    def key(self) -> str:
        """Identifies the options that the lengths of sampled sentences depend on."""
        return " ".join(str(sampler and sampler.key) for sampler in self) if any(self) else ""


def make_samplers(tokenizers: Tokenizers, training: TrainingConfig, max_length: int) -> Samplers:
    """Return the samplers of `training.subword_sampling`.

    A sentence that sampling would make longer than `max_length` (EOS not counted) is not sampled.
    Raises UserError if a vocabulary, which may come from another run, has no subwords.
    """
    sampling = training.subword_sampling
    sides: list[SubwordSampler | None] = [None, None]
    for side, strength in enumerate((sampling.src, sampling.tgt)):
        if strength is None:
            continue
        tokenizer = tokenizers[side]
        if TOKENIZER_KINDS[tokenizer.kind].sampler is None:
            raise UserError(
                f"training.subword_sampling: the vocabulary is of kind {tokenizer.kind}, which has "
                "no subwords to sample: choose one of kind bpe or unigram, or leave the option out"
            )
        seed = [training.seed, side]
        sides[side] = SubwordSampler(tokenizer, strength, max_length + 1, seed)
    return Samplers(*sides)


def find_in_sorted(table: Counts, values: Counts) -> tuple[npt.NDArray[np.bool_], Counts]:
    """Return whether the sorted table, which is not empty, has each value, and the place."""
    places = np.searchsorted(table, values).clip(max=len(table) - 1)
    return table[places] == values, places


def ranges(starts: Counts, sizes: Counts) -> Counts:
    """Return the numbers from each start on, as many as its size, one range after the other."""
    ends = np.cumsum(sizes)
    positions: Counts = np.repeat(starts - (ends - sizes), sizes) + np.arange(sizes.sum())
    return positions


def mix(numbers: Numbers) -> Numbers:
    """Return a hash of 64-bit numbers (SplitMix64: Steele et al. 2014)."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
