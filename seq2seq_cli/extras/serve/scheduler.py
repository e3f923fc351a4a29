"""Dynamic batching: sentences of all requests are translated together as processes become free."""

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from seq2seq_cli.extras.serve.messages import Batch, SearchOptions, SentenceInput, SentenceOutput

_MOST_TRIES = 5  # of a sentence in whose batch a process died
_SMALLEST_SHARE = 64  # tokens of a batch, when waiting sentences are divided among processes

Outputs = tuple[SentenceOutput, ...]


class OverloadedError(Exception):
    """The queue is full."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many sentences are waiting; try again in {retry_after} s")
        self.retry_after = retry_after


class UntranslatableError(Exception):
    """A sentence cannot be translated as it is asked for; the message says why."""


class TranslationLostError(Exception):
    """A sentence was not translated, through no fault of its own."""


class SentenceToTranslate(NamedTuple):
    """A sentence with its run, by number, and what is wanted of the search."""

    run: int
    sentence: SentenceInput
    options: SearchOptions


@dataclass(eq=False)
class Waiting:
    """A sentence that waits for a process, or is being translated."""

    sentence: SentenceInput
    result: asyncio.Future[Outputs]
    cost: int  # tokens, nearly, times the width of the search
    tries: int = 0


@dataclass(eq=False)
class Ticket:
    """The sentences of a request that may be in one batch, and wait."""

    run: int
    options: SearchOptions
    waiting: deque[Waiting]
    is_alone: bool = False  # a sentence whose process died, for a batch of its own
    since: float = field(default_factory=time.monotonic)


class Submission:
    """The sentences of a request, which have been accepted."""

    def __init__(
        self,
        results: Sequence[asyncio.Future[Outputs]],
        tickets: Sequence[Ticket],
        scheduler: "Scheduler",
    ) -> None:
        self.results = results
        self._tickets = tickets
        self._scheduler = scheduler

    def withdraw(self) -> None:
        """Let those leave that still wait, and nobody wait for the others."""
        self._scheduler.forget(self._tickets)
        for result in self.results:
            if not result.cancel() and not result.cancelled():
                result.exception()  # or asyncio complains that nobody has looked at it


class Scheduler:
    """Divides the sentences that wait into batches; each request has its turn.

    A batch takes one sentence of each request with the same run and options after the other, so
    that a small request is not behind a large one. All methods belong to one event loop.
    """

    def __init__(
        self, tokens_per_batch: int, seconds_to_gather: float, queue_limit: int, workers: int
    ) -> None:
        """`queue_limit`: sentences that wait, from which on no request is accepted."""
        self._workers = workers
        self._tokens_per_batch = tokens_per_batch
        self._seconds_to_gather = seconds_to_gather
        self._queue_limit = queue_limit
        self._tickets: deque[Ticket] = deque()  # in the order of their turns
        self.num_waiting = 0  # sentences
        self._num_tokens = 0  # of these
        self._has_arrived = asyncio.Event()
        self._idle = 0  # processes that wait for a batch
        self._seconds_per_sentence = 0.0  # of late, of one process

    def submit(self, sentences: Iterable[SentenceToTranslate]) -> Submission:
        """Let the sentences of a request wait, however many. Raises OverloadedError."""
        if self.num_waiting >= self._queue_limit:
            seconds = math.ceil(self.num_waiting * self._seconds_per_sentence / self._workers)
            raise OverloadedError(min(max(1, seconds), 60))
        loop = asyncio.get_running_loop()
        by_kind: dict[tuple[int, SearchOptions], deque[Waiting]] = {}
        results = []
        for run, sentence, options in sentences:
            each = Waiting(sentence, loop.create_future(), sentence.cost * options.width)
            by_kind.setdefault((run, options), deque()).append(each)
            results.append(each.result)
        tickets = [Ticket(*kind, waiting) for kind, waiting in by_kind.items()]
        for ticket in tickets:
            self._tickets.append(self._counted(ticket))
        self._has_arrived.set()
        return Submission(results, tickets, self)

    def forget(self, tickets: Sequence[Ticket]) -> None:
        """Drop the sentences of tickets that still wait."""
        for ticket in tickets:
            self.num_waiting -= len(ticket.waiting)
            self._num_tokens -= sum(each.cost for each in ticket.waiting)
            ticket.waiting.clear()

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
        for each, output in zip(taken, outputs, strict=True):
            if each.result.done():  # cancelled
                continue
            if isinstance(output, str):
                each.result.set_exception(UntranslatableError(output))
            else:
                each.result.set_result(output)

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
                _fail([each], f"the process that translated it died {_MOST_TRIES} times")
        self._has_arrived.set()

    def fail_all(self, reason: str) -> None:
        """Let every sentence that waits fail."""
        for ticket in self._tickets:
            _fail(ticket.waiting, reason)
        self.forget(self._tickets)
        self._tickets.clear()

    def _counted(self, ticket: Ticket) -> Ticket:
        self.num_waiting += len(ticket.waiting)
        self._num_tokens += sum(each.cost for each in ticket.waiting)
        return ticket

    async def _gather(self) -> None:
        """Give others the time to arrive; a request that finds all processes idle does not wait."""
        since = self._tickets[0].since if self._tickets else 0.0
        seconds = since + self._seconds_to_gather - time.monotonic()
        is_busy = self._idle < self._workers
        if seconds > 0 and is_busy and self._num_tokens < self._tokens_per_batch:
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
        kind = (first.run, first.options)
        alike = (t for t in self._tickets if (t.run, t.options) == kind and not t.is_alone)
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


def _fail(sentences: Iterable[Waiting], reason: str) -> None:
    for each in sentences:
        if not each.result.done():
            each.result.set_exception(TranslationLostError(reason))
