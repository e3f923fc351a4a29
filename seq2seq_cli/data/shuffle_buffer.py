"""The pairs of a text that are shuffled together, and their batches in every epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from seq2seq_cli.data.batches import Batch, Plan, make_batch, padded_batch, plan_epoch, regroup
from seq2seq_cli.data.mixture import Indices, pairs_of_epoch
from seq2seq_cli.data.token_store import Sentences, TokenStore
from seq2seq_cli.data.tokenization import Ids
from seq2seq_cli.tokenizers.subword_sampling import Samplers, SubwordSampler

POOL = 128  # batches whose pairs are grouped by their sampled lengths

_MEASURED_PAIRS = 2_000  # how much longer subword sampling makes them
_MEASURED_BATCHES = 10  # how much padding they have with subword sampling
_BLOCK = 1 << 12  # consecutive pairs of a large text that go into the same buffer

# The parts of an epoch that were trained with another batch size: (tokens_per_batch, batches used).
ConsumedParts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Batching:
    """What the batches depend on, except for the text."""

    tokens_per_batch: int
    seed: int
    samplers: Samplers
    drawn: Sequence[int]  # pairs of each corpus in an epoch
    pairs_per_batch: int | None


class _Pool(NamedTuple):
    """Some batches of an epoch with subword sampling."""

    pairs: Indices
    src: Sequence[Ids]  # sampled
    tgt: Sequence[Ids]
    batches: Plan  # of positions in `pairs`


class ShuffleBuffer:
    """Pairs that are shuffled together: all of a text, or some of a large one.

    With subword sampling, batches are planned with mean lengths. The pairs of each pool of batches
    that follow one another are then sampled, and grouped by their lengths into as many batches. The
    longer side of a batch has at most about `tokens_per_batch` tokens.
    """

    def __init__(
        self, store: TokenStore, batching: Batching, pairs: Indices | None, seed: int
    ) -> None:
        """`pairs`: of the buffer, consecutive in blocks; None: all of the text."""
        self._store, self._batching, self._pairs = store, batching, pairs
        self._seed = seed
        self._lengths = (
            _mean_lengths(store.src, batching.samplers.src, pairs),
            _mean_lengths(store.tgt, batching.samplers.tgt, pairs),
        )
        self._planned: tuple[object, Plan] | None = None
        self._pool: tuple[object, _Pool] | None = None

    def plan(
        self, epoch: int, consumed: ConsumedParts, tokens_per_batch: int | None = None
    ) -> Plan:
        """Return the batches of an epoch, without the pairs of parts that are consumed already.

        They have the positions of pairs in the buffer. The batch size may be another one than that
        of training.
        """
        budget = tokens_per_batch or self._batching.tokens_per_batch
        key = epoch, tuple(map(tuple, consumed)), budget
        if self._planned is None or self._planned[0] != key:
            self._planned = key, self._make_plan(epoch, consumed, budget)
        return self._planned[1]

    def batches(self, epoch: int, positions: range, consumed: ConsumedParts) -> list[Batch]:
        """Return the batches at these positions of the plan."""
        plan = self.plan(epoch, consumed)
        if not any(self._batching.samplers):
            return [make_batch(self._store, self._in_text(plan[place])) for place in positions]
        batches = []
        for number, place in (divmod(position, POOL) for position in positions):
            pool = self._sampled_pool(epoch, consumed, number)
            rows = pool.batches[place].tolist()
            batches.append(padded_batch([pool.src[i] for i in rows], [pool.tgt[i] for i in rows]))
        return batches

    def padding(self) -> float:
        """Return the fraction of an epoch's positions, both sides together, that is padding.

        With subword sampling, which gives sentences of one length different ones, it is measured on
        some batches.
        """
        plan = self.plan(1, ())
        if any(self._batching.samplers):
            some = self.batches(1, range(min(_MEASURED_BATCHES, len(plan))), ())
            num_tokens = sum(batch.num_tokens + batch.num_src_tokens for batch in some)
            return 1 - num_tokens / sum(batch.num_positions for batch in some)
        src, tgt = self._lengths
        positions = sum(map(self.num_positions, plan))
        return 1 - sum(int(src[pairs].sum() + tgt[pairs].sum()) for pairs in plan) / positions

    def num_positions(self, pairs: Indices) -> int:
        """Return the positions of both sides of a batch, padding included."""
        src, tgt = self._lengths
        return len(pairs) * int(src[pairs].max() + tgt[pairs].max())

    def largest_batches(self) -> list[Batch]:
        """See `BatchSampler.largest_batches`."""

        def attention_weights(pairs: Indices) -> int:  # of the longer side, of each head
            return len(pairs) * max(int(lengths[pairs].max()) for lengths in self._lengths) ** 2

        plan = self.plan(1, ())
        largest, longest = max(plan, key=self.num_positions), max(plan, key=attention_weights)
        batches = [largest] if longest is largest else [largest, longest]
        return [padded_batch(*self._sampled(pairs, epoch=1)) for pairs in batches]

    def _in_text(self, pairs: Indices) -> Indices:
        """Return the numbers in the text of pairs of this buffer."""
        return pairs if self._pairs is None else self._pairs[pairs]

    def _sampled_pool(self, epoch: int, consumed: ConsumedParts, number: int) -> _Pool:
        """Return a pool of the epoch; the one that was asked for last is remembered."""
        key = epoch, tuple(map(tuple, consumed)), number
        if self._pool is None or self._pool[0] != key:
            self._pool = key, self._make_pool(epoch, self.plan(epoch, consumed), number)
        return self._pool[1]

    def _make_pool(self, epoch: int, plan: Plan, number: int) -> _Pool:
        planned = plan[number * POOL : (number + 1) * POOL]
        pairs = np.concatenate(planned)
        src, tgt = self._sampled(pairs, epoch)
        src_lengths, tgt_lengths = (np.array(list(map(len, side)), np.int32) for side in (src, tgt))
        most = self._batching.pairs_per_batch
        batches = regroup(src_lengths, tgt_lengths, len(planned), most)
        generator = np.random.default_rng([self._seed, epoch, number, 1])
        return _Pool(pairs, src, tgt, [batches[i] for i in generator.permutation(len(batches))])

    def _sampled(self, pairs: Indices, epoch: int) -> list[Sequence[Ids]]:
        """Return the ids of both sides of pairs, their subwords sampled as in this epoch."""
        numbers, sides = self._in_text(pairs), (self._store.src, self._store.tgt)
        stored = [[sentences[int(i)] for i in numbers] for sentences in sides]
        return [
            ids if sampler is None else sampler(ids, numbers, epoch)
            for ids, sampler in zip(stored, self._batching.samplers, strict=True)
        ]

    def _left(self, plan: Plan, epoch: int, used: int) -> Plan:
        """Return the pairs of the batches that follow the first `used`."""
        number, place = divmod(used, POOL)
        if not any(self._batching.samplers) or not place:
            return plan[used:]
        pool = self._make_pool(epoch, plan, number)
        return [pool.pairs[rows] for rows in pool.batches[place:]] + plan[(number + 1) * POOL :]

    def _make_plan(self, epoch: int, consumed: ConsumedParts, budget: int) -> Plan:
        def plan(tokens_per_batch: int, pairs: Indices | None) -> Plan:
            most = self._batching.pairs_per_batch
            return plan_epoch(*self._lengths, tokens_per_batch, self._seed, epoch, pairs, most)

        sizes, drawn = self._store.sizes, self._batching.drawn
        pairs = pairs_of_epoch(sizes, drawn, self._seed, epoch)
        for tokens_per_batch, used in consumed:
            left = self._left(plan(tokens_per_batch, pairs), epoch, used)
            pairs = np.sort(np.concatenate([np.zeros(0, np.int32), *left]))
        return plan(budget, pairs)


def blocks_of_buffers(num_pairs: int, most: int, seed: int) -> list[Indices] | None:
    """Divide the blocks of a large text at random among buffers of about `most` pairs.

    Returns the numbers of the blocks of each buffer in order, or None if one buffer holds all.
    """
    if num_pairs <= most:
        return None
    blocks = np.random.default_rng([seed, 0]).permutation(-(-num_pairs // _BLOCK))
    return [np.sort(part) for part in np.array_split(blocks, -(-num_pairs // most))]


def pairs_of_blocks(blocks: Indices, num_pairs: int) -> Indices:
    """Return the numbers of the pairs in these blocks, in order."""
    pairs = (blocks[:, None] * _BLOCK + np.arange(_BLOCK)).reshape(-1)
    return pairs[: np.searchsorted(pairs, num_pairs)]


def _mean_lengths(
    sentences: Sentences, sampler: SubwordSampler | None, pairs: Indices | None
) -> Ids:
    """Return the lengths in tokens, EOS included; with a sampler, those that it gives on average.

    How much longer it makes sentences is measured on some, spread evenly over the pairs.
    """
    if pairs is None:
        lengths = sentences.lengths()
    else:  # consecutive in blocks
        starts = range(0, len(pairs), _BLOCK)
        blocks = ((pairs[start], pairs[min(start + _BLOCK, len(pairs)) - 1]) for start in starts)
        lengths = np.concatenate([sentences.lengths(int(a), int(b) + 1) for a, b in blocks])
    if sampler is None:
        return lengths
    measured = np.linspace(0, len(lengths) - 1, min(len(lengths), _MEASURED_PAIRS)).astype(np.int32)
    numbers = measured if pairs is None else pairs[measured]
    sampled = sampler([sentences[int(i)] for i in numbers], numbers, epoch=1)
    growth = sum(map(len, sampled)) / lengths[measured].sum()
    longer: Ids = np.rint(lengths * growth).astype(np.int32)
    return longer
