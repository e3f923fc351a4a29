"""Length bucketing: the batches of an epoch and their order, and padded batches as tensors."""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from seq2seq_cli.data.mixture import Indices, pairs_of_epoch
from seq2seq_cli.data.token_store import Sentences, TokenStore
from seq2seq_cli.data.tokenization import Ids
from seq2seq_cli.text.subword_sampling import Samplers, SubwordSampler
from seq2seq_cli.text.tokenizer import BOS_ID, PAD_ID

IGNORE_INDEX = -100  # the label of padding: the default ignore_index of cross_entropy

_MEASURED_PAIRS = 2_000  # how much longer subword sampling makes them
_MEASURED_BATCHES = 10  # how much padding they have with subword sampling
_POOL = 128  # batches whose pairs are grouped by their sampled lengths

_NO_SAMPLERS = Samplers()

Plan = list[Indices]  # for every batch the indices of its pairs
# The parts of an epoch that were trained with another batch size: (tokens_per_batch, batches used).
ConsumedParts = Sequence[Sequence[int]]


def plan_epoch(
    src_lengths: Ids,
    tgt_lengths: Ids,
    tokens_per_batch: int,
    seed: int,
    epoch: int,
    pairs: Indices | None = None,
    pairs_per_batch: int | None = None,
) -> Plan:
    """Return batches of pairs of similar length in random order, purely from the arguments.

    Pairs whose longer sides are equally long are shuffled regardless of their other sides: meeting
    different pairs in every epoch is worth more than less padding. The longer side of a batch has
    at most `tokens_per_batch` tokens, padding included; a longer pair is a batch of its own. A
    batch has at most `pairs_per_batch` pairs. Every pair, or every one of `pairs`, appears once.
    """
    generator = np.random.default_rng([seed, epoch])
    if pairs is None:
        pairs = np.arange(len(src_lengths), dtype=np.int32)
    longer_sides = np.maximum(src_lengths, tgt_lengths)
    shuffled = generator.permutation(pairs)
    order = shuffled[np.argsort(longer_sides[shuffled], kind="stable")]
    batches = _split_into_batches(order, longer_sides[order], tokens_per_batch, pairs_per_batch)
    return [batches[i] for i in generator.permutation(len(batches))]


def bucket_by_length(src_lengths: Ids, tgt_lengths: Ids, tokens_per_batch: int) -> Plan:
    """Return batches of pairs of similar length, longest first, without randomness."""
    order = _by_length(src_lengths, tgt_lengths)[::-1]
    return _split_into_batches(order, np.maximum(src_lengths, tgt_lengths)[order], tokens_per_batch)


def regroup(
    src_lengths: Ids, tgt_lengths: Ids, num_batches: int, pairs_per_batch: int | None = None
) -> Plan:
    """Return so many batches of pairs of similar length, the largest as small as possible.

    Their size is that of `_split_into_batches`: tokens of the longer side, padding included. There
    are batches enough for at most `pairs_per_batch` pairs in each.
    """
    order = _by_length(src_lengths, tgt_lengths)
    lengths = np.maximum(src_lengths, tgt_lengths)[order]

    def num_batches_of(tokens_per_batch: int) -> int:
        return len(_split_into_batches(order, lengths, tokens_per_batch, pairs_per_batch))

    most = int(lengths.sum()) + int(lengths[-1]) * len(order)
    smallest = bisect.bisect_left(range(most), -num_batches, key=lambda size: -num_batches_of(size))
    batches = _split_into_batches(order, lengths, smallest, pairs_per_batch)
    while len(batches) < num_batches:
        largest = max(range(len(batches)), key=lambda number: len(batches[number]))
        batches[largest : largest + 1] = np.array_split(batches[largest], 2)
    return batches


def _by_length(src_lengths: Ids, tgt_lengths: Ids) -> Indices:
    """Return all pairs ordered by their longer sides, so that neighbours are similar in both sides.

    Among pairs whose longer sides are equally long, the other one grows and then shrinks: from a
    short source to a short target, and the other way round for the next length.
    """
    longer_sides = np.maximum(src_lengths, tgt_lengths)
    differences = np.subtract(src_lengths, tgt_lengths, dtype=np.int32)
    order = np.lexsort((np.where(longer_sides % 2, differences, -differences), longer_sides))
    return order.astype(np.int32)


