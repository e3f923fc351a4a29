"""The batches of every epoch by epoch and position, in memory that does not grow with the text."""

from collections.abc import Iterator, Sequence

import numpy as np

from seq2seq_cli.data.batches import Batch
from seq2seq_cli.data.shuffle_buffer import (
    POOL,
    Batching,
    ConsumedParts,
    ShuffleBuffer,
    blocks_of_buffers,
    pairs_of_blocks,
)
from seq2seq_cli.data.token_store import TokenStore
from seq2seq_cli.tokenizers.subword_sampling import Samplers

_NO_SAMPLERS = Samplers()

MOST_PAIRS = 1 << 22  # that are shuffled together: 200 MB


class BatchSampler:
    """The batches of every epoch by (epoch, position): resuming need not fast-forward.

    The pairs of a larger text than `most_pairs` are divided at random, in blocks of consecutive
    pairs, among buffers. An epoch goes through the buffers in random order, and shuffles
    each. If an epoch draws another number of pairs than all, there is one buffer.
    """

    def __init__(
        self,
        store: TokenStore,
        tokens_per_batch: int,
        seed: int,
        samplers: Samplers = _NO_SAMPLERS,
        drawn: Sequence[int] | None = None,
        pairs_per_batch: int | None = None,
        most_pairs: int = MOST_PAIRS,
    ) -> None:
        """`drawn` is how many pairs an epoch draws from each corpus; None: every pair once."""
        self._store = store
        self.drawn = list(store.sizes if drawn is None else drawn)
        self.is_mixed = self.drawn != list(store.sizes)
        self._batching = Batching(tokens_per_batch, seed, samplers, self.drawn, pairs_per_batch)
        most = len(store) if self.is_mixed else most_pairs
        self._blocks = blocks_of_buffers(len(store), most, seed)
        self._num_buffers = 1 if self._blocks is None else len(self._blocks)
        self._opened: tuple[int, ShuffleBuffer] | None = None
        self._counted: dict[tuple[int, int], int] = {}
        self._left: tuple[object, list[tuple[int, ConsumedParts, int]]] | None = None
        self._num_batches = self.num_left(1, ())

    @property
    def key(self) -> str:
        """Identifies the pairs of the epochs and their lengths.

        It is a hash of the text, with what epochs draw from its corpora if that is not all of them,
        and with subword sampling its strength and the batches that are grouped together.
        """
        samplers = self._batching.samplers
        drawn = f"{self.drawn}" if self.is_mixed else ""
        sampled = f"{samplers.key} of {POOL} batches" if any(samplers) else ""
        return " ".join(filter(None, [self._store.key, drawn, sampled]))

    def __len__(self) -> int:
        """Return the number of batches in the first epoch, and in others if each has all pairs."""
        return self._num_batches

    def num_batches(self, epochs: range) -> Iterator[tuple[int, int]]:
        """Yield numbers of batches, and how many of the epochs have so many.

        Epochs that draw from corpora differ by some batches, and have to be planned one by one.
        """
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
                batches += self._buffer(number).batches(epoch, positions, parts)
            position = max(0, position - size)
        return batches

    def padding(self) -> float:
        """Return the fraction of positions that is padding, in the first buffer of an epoch."""
        return self._buffer(self._order(1)[0]).padding()

    def largest_batches(self) -> list[Batch]:
        """Return the batches of an epoch that need the most memory in layers and in attention.

        These are the one with the most positions and the one with the most attention weights, which
        may be the same; of a large text, in the first buffer. With subword sampling they are
        planned batches, which have more padding after sampling than the batches of the epoch.
        """
        return self._buffer(self._order(1)[0]).largest_batches()

    def _order(self, epoch: int) -> Sequence[int]:
        """Return the order of the buffers in an epoch."""
        if self._num_buffers == 1:
            return [0]
        generator = np.random.default_rng([self._batching.seed, epoch])
        return [int(number) for number in generator.permutation(self._num_buffers)]

    def _buffer(self, number: int) -> ShuffleBuffer:
        """Return a buffer; the one that was asked for last is remembered."""
        if self._opened is None or self._opened[0] != number:
            self._opened = None  # first free its memory
            pairs, seed = None, self._batching.seed
            if self._blocks is not None:
                pairs = pairs_of_blocks(self._blocks[number], len(self._store))
                seed = int(np.random.default_rng([seed, 1, number]).integers(1 << 32))
            self._opened = number, ShuffleBuffer(self._store, self._batching, pairs, seed)
        return self._opened[1]

    def _buffers_left(
        self, epoch: int, consumed: ConsumedParts
    ) -> list[tuple[int, ConsumedParts, int]]:
        """Return the buffers of an epoch that are left in order: (number, consumed parts, batches).

        Only the first of them has consumed parts.
        """
        key = epoch, tuple(map(tuple, consumed))
        if self._left is not None and self._left[0] == key:
            return self._left[1]
        order = list(self._order(epoch))
        parts: list[Sequence[int]] = []  # of the first buffer
        for tokens_per_batch, used in consumed:
            while order and used >= (size := self._size(order[0], epoch, parts, tokens_per_batch)):
                used -= size
                order.pop(0)
                parts = []
            if used:
                parts = [*parts, (tokens_per_batch, used)]
        budget, left = self._batching.tokens_per_batch, list[tuple[int, ConsumedParts, int]]()
        for number in order:
            left.append((number, parts, self._size(number, epoch, parts, budget)))
            parts = []
        self._left = key, left
        return left

    def _size(self, number: int, epoch: int, consumed: ConsumedParts, tokens_per_batch: int) -> int:
        """Return the number of batches of a buffer; of a whole one it is the same in all epochs."""
        key = number, tokens_per_batch
        if consumed or self.is_mixed or key not in self._counted:
            size = len(self._buffer(number).plan(epoch, consumed, tokens_per_batch))
            if consumed or self.is_mixed:
                return size
            self._counted[key] = size
        return self._counted[key]
