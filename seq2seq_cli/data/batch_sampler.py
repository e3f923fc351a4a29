"""The batches of every epoch by epoch and position, in memory that does not grow with the text."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from seq2seq_cli.data.batch_plan import Indices, Plan, pairs_of_epoch, plan_epoch
from seq2seq_cli.data.batches import Batch, make_batch
from seq2seq_cli.data.token_store import Sentences, TokenStore
from seq2seq_cli.data.tokenization import Ids

MOST_PAIRS = 1 << 22  # that are shuffled together: 200 MB

_BLOCK = 1 << 12  # consecutive pairs of a large text that go into the same buffer

# The parts of an epoch that were trained with another batch size: (tokens_per_batch, batches used).
ConsumedParts = Sequence[Sequence[int]]


class Samplers(Protocol):
    """Subword sampling, of which `extras/subwords` has an implementation."""

    @property
    def key(self) -> str:
        """Identifies the options that the lengths of sampled sentences depend on."""

    def buffer(
        self, batch_sampler: "BatchSampler", pairs: Indices | None, seed: int
    ) -> "ShuffleBuffer":
        """Return a buffer whose sentences are segmented again in every epoch."""


class BatchSampler:
    """The batches of every epoch by (epoch, position): resuming need not fast-forward.

    A text of more than `most_pairs`, of which every pair is drawn once, is divided at random, in
    blocks of consecutive pairs, among buffers. An epoch takes these in random order and shuffles
    each.
    """

    def __init__(
        self,
        store: TokenStore,
        tokens_per_batch: int,
        seed: int,
        samplers: Samplers | None = None,
        drawn: Sequence[int] | None = None,
        pairs_per_batch: int | None = None,
        most_pairs: int = MOST_PAIRS,
    ) -> None:
        """`drawn` is how many pairs an epoch draws from each corpus; None: every pair once."""
        self.store, self.samplers, self.seed = store, samplers, seed
        self.tokens_per_batch, self.pairs_per_batch = tokens_per_batch, pairs_per_batch
        self.drawn = list(store.sizes if drawn is None else drawn)
        self.is_mixed = self.drawn != list(store.sizes)
        self._blocks: list[Indices | None] = [None]  # of each buffer, in order; None: all
        if len(store) > most_pairs and not self.is_mixed:
            blocks = np.random.default_rng([seed, 0]).permutation(-(-len(store) // _BLOCK))
            parts = np.array_split(blocks, -(-len(store) // most_pairs))
            self._blocks = [np.sort(part) for part in parts]
        self._opened: tuple[int, ShuffleBuffer] | None = None
        self._counted: dict[tuple[int, int], int] = {}
        self._left: tuple[object, list[tuple[int, ConsumedParts, int]]] | None = None
        self._num_batches = self.num_left(1, ())

    @property
    def key(self) -> str:
        """Identifies the pairs of the epochs and their lengths.

        It has the hash of the text, what is drawn if that is not all, and the key of any samplers.
        """
        drawn = f"{self.drawn}" if self.is_mixed else ""
        sampled = self.samplers.key if self.samplers else ""
        return " ".join(filter(None, [self.store.key, drawn, sampled]))

    def __len__(self) -> int:
        """Return the number of batches in the first epoch, and in others if each has all pairs."""
        return self._num_batches

    def num_batches(self, epochs: range) -> Iterator[tuple[int, int]]:
        """Yield a number of batches, and how many of the epochs have it; mixed epochs differ."""
        if self.is_mixed:
            yield from ((self.num_left(epoch, ()), 1) for epoch in epochs)
        else:
            yield self._num_batches, len(epochs)

    def num_left(self, epoch: int, consumed: ConsumedParts) -> int:
        """Return the number of batches of an epoch, without the parts that are consumed already."""
        return sum(count for *_, count in self._buffers_left(epoch, consumed))

    def batches(
        self, epoch: int, position: int, count: int, consumed: ConsumedParts = ()
    ) -> list[Batch]:
        """Return up to `count` batches from `position` on, fewer at the end of the epoch."""
        batches: list[Batch] = []
        for number, parts, size in self._buffers_left(epoch, consumed):
            if position < size and len(batches) < count:
                positions = range(position, min(size, position + count - len(batches)))
                batches += self.buffer(number).batches(epoch, positions, parts)
            position = max(0, position - size)
        return batches

    def first_buffer(self) -> "ShuffleBuffer":
        """Return the buffer that the first epoch begins with, which has all pairs or many."""
        return self.buffer(self._order(1)[0])

    def _order(self, epoch: int) -> list[int]:
        """Return the order of the buffers in an epoch."""
        return np.random.default_rng([self.seed, epoch]).permutation(len(self._blocks)).tolist()

    def buffer(self, number: int) -> "ShuffleBuffer":
        """Return a buffer; the latest one is remembered."""
        if self._opened is None or self._opened[0] != number:
            self._opened = None  # first free its memory
            pairs, seed = None, self.seed
            if (blocks := self._blocks[number]) is not None:
                pairs = (blocks[:, None] * _BLOCK + np.arange(_BLOCK)).reshape(-1)
                pairs = pairs[: np.searchsorted(pairs, len(self.store))]
                seed = int(np.random.default_rng([seed, 1, number]).integers(1 << 32))
            make = ShuffleBuffer if self.samplers is None else self.samplers.buffer
            self._opened = number, make(self, pairs, seed)
        return self._opened[1]

    def _buffers_left(
        self, epoch: int, consumed: ConsumedParts
    ) -> list[tuple[int, ConsumedParts, int]]:
        """Return (number, consumed parts, batches) of what is left; the first may have parts."""
        key = epoch, tuple(map(tuple, consumed))
        if self._left is not None and self._left[0] == key:
            return self._left[1]
        order = self._order(epoch)
        parts: list[Sequence[int]] = []  # of the first buffer
        for tokens_per_batch, used in consumed:
            while order and used >= (size := self._size(order[0], epoch, parts, tokens_per_batch)):
                used -= size
                order.pop(0)
                parts = []
            if used:
                parts = [*parts, (tokens_per_batch, used)]
        left: list[tuple[int, ConsumedParts, int]] = []
        for number in order:
            left.append((number, parts, self._size(number, epoch, parts, self.tokens_per_batch)))
            parts = []
        self._left = key, left
        return left

    def _size(self, number: int, epoch: int, consumed: ConsumedParts, tokens_per_batch: int) -> int:
        """Return the number of batches of a buffer; of a whole one it is the same in all epochs."""
        if consumed or self.is_mixed:
            return len(self.buffer(number).plan(epoch, consumed, tokens_per_batch))
        key = number, tokens_per_batch
        if key not in self._counted:
            self._counted[key] = len(self.buffer(number).plan(epoch, (), tokens_per_batch))
        return self._counted[key]


class ShuffleBuffer:
    """Pairs that are shuffled together: all of a text, or some of a large one."""

    def __init__(self, sampler: BatchSampler, pairs: Indices | None, seed: int) -> None:
        """`pairs`: of the buffer, consecutive in blocks; None: all of the text."""
        self._sampler, self._pairs, self._seed = sampler, pairs, seed
        store = sampler.store
        self._lengths = self._stored_lengths(store.src), self._stored_lengths(store.tgt)
        self._planned: tuple[object, Plan] | None = None

    def _stored_lengths(self, sentences: Sentences) -> Ids:
        """Return the lengths in tokens, EOS included."""
        pairs = self._pairs
        if pairs is None:
            return sentences.lengths()
        starts = range(0, len(pairs), _BLOCK)
        blocks = ((pairs[start], pairs[min(start + _BLOCK, len(pairs)) - 1]) for start in starts)
        return np.concatenate([sentences.lengths(int(a), int(b) + 1) for a, b in blocks])

    def plan(
        self, epoch: int, consumed: ConsumedParts, tokens_per_batch: int | None = None
    ) -> Plan:
        """Return the batches of an epoch, without consumed parts, as positions in the buffer.

        The latest plan is remembered.
        """
        sampler = self._sampler
        budget = tokens_per_batch or sampler.tokens_per_batch
        key = epoch, tuple(map(tuple, consumed)), budget
        if self._planned is not None and self._planned[0] == key:
            return self._planned[1]

        def plan(tokens: int, pairs: Indices | None) -> Plan:
            most = sampler.pairs_per_batch
            return plan_epoch(*self._lengths, tokens, self._seed, epoch, pairs, most)

        pairs = pairs_of_epoch(sampler.store.sizes, sampler.drawn, self._seed, epoch)
        for tokens, used in consumed:
            left = self.left_of(plan(tokens, pairs), used, epoch)
            pairs = np.sort(np.concatenate([np.zeros(0, np.int32), *left]))
        self._planned = key, plan(budget, pairs)
        return self._planned[1]

    def left_of(self, planned: Plan, used: int, epoch: int) -> Plan:
        """Return what is left of a plan of this epoch when so many batches are used."""
        return planned[used:]

    def batches(self, epoch: int, positions: range, consumed: ConsumedParts) -> list[Batch]:
        """Return the batches at these positions of the plan."""
        plan = self.plan(epoch, consumed)
        return [self.batch_of(plan[place], epoch) for place in positions]

    def batch_of(self, pairs: Indices, epoch: int) -> Batch:
        """Return a batch of these pairs of the buffer, as it would be in this epoch."""
        return make_batch(self._sampler.store, self._in_text(pairs))

    def padding(self) -> float:
        """Return the fraction of an epoch's positions, both sides together, that is padding."""
        src, tgt = self._lengths
        plan = self.plan(1, ())
        positions = sum(map(self._num_positions, plan))
        return 1 - sum(int(src[pairs].sum() + tgt[pairs].sum()) for pairs in plan) / positions

    def _num_positions(self, pairs: Indices) -> int:
        """Return the positions of both sides of a batch, padding included."""
        src, tgt = self._lengths
        return len(pairs) * int(src[pairs].max() + tgt[pairs].max())

    def largest_batches(self) -> list[Batch]:
        """Return the batches of an epoch with the most positions and the most attention weights.

        They need the most memory, and may be the same one. With subword sampling they are planned
        batches, which have more padding after sampling than the batches of the epoch.
        """

        def attention_weights(pairs: Indices) -> int:  # of the longer side, of each head
            return len(pairs) * max(int(lengths[pairs].max()) for lengths in self._lengths) ** 2

        plan = self.plan(1, ())
        largest, longest = max(plan, key=self._num_positions), max(plan, key=attention_weights)
        batches = [largest] if longest is largest else [largest, longest]
        return [self.batch_of(pairs, epoch=1) for pairs in batches]

    def _in_text(self, pairs: Indices) -> Indices:
        """Return the numbers in the text of pairs of this buffer."""
        return pairs if self._pairs is None else self._pairs[pairs]
