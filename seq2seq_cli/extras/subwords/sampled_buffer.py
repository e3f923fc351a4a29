"""Batches of sampled sentences, which are grouped by the lengths that sampling gives them."""

import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from seq2seq_cli.data.batch_plan import Indices, Plan, by_length, split_into_batches
from seq2seq_cli.data.batch_sampler import BatchSampler, ConsumedParts, ShuffleBuffer
from seq2seq_cli.data.batches import Batch, padded_batch
from seq2seq_cli.data.token_store import Sentences
from seq2seq_cli.data.tokenization import Ids

if TYPE_CHECKING:
    from seq2seq_cli.extras.subwords.sampler import SubwordSampler

POOL = 128  # batches whose pairs are grouped by their sampled lengths

_MEASURED_PAIRS = 2_000  # in which the growth by subword sampling is measured
_MEASURED_BATCHES = 10  # in which the padding with subword sampling is measured


class SubwordSamplers(NamedTuple):
    """The samplers of both sides; None for a side that is not sampled."""

    src: "SubwordSampler | None"
    tgt: "SubwordSampler | None"

    @property
    def key(self) -> str:
        """Identifies the strengths, and the batches that are grouped together."""
        return " ".join(str(sampler and sampler.key) for sampler in self) + f" of {POOL} batches"

    def buffer(
        self, batch_sampler: BatchSampler, pairs: Indices | None, seed: int
    ) -> ShuffleBuffer:
        """Return the buffer of a text, or of some of its pairs."""
        return SampledBuffer(batch_sampler, pairs, seed, self)


class _Pool(NamedTuple):
    """Some batches of an epoch."""

    pairs: Indices
    src: Sequence[Ids]  # sampled
    tgt: Sequence[Ids]
    batches: Plan  # of positions in `pairs`


class SampledBuffer(ShuffleBuffer):
    """Pairs that are shuffled together, and sampled again in every epoch.

    Batches are planned with mean lengths. The pairs of each pool of batches that follow one another
    are then sampled, and grouped by their lengths into as many batches. The longer side of a batch
    has at most about `tokens_per_batch` tokens.
    """

    def __init__(
        self,
        batch_sampler: BatchSampler,
        pairs: Indices | None,
        seed: int,
        samplers: SubwordSamplers,
    ) -> None:
        super().__init__(batch_sampler, pairs, seed)
        self._samplers = samplers
        (src, tgt), store = self._lengths, batch_sampler.store
        self._lengths = (
            self._mean_lengths(src, store.src, samplers.src),
            self._mean_lengths(tgt, store.tgt, samplers.tgt),
        )
        self._pool: tuple[object, _Pool] | None = None

    def _mean_lengths(
        self, lengths: Ids, sentences: Sentences, sampler: "SubwordSampler | None"
    ) -> Ids:
        """Return the mean lengths of sampled sentences, given their lengths without sampling.

        How much longer sampling makes them is measured on some, spread evenly over the pairs.
        """
        if sampler is None:
            return lengths
        count = min(len(lengths), _MEASURED_PAIRS)
        measured = np.linspace(0, len(lengths) - 1, count).astype(np.int32)
        numbers = self._in_text(measured)
        sampled = sampler([sentences[int(i)] for i in numbers], numbers, epoch=1)
        growth = sum(map(len, sampled)) / lengths[measured].sum()
        return np.rint(lengths * growth).astype(np.int32)

    def left_of(self, planned: Plan, used: int, epoch: int) -> Plan:
        number, place = divmod(used, POOL)
        if not place:
            return planned[used:]
        pool = self._make_pool(epoch, planned, number)
        left = [pool.pairs[rows] for rows in pool.batches[place:]]
        return left + planned[(number + 1) * POOL :]

    def batches(self, epoch: int, positions: range, consumed: ConsumedParts) -> list[Batch]:
        """Return the batches at these positions of the plan; the last pool is remembered."""
        plan = self.plan(epoch, consumed)
        batches = []
        for number, place in (divmod(position, POOL) for position in positions):
            key = epoch, tuple(map(tuple, consumed)), number
            if self._pool is None or self._pool[0] != key:
                self._pool = key, self._make_pool(epoch, plan, number)
            pool = self._pool[1]
            rows = pool.batches[place].tolist()
            batches.append(padded_batch([pool.src[i] for i in rows], [pool.tgt[i] for i in rows]))
        return batches

    def batch_of(self, pairs: Indices, epoch: int) -> Batch:
        return padded_batch(*self._sampled(pairs, epoch))

    def padding(self) -> float:
        """Return the fraction of padding, measured on some batches.

        Sampling gives sentences of equal length different lengths.
        """
        some = self.batches(1, range(min(_MEASURED_BATCHES, len(self.plan(1, ())))), ())
        num_tokens = sum(batch.num_tokens + batch.num_src_tokens for batch in some)
        return 1 - num_tokens / sum(batch.num_positions for batch in some)

    def _make_pool(self, epoch: int, plan: Plan, number: int) -> _Pool:
        planned = plan[number * POOL : (number + 1) * POOL]
        pairs = np.concatenate(planned)
        src, tgt = self._sampled(pairs, epoch)
        src_lengths, tgt_lengths = (np.array(list(map(len, side)), np.int32) for side in (src, tgt))
        batches = regroup(src_lengths, tgt_lengths, len(planned), self._sampler.pairs_per_batch)
        generator = np.random.default_rng([self._seed, epoch, number, 1])
        return _Pool(pairs, src, tgt, [batches[i] for i in generator.permutation(len(batches))])

    def _sampled(self, pairs: Indices, epoch: int) -> list[Sequence[Ids]]:
        """Return the ids of both sides of pairs, their subwords sampled as in this epoch."""
        numbers, store = self._in_text(pairs), self._sampler.store
        stored = [[side[int(i)] for i in numbers] for side in (store.src, store.tgt)]
        return [
            ids if sampler is None else sampler(ids, numbers, epoch)
            for ids, sampler in zip(stored, self._samplers, strict=True)
        ]


def regroup(
    src_lengths: Ids, tgt_lengths: Ids, num_batches: int, pairs_per_batch: int | None = None
) -> Plan:
    """Return `num_batches` batches of pairs of similar length, the largest as small as possible.

    Their size counts tokens of the longer side, padding included. There are enough batches for at
    most `pairs_per_batch` pairs in each.
    """
    order = by_length(src_lengths, tgt_lengths)
    lengths = np.maximum(src_lengths, tgt_lengths)[order]

    def split(tokens_per_batch: int) -> Plan:
        return split_into_batches(order, lengths, tokens_per_batch, pairs_per_batch)

    most = int(lengths.sum()) + int(lengths[-1]) * len(order)
    # The number of batches falls as their size grows, and `bisect` looks in rising numbers.
    smallest = bisect.bisect_left(range(most), -num_batches, key=lambda size: -len(split(size)))
    batches = split(smallest)
    while len(batches) < num_batches:
        largest = max(range(len(batches)), key=lambda number: len(batches[number]))
        batches[largest : largest + 1] = np.array_split(batches[largest], 2)
    return batches
