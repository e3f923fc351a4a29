"""Dynamic batching: sentences of all requests are translated together as processes become free."""

import asyncio
import itertools
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
    cost: int  # tokens, nearly
    tries: int = 0


@dataclass(eq=False)
class Ticket:
    """The sentences of a request that wait; one whose process died has a ticket of its own."""

    run: int
    options: SearchOptions
    waiting: deque[Waiting]
    is_alone: bool = False
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
        self._tickets: deque[Ticket] = deque()  # in the order of their turns
        self.num_waiting = 0  # sentences, those among them whose client has just left
        self._num_tokens = 0  # of these
        self._has_arrived = asyncio.Event()
        self._idle = 0  # processes that wait for a batch
        self._seconds_per_sentence = 0.0  # of late, of one process

    def submit(
        self, run: int, sentences: Sequence[tuple[SentenceInput, SearchOptions]]
    ) -> list[asyncio.Future[Outputs]]:
        """Let sentences wait; those whose future is cancelled leave. Raises OverloadedError."""
        if self.num_waiting >= self._queue_limit:
            seconds = math.ceil(self.num_waiting * self._seconds_per_sentence / self._workers)
            raise OverloadedError(min(max(1, seconds), 60))
        loop = asyncio.get_running_loop()
        by_options: dict[SearchOptions, deque[Waiting]] = {}
        results = []
        for sentence, options in sentences:
            each = Waiting(sentence, loop.create_future(), sentence.cost)
            by_options.setdefault(options, deque()).append(each)
            results.append(each.result)
        for options, waiting in by_options.items():
            self._tickets.append(self._counted(Ticket(run, options, waiting)))
        self._has_arrived.set()
        return results

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
                ticket = Ticket(batch.run, batch.options, deque([each]), is_alone=True)
                self._tickets.appendleft(self._counted(ticket))
            else:
                _settle([each], [f"the process that translated it died {_MOST_TRIES} times"])
        self._has_arrived.set()

    def fail_all(self, reason: str) -> None:
        """Let every sentence that waits fail."""
        for ticket in self._tickets:
            _settle(ticket.waiting, [reason] * len(ticket.waiting))
        self._tickets.clear()
        self.num_waiting = self._num_tokens = 0

    def _counted(self, ticket: Ticket) -> Ticket:
        self.num_waiting += len(ticket.waiting)
        self._num_tokens += sum(each.cost for each in ticket.waiting)
        return ticket

    async def _gather(self) -> None:
        since = self._tickets[0].since if self._tickets else 0.0
        seconds = since + self._seconds_to_gather - time.monotonic()
        if seconds > 0 and self._num_tokens < self._tokens_per_batch:
            await asyncio.sleep(seconds)

    def _take(self) -> tuple[Batch, list[Waiting]] | None:
        """Take the sentences of the next batch; None if nobody waits for any."""
        share = math.ceil(self._num_tokens / max(1, self._idle))
        budget = min(self._tokens_per_batch, max(_SMALLEST_SHARE, share))
        while self._tickets:
            first = self._tickets[0]
            taken = self._take_turns(self._alike(first), budget)
            if taken:
                sentences = tuple(each.sentence for each in taken)
                return Batch(first.run, first.options, sentences), taken
        return None

    def _alike(self, first: Ticket) -> deque[Ticket]:
        """Return the tickets whose sentences can be in a batch with those of the first."""
        if first.is_alone:
            return deque([first])
        key = (first.run, first.options)
        alike = (t for t in self._tickets if (t.run, t.options) == key and not t.is_alone)
        return deque(itertools.islice(alike, self._tokens_per_batch))

    def _take_turns(self, turns: deque[Ticket], budget: int) -> list[Waiting]:
        """Take one sentence of each ticket after the other until the budget of tokens is spent.

        The next turn of a ticket that has had one is after that of all others.
        """
        taken: list[Waiting] = []
        served: dict[Ticket, None] = {}  # in the order in which they were served last
        while turns and budget > 0:
            ticket = turns.popleft()
            served.pop(ticket, None)
            served[ticket] = None
            if (each := self._next_sentence(ticket)) is not None:
                taken.append(each)
                budget -= each.cost
                turns.append(ticket)
        others = (ticket for ticket in self._tickets if ticket not in served)
        self._tickets = deque([*others, *(ticket for ticket in served if ticket.waiting)])
        return taken

    def _next_sentence(self, ticket: Ticket) -> Waiting | None:
        """Take the next sentence of a ticket that somebody still waits for."""
        while ticket.waiting:
            each = ticket.waiting.popleft()
            self.num_waiting -= 1
            self._num_tokens -= each.cost
            if not each.result.done():
                return each
        return None


def _settle(taken: Iterable[Waiting], outputs: Iterable[Outputs | str]) -> None:
    for each, output in zip(taken, outputs, strict=True):
        if each.result.done():  # cancelled
            continue
        if isinstance(output, str):
            each.result.set_exception(TranslationFailedError(output))
        else:
            each.result.set_result(output)
