"""Dynamic batching: queued sentences of all requests are batched as workers become idle."""

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from seq2seq_cli.extras.serve.messages import Batch, SearchOptions, SentenceInput, SentenceOutput
from seq2seq_cli.extras.serve.responses import RequestError

_MAX_TRIES = 5  # of a sentence whose worker died
_MIN_TOKENS = 64  # of a batch, when the queue is divided among idle workers

Outputs = tuple[SentenceOutput, ...]


class SentenceToTranslate(NamedTuple):
    """A sentence with its run, by number, and the options of the search."""

    run: int
    sentence: SentenceInput
    options: SearchOptions


@dataclass(eq=False)
class Waiting:
    """A sentence that is queued or being translated."""

    sentence: SentenceInput
    result: asyncio.Future[Outputs]
    cost: int  # estimated tokens times the width of the search
    tries: int = 0


@dataclass(eq=False)
class Ticket:
    """The queued sentences of a request that may be in one batch."""

    run: int
    options: SearchOptions
    waiting: deque[Waiting]
    is_alone: bool = False  # a sentence whose worker died, for a batch of its own
    since: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class Submission:
    """The results of a request's sentences, in order; a result may raise RequestError."""

    results: Sequence[asyncio.Future[Outputs]]
    tickets: Sequence[Ticket]
    scheduler: "Scheduler"

    def close(self) -> None:
        """Drop the queued sentences, and cancel the others."""
        self.scheduler.forget(self.tickets)
        for result in self.results:
            if not result.cancel() and not result.cancelled():
                result.exception()  # marks it as retrieved, or asyncio logs an error


class Scheduler:
    """Divides the queued sentences into batches; requests take turns.

    A batch takes one sentence of each request with the same run and options in turn, so that a
    small request does not wait for a large one. All methods are called in one event loop.
    """

    def __init__(
        self, tokens_per_batch: int, seconds_to_gather: float, queue_limit: int, workers: int
    ) -> None:
        """With `queue_limit` or more sentences in the queue, requests are refused."""
        self.workers = workers
        self._tokens_per_batch = tokens_per_batch
        self._seconds_to_gather = seconds_to_gather
        self._queue_limit = queue_limit
        self._tickets: deque[Ticket] = deque()  # in the order of their turns
        self.num_waiting = 0  # sentences in the queue
        self._num_tokens = 0  # in the queue
        self._has_arrived = asyncio.Event()
        self._idle = 0  # workers that wait for a batch
        self._seconds_per_sentence = 0.0  # moving average, of one worker

    def submit(self, sentences: Iterable[SentenceToTranslate]) -> Submission:
        """Queue the sentences of a request, however many. Raises RequestError if it is full."""
        if self.num_waiting >= self._queue_limit:
            seconds = math.ceil(self.num_waiting * self._seconds_per_sentence / self.workers)
            seconds = min(max(1, seconds), 60)
            message = f"Slowdown: too many sentences are waiting; try again in {seconds} s"
            raise RequestError(503, message, retry_after=seconds)
        loop = asyncio.get_running_loop()
        by_kind: dict[tuple[int, SearchOptions], deque[Waiting]] = {}
        results = []
        for run, sentence, options in sentences:
            each = Waiting(sentence, loop.create_future(), sentence.cost * options.width)
            by_kind.setdefault((run, options), deque()).append(each)
            results.append(each.result)
        tickets = [Ticket(*kind, waiting) for kind, waiting in by_kind.items()]
        self._tickets.extend(tickets)
        self._count(tickets)
        return Submission(results, tickets, self)

    def forget(self, tickets: Sequence[Ticket]) -> None:
        """Drop the sentences of tickets from the queue."""
        for ticket in tickets:
            self.num_waiting -= len(ticket.waiting)
            self._num_tokens -= sum(each.cost for each in ticket.waiting)
            ticket.waiting.clear()

    def _count(self, tickets: Sequence[Ticket]) -> None:
        self.num_waiting += sum(len(ticket.waiting) for ticket in tickets)
        self._num_tokens += sum(each.cost for ticket in tickets for each in ticket.waiting)
        self._has_arrived.set()

    async def next_batch(self) -> tuple[Batch, list[Waiting]]:
        """Wait for sentences, and briefly for others to join them; return them as a batch.

        A request that finds all workers idle does not wait for others.
        """
        self._idle += 1
        try:
            while True:
                await self._has_arrived.wait()
                since = self._tickets[0].since if self._tickets else 0.0
                seconds = since + self._seconds_to_gather - time.monotonic()
                is_busy = self._idle < self.workers
                if seconds > 0 and is_busy and self._num_tokens < self._tokens_per_batch:
                    await asyncio.sleep(seconds)
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
            if each.result.done():  # canceled
                continue
            if isinstance(output, str):
                each.result.set_exception(RequestError(400, output))
            else:
                each.result.set_result(output)

    def retry(self, batch: Batch, taken: Sequence[Waiting]) -> None:
        """Queue the sentences of a batch whose worker died, each for a batch of its own.

        So a sentence that kills its worker does not affect others; it fails after its last try.
        """
        for each in reversed(taken):
            each.tries += 1
            if each.tries < _MAX_TRIES:
                self.put_back(batch, [each])
            else:
                fail([each], f"the process that translated it died {_MAX_TRIES} times")

    def put_back(self, batch: Batch, taken: Sequence[Waiting]) -> None:
        """Queue sentences of a batch again; the ones that were tried before stay alone."""
        is_alone = any(each.tries for each in taken)
        ticket = Ticket(batch.run, batch.options, deque(taken), is_alone)
        self._tickets.appendleft(ticket)
        self._count([ticket])

    def fail_all(self, reason: str) -> None:
        """Let every queued sentence fail."""
        for ticket in self._tickets:
            fail(ticket.waiting, reason)
        self.forget(self._tickets)
        self._tickets.clear()

    def _take(self) -> tuple[Batch, list[Waiting]] | None:
        """Take one sentence of each ticket in turn for the next batch; None if all are canceled.

        Afterwards the tickets that had a turn are behind all others.
        """
        share = math.ceil(self._num_tokens / max(1, self._idle))
        budget = min(self._tokens_per_batch, max(_MIN_TOKENS, share))
        taken: list[Waiting] = []
        while self._tickets:
            first = self._tickets[0]
            kind = (first.run, first.options, False)
            alike = (t for t in self._tickets if (t.run, t.options, t.is_alone) == kind)
            some = itertools.islice(alike, self._tokens_per_batch)
            turns = deque([first] if first.is_alone else some)
            served: set[Ticket] = set()
            while turns and budget > 0:
                ticket = turns.popleft()
                served.add(ticket)
                while ticket.waiting:
                    each = ticket.waiting.popleft()
                    self.num_waiting -= 1
                    self._num_tokens -= each.cost
                    if not each.result.done():  # not canceled
                        taken.append(each)
                        budget -= each.cost
                        turns.append(ticket)
                        break
            others = (ticket for ticket in self._tickets if ticket not in served)
            again = (ticket for ticket in turns if ticket in served and ticket.waiting)
            self._tickets = deque([*others, *again])
            if taken:
                sentences = tuple(each.sentence for each in taken)
                return Batch(first.run, first.options, sentences), taken
        return None


def fail(sentences: Iterable[Waiting], reason: str) -> None:
    """Let sentences that are not translated yet fail: the client may ask again."""
    for each in sentences:
        if not each.result.done():
            each.result.set_exception(RequestError(503, reason, retry_after=5))