def _split_into_batches(
    order: Indices, lengths: Ids, tokens_per_batch: int, pairs_per_batch: int | None = None
) -> Plan:
    """Split ordered pairs into batches; `lengths` are those of their longer sides."""
    batches = []
    start = 0
    while start < len(order):
        most = max(1, tokens_per_batch // int(lengths[start]))
        ahead = lengths[start : start + min(most, pairs_per_batch or most)]
        sizes = np.maximum.accumulate(ahead, dtype=np.int64) * np.arange(1, len(ahead) + 1)
        end = start + max(1, int(np.searchsorted(sizes, tokens_per_batch, side="right")))
        batches.append(order[start:end])
        start = end
    return batches


@dataclass(frozen=True)
class Batch:
    """Padded ids of B pairs, source S and target T positions."""

    src_BS: Tensor  # ends in EOS, then PAD
    tgt_in_BT: Tensor  # begins with BOS, then PAD
    labels_BT: Tensor  # the next token at each position: ends in EOS, then IGNORE_INDEX
    num_tokens: int  # target tokens, padding excluded
    num_src_tokens: int

    @property
    def num_positions(self) -> int:
        """Positions of both sides, padding included."""
        return self.src_BS.numel() + self.labels_BT.numel()

    def shard(self, count: int, first: int) -> "Batch":
        """Return every `count`-th pair from `first` on, or an empty batch if there is none."""
        if first >= len(self.src_BS):
            return self.empty_like()
        src_BS, tgt_in_BT, labels_BT = (
            ids[first::count] for ids in (self.src_BS, self.tgt_in_BT, self.labels_BT)
        )
        num_tokens = int((labels_BT != IGNORE_INDEX).sum())
        num_src_tokens = int((src_BS != PAD_ID).sum())
        return Batch(src_BS, tgt_in_BT, labels_BT, num_tokens, num_src_tokens)

    def empty_like(self) -> "Batch":
        """Return one pair without labels: its loss and gradients are zero."""
        labels_BT = torch.full_like(self.labels_BT[:1], IGNORE_INDEX)
        return Batch(self.src_BS[:1], self.tgt_in_BT[:1], labels_BT, 0, 0)

    def to(self, device: torch.device) -> "Batch":
        if device.type == "cpu":
            return self
        src_BS, tgt_in_BT, labels_BT = (
            ids.pin_memory().to(device, non_blocking=True)
            for ids in (self.src_BS, self.tgt_in_BT, self.labels_BT)
        )
        return Batch(src_BS, tgt_in_BT, labels_BT, self.num_tokens, self.num_src_tokens)


def make_batch(store: TokenStore, indices: Sequence[int] | Indices) -> Batch:
    """Read the pairs of a batch from the store and pad them."""
    return padded_batch(*([side[int(i)] for i in indices] for side in (store.src, store.tgt)))


def padded_batch(src: Sequence[Ids], tgt: Sequence[Ids]) -> Batch:
    """Make a batch of ids that end in EOS."""
    src_BS, num_src_tokens = _padded(src, PAD_ID)
    labels_BT, num_tokens = _padded(tgt, IGNORE_INDEX)
    tgt_in_BT = np.full_like(labels_BT, BOS_ID)
    tgt_in_BT[:, 1:] = np.where(labels_BT[:, 1:] == IGNORE_INDEX, PAD_ID, labels_BT[:, :-1])
    return Batch(
        torch.from_numpy(src_BS),
        torch.from_numpy(tgt_in_BT),
        torch.from_numpy(labels_BT),
        num_tokens,
        num_src_tokens,
    )


def _padded(rows: Sequence[Ids], padding: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return the rows as one array, and the number of their tokens."""
    padded = np.full((len(rows), max(map(len, rows))), padding, dtype=np.int64)
    for filled, row in zip(padded, rows, strict=True):
        filled[: len(row)] = row
    return padded, sum(map(len, rows))


class _Pool(NamedTuple):
    """Some batches of an epoch with subword sampling."""

    pairs: Indices
    src: Sequence[Ids]  # sampled
    tgt: Sequence[Ids]
    batches: Plan  # of positions in `pairs`


class BatchSampler:
    """The batches of every epoch by (epoch, position): resuming need not fast-forward.

    With subword sampling, batches are planned with mean lengths. The pairs of each pool of batches
    that follow one another are then sampled, and grouped by their lengths into as many batches. The
    longer side of a batch has at most about `tokens_per_batch` tokens.
    """

    def __init__(
        self,
        store: TokenStore,
        tokens_per_batch: int,
        seed: int,
        samplers: Samplers = _NO_SAMPLERS,
        drawn: Sequence[int] | None = None,
        pairs_per_batch: int | None = None,
    ) -> None:
        """`drawn` is how many pairs an epoch draws from each corpus; None: every pair once."""
        self._store, self._samplers = store, samplers
        self.drawn = list(store.sizes if drawn is None else drawn)
        self.is_mixed = self.drawn != list(store.sizes)
        self._lengths = (
            _mean_lengths(store.src, samplers.src),
            _mean_lengths(store.tgt, samplers.tgt),
        )
        self._tokens_per_batch, self._pairs_per_batch = tokens_per_batch, pairs_per_batch
        self._seed = seed
        self._plan = self._make_plan(1, ())
        self._planned: tuple[int, ConsumedParts] = 1, ()
        self._pool: tuple[tuple[int, ConsumedParts, int], _Pool] | None = None
        self._num_batches = len(self._plan)

    @property
    def key(self) -> str:
        """Identifies the pairs of the epochs and their lengths.

        It is a hash of the text, with what epochs draw from its corpora if that is not all of them,
        and with subword sampling its strength and the batches that are grouped together.
        """
        drawn = f"{self.drawn}" if self.is_mixed else ""
        sampled = f"{self._samplers.key} of {_POOL} batches" if any(self._samplers) else ""
        return " ".join(filter(None, [self._store.key, drawn, sampled]))

    def __len__(self) -> int:
        """Return the number of batches in the first epoch, and in others if each has all pairs."""
        return self._num_batches

    def num_batches(self, epochs: range) -> Iterator[tuple[int, int]]:
        """Yield numbers of batches, and how many of the epochs have so many.

        Epochs that draw from corpora differ by some batches, and have to be planned one by one.
        """
        if self.is_mixed:
            yield from ((len(self._make_plan(epoch, ())), 1) for epoch in epochs)
        else:
            yield self._num_batches, len(epochs)

    def plan(self, epoch: int, consumed: ConsumedParts) -> Plan:
        """Return the batches of an epoch, without the pairs of parts that are consumed already."""
        key = epoch, tuple(map(tuple, consumed))
        if self._planned != key:
            self._planned, self._plan = key, self._make_plan(epoch, consumed)
        return self._plan

    def batches(
        self, epoch: int, position: int, count: int, consumed: ConsumedParts = ()
    ) -> list[Batch]:
        """Return up to `count` batches from `position` on, fewer at the end of the epoch."""
        plan = self.plan(epoch, consumed)
        positions = range(position, min(position + count, len(plan)))
        if not any(self._samplers):
            return [make_batch(self._store, plan[position]) for position in positions]
        batches = []
        for number, place in (divmod(position, _POOL) for position in positions):
            pool = self._sampled_pool(epoch, consumed, number)
            rows = pool.batches[place].tolist()
            batches.append(padded_batch([pool.src[i] for i in rows], [pool.tgt[i] for i in rows]))
        return batches

    def _sampled_pool(self, epoch: int, consumed: ConsumedParts, number: int) -> _Pool:
        """Return a pool of the epoch; the one that was asked for last is remembered."""
        key = epoch, tuple(map(tuple, consumed)), number
        if self._pool is None or self._pool[0] != key:
            self._pool = key, self._make_pool(epoch, self.plan(epoch, consumed), number)
        return self._pool[1]

    def _make_pool(self, epoch: int, plan: Plan, number: int) -> _Pool:
        planned = plan[number * _POOL : (number + 1) * _POOL]
        pairs = np.concatenate(planned)
        src, tgt = self._sampled(pairs, epoch)
        src_lengths, tgt_lengths = (np.array(list(map(len, side)), np.int32) for side in (src, tgt))
        batches = regroup(src_lengths, tgt_lengths, len(planned), self._pairs_per_batch)
        generator = np.random.default_rng([self._seed, epoch, number, 1])
        return _Pool(pairs, src, tgt, [batches[i] for i in generator.permutation(len(batches))])

    def _sampled(self, pairs: Indices, epoch: int) -> list[Sequence[Ids]]:
        """Return the ids of both sides of pairs, their subwords sampled as in this epoch."""
        sides: list[Sequence[Ids]] = []
        for sentences, sampler in zip(
            (self._store.src, self._store.tgt), self._samplers, strict=True
        ):
            stored = [sentences[int(i)] for i in pairs]
            sides.append(stored if sampler is None else sampler(stored, pairs, epoch))
        return sides

    def padding(self) -> float:
        """Return the fraction of an epoch's positions, both sides together, that is padding.

        With subword sampling, which gives sentences of one length different ones, it is measured on
        some batches.
        """
        if any(self._samplers):
            some = self.batches(1, 0, _MEASURED_BATCHES)
            num_tokens = sum(batch.num_tokens + batch.num_src_tokens for batch in some)
            return 1 - num_tokens / sum(batch.num_positions for batch in some)
        src, tgt = self._lengths
        positions = sum(map(self._num_positions, self._plan))
        tokens = sum(int(src[pairs].sum() + tgt[pairs].sum()) for pairs in self._plan)
        return 1 - tokens / positions

    def largest_batches(self) -> list[Batch]:
        """Return the batches of an epoch that need the most memory in layers and in attention.

        These are the one with the most positions and the one with the most attention weights, which
        may be the same. With subword sampling they are planned batches, whose sentences have more
        padding after sampling than those of the epoch.
        """
        longer_side = np.maximum(*self._lengths)

        def num_attention_weights(pairs: Indices) -> int:
            return len(pairs) * int(longer_side[pairs].max()) ** 2

        largest = max(self._plan, key=self._num_positions)
        longest = max(self._plan, key=num_attention_weights)
        batches = [largest] if longest is largest else [largest, longest]
        return [padded_batch(*self._sampled(pairs, epoch=1)) for pairs in batches]

    def _left(self, plan: Plan, epoch: int, used: int) -> Plan:
        """Return the pairs of the batches that follow the first `used`."""
        if not any(self._samplers):
            return plan[used:]
        number, place = divmod(used, _POOL)
        if not place:
            return plan[used:]
        pool = self._make_pool(epoch, plan, number)
        return [pool.pairs[rows] for rows in pool.batches[place:]] + plan[(number + 1) * _POOL :]

    def _num_positions(self, pairs: Indices) -> int:
        """Positions of both sides of a batch, padding included."""
        src, tgt = self._lengths
        return len(pairs) * int(src[pairs].max() + tgt[pairs].max())

    def _make_plan(self, epoch: int, consumed: ConsumedParts) -> Plan:
        def plan(tokens_per_batch: int, pairs: Indices | None) -> Plan:
            seed, most = self._seed, self._pairs_per_batch
            return plan_epoch(*self._lengths, tokens_per_batch, seed, epoch, pairs, most)

        pairs = pairs_of_epoch(self._store.sizes, self.drawn, self._seed, epoch)
        for tokens_per_batch, used in consumed:
            pairs = np.sort(np.concatenate(self._left(plan(tokens_per_batch, pairs), epoch, used)))
        return plan(self._tokens_per_batch, pairs)


def _mean_lengths(sentences: Sentences, sampler: SubwordSampler | None) -> Ids:
    """Return the lengths in tokens, EOS included; with a sampler, those that it gives on average.

    How much longer it makes sentences is measured on some, spread evenly over the corpus.
    """
    lengths = sentences.lengths()
    if sampler is None:
        return lengths
    measured = np.linspace(0, len(lengths) - 1, min(len(lengths), _MEASURED_PAIRS)).astype(np.int32)
    sampled = sampler([sentences[int(i)] for i in measured], measured, epoch=1)
    growth = sum(map(len, sampled)) / lengths[measured].sum()
    longer: Ids = np.rint(lengths * growth).astype(np.int32)
    return longer
