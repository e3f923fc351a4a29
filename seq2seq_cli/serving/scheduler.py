"""Dynamic batching: sentences of all requests are translated together as processes become free."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from seq2seq_cli.serving.messages import Batch, SearchOptions, SentenceInput, SentenceOutput

_MOST_TRIES = 5  # of a sentence in whose batch a process died
_SMALLEST_SHARE = 64  # tokens of a batch, when waiting sentences are divided among processes

Outputs = tuple[SentenceOutput, ...]


class OverloadedError(Exception):
    """The queue is full."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many sentences are waiting; try again in {retry_after} s")
        self.retry_after = retry_after


class TranslationFailedError(Exception):
    """A sentence cannot be translated; the message says why."""


@dataclass(eq=False)
class Waiting:
    """A sentence that waits for a process, or is being translated."""

    sentence: SentenceInput
    result: asyncio.Future[Outputs]
    tries: int = 0


@dataclass(eq=False)
class Ticket:
    """The sentences of a request that wait."""

    run: int
    options: SearchOptions
    waiting: deque[Waiting]
    since: float = field(default_factory=time.monotonic)


class Scheduler:
    """Divides the sentences that wait into batches; each request has its turn.

    A batch takes one sentence of each request with the same run and options after the other, so
    that a small request is not behind a large one. All methods belong to one event loop.
    """

    def __init__(
        self, tokens_per_batch: int, seconds_to_gather: float, queue_limit: int, workers: int
    ) -> None:
        """`queue_limit`: sentences that wait, from which on none is accepted."""
        self._workers = workers
        self._tokens_per_batch = tokens_per_batch
        self._seconds_to_gather = seconds_to_gather
        self._queue_limit = queue_limit
        self._tickets: deque[Ticket] = deque()
        self._has_arrived = asyncio.Event()
        self._idle = 0  # processes that wait for a batch
        self._seconds_per_sentence = 0.0  # of late, of one process

    @property
    def num_waiting(self) -> int:
        return sum(len(ticket.waiting) for ticket in self._tickets)

    def submit(
        self, run: int, sentences: Sequence[tuple[SentenceInput, SearchOptions]]
    ) -> list[asyncio.Future[Outputs]]:
        """Let sentences wait; those whose future is cancelled leave. Raises OverloadedError."""
        if (count := self.num_waiting) >= self._queue_limit:
            seconds = math.ceil(count * self._seconds_per_sentence / self._workers)
            raise OverloadedError(min(max(1, seconds), 60))
        loop = asyncio.get_running_loop()
        waiting = [(Waiting(sentence, loop.create_future()), opts) for sentence, opts in sentences]
        by_options: dict[SearchOptions, deque[Waiting]] = {}
        for each, options in waiting:
            by_options.setdefault(options, deque()).append(each)
        self._tickets += [Ticket(run, options, each) for options, each in by_options.items()]
        self._has_arrived.set()
        return [each.result for each, _ in waiting]

    async def next_batch(self) -> tuple[Batch, list[Waiting]]:
        """Wait for sentences, and a moment for others to join them; return them as a batch."""
        self._idle += 1
        try:
            while True:
                await self._has_arrived.wait()
                await self._gather()
                if taken := self._take():
                    return taken
                if not self._tickets:
                    self._has_arrived.clear()
        finally:
            self._idle -= 1

    def finish(
        self, taken: Sequence[Waiting], outputs: Sequence[Outputs | str], seconds: float
    ) -> None:
        """Give each sentence of a batch its translations, or the reason why it has none."""
        self._seconds_per_sentence += 0.1 * (seconds / len(taken) - self._seconds_per_sentence)
        _settle(taken, outputs)

    def retry(self, batch: Batch, taken: Sequence[Waiting]) -> None:
        """Let the sentences of a batch whose process died wait again, each for a batch of its own.

        So one that kills its process takes no others with it; it fails at its last try.
        """
        for each in reversed(taken):
            each.tries += 1
            if each.tries < _MOST_TRIES:
                self._tickets.appendleft(Ticket(batch.run, batch.options, deque([each])))
            else:
                _settle([each], [f"the process that translated it died {_MOST_TRIES} times"])
        self._has_arrived.set()

    def fail_all(self, reason: str) -> None:
        """Let every sentence that waits fail."""
        for ticket in self._tickets:
            _settle(ticket.waiting, [reason] * len(ticket.waiting))
        self._tickets.clear()

    async def _gather(self) -> None:
        since = min((ticket.since for ticket in self._tickets), default=0.0)
        seconds = since + self._seconds_to_gather - time.monotonic()
        if seconds > 0 and self._num_tokens() < self._tokens_per_batch:
            await asyncio.sleep(seconds)

    def _num_tokens(self) -> int:
        return sum(each.sentence.cost for ticket in self._tickets for each in ticket.waiting)

    def _take(self) -> tuple[Batch, list[Waiting]] | None:
        self._drop_cancelled()
        if not self._tickets:
            return None
        share = math.ceil(self._num_tokens() / max(1, self._idle))
        budget = min(self._tokens_per_batch, max(_SMALLEST_SHARE, share))
        first = self._tickets[0]
        alike = [t for t in self._tickets if (t.run, t.options) == (first.run, first.options)]
        if first.waiting[0].tries:
            alike, budget = [first], 1
        else:
            alike = [ticket for ticket in alike if not ticket.waiting[0].tries]
        taken = _one_of_each(alike, budget)
        for ticket in alike:  # their next turn is after that of the others
            self._tickets.remove(ticket)
            if ticket.waiting:
                self._tickets.append(ticket)
        sentences = tuple(each.sentence for each in taken)
        return Batch(first.run, first.options, sentences), taken

    def _drop_cancelled(self) -> None:
        for ticket in self._tickets:
            ticket.waiting = deque(each for each in ticket.waiting if not each.result.done())
        self._tickets = deque(ticket for ticket in self._tickets if ticket.waiting)


def _settle(taken: Iterable[Waiting], outputs: Iterable[Outputs | str]) -> None:
    for each, output in zip(taken, outputs, strict=True):
        if each.result.done():  # cancelled
            continue
        if isinstance(output, str):
            each.result.set_exception(TranslationFailedError(output))
        else:
            each.result.set_result(output)


def _one_of_each(tickets: Sequence[Ticket], budget: int) -> list[Waiting]:
    """Take one sentence of each ticket after the other until the budget of tokens is spent."""
    taken: list[Waiting] = []
    while True:
        for ticket in tickets:
            if budget <= 0 or not any(other.waiting for other in tickets):
                return taken
            if ticket.waiting:
                each = ticket.waiting.popleft()
                budget -= each.sentence.cost
                taken.append(each)
