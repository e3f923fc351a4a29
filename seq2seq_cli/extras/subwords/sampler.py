"""Samples the segmentation of text into subwords, again in every epoch.

A sentence is cut into stretches that no piece of the vocabulary reaches across, such as words.
These are segmented independently, each with random bits that depend on seed, side, epoch, pair and
position alone; so the ids of a pair do not depend on when and in which process it is read.

N tokens of B sentences, W stretches, C of them that may change.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from seq2seq_cli.config.schema import TrainingConfig
from seq2seq_cli.config.types import TOKENIZER_KINDS
from seq2seq_cli.data.tokenization import Ids
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.subwords.sampled_buffer import SubwordSamplers
from seq2seq_cli.extras.subwords.segmenters import (
    SEGMENTERS,
    Counts,
    LearnedPiece,
    Pieces,
    Stretches,
    find_in_sorted,
    mix,
    ranges,
)
from seq2seq_cli.tokenizers.sentencepiece_tokenizer import parsed
from seq2seq_cli.tokenizers.tokenizer import Tokenizer, Tokenizers


class SubwordSampler:
    """Samples the segmentations of sentences, which are given by their ids without sampling."""

    def __init__(
        self, tokenizer: Tokenizer, strength: float, longest: int, seed: Sequence[int]
    ) -> None:
        """`strength`: see `SubwordSampling`; `seed` also tells the two sides apart.

        A sentence that would get more than `longest` ids is not sampled.
        """
        learned = learned_pieces(tokenizer.model)
        # Characters are pieces in every vocabulary that this package learns.
        pieces = {piece: entry for piece, entry in learned.items() if learned.keys() >= set(piece)}
        self._seams = _Seams(pieces, len(tokenizer))
        self._segment = SEGMENTERS[tokenizer.kind](pieces, len(tokenizer), strength).segment
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


def make_samplers(
    tokenizers: Tokenizers, training: TrainingConfig, max_length: int
) -> SubwordSamplers:
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
        if not TOKENIZER_KINDS[tokenizer.kind].has_subwords:
            raise UserError(
                f"training.subword_sampling: the vocabulary is of kind {tokenizer.kind}, which has "
                "no subwords to sample: choose one of kind bpe or unigram, or leave the option out"
            )
        seed = [training.seed, side]
        sides[side] = SubwordSampler(tokenizer, strength, max_length + 1, seed)
    return SubwordSamplers(*sides)


def learned_pieces(model: bytes) -> dict[str, LearnedPiece]:
    """Return the entries that were learned, without special tokens, bytes and symbols."""
    return {
        entry.piece: LearnedPiece(number, entry.score)
        for number, entry in enumerate(parsed(model).pieces)
        if entry.type == entry.NORMAL
    }
