"""Dynamic batching: every sentence is translated once, in turns, whatever processes do."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from seq2seq_cli.serving.messages import Batch, SearchOptions, SentenceInput, SentenceOutput
from seq2seq_cli.serving.scheduler import (
    OverloadedError,
    Scheduler,
    TranslationFailedError,
    Waiting,
)

PLAIN = SearchOptions()


def scheduler(tokens: int = 10, seconds: float = 0.0, limit: int = 100) -> Scheduler:
    return Scheduler(tokens, seconds, limit, workers=1)


def sentences(*texts: str, options: SearchOptions = PLAIN):
    """Sentences of three letters or fewer cost two tokens."""
    return [(SentenceInput(text), options) for text in texts]


def texts(taken: tuple[Batch, list[Waiting]]) -> list[str]:
    return [sentence.text for sentence in taken[0].sentences]


def finish(queue: Scheduler, taken: tuple[Batch, list[Waiting]]) -> None:
    outputs = [(SentenceOutput(sentence.text.upper()),) for sentence in taken[0].sentences]
    queue.finish(taken[1], outputs, seconds=1.0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))


def test_sentences_of_one_request_are_a_batch_and_come_back_in_order():
    async def test():
        queue = scheduler()
        futures = queue.submit(0, sentences("a", "b", "c"))
        taken = await queue.next_batch()
        assert texts(taken) == ["a", "b", "c"]
        finish(queue, taken)
        assert [(await future)[0].text for future in futures] == ["A", "B", "C"]
        assert queue.num_waiting == 0

    run(test)


def test_a_small_request_is_not_behind_a_large_one():
    async def test():
        queue = scheduler(tokens=6)
        queue.submit(0, sentences(*map(str, range(20))))
        queue.submit(0, sentences("x"))
        assert texts(await queue.next_batch()) == ["0", "x", "1"]
        queue.submit(0, sentences("y"))
        assert texts(await queue.next_batch()) == ["2", "y", "3"]
        assert texts(await queue.next_batch()) == ["4", "5", "6"]

    run(test)


def test_runs_and_options_have_batches_of_their_own_and_take_turns():
    async def test():
        queue = scheduler(tokens=4)
        aligned = SearchOptions(alignment=True)
        queue.submit(0, sentences("a", "b", "c", "d") + sentences("e", options=aligned))
        queue.submit(1, sentences("f", "g", "h"))
        batches = [await queue.next_batch() for _ in range(5)]
        assert [(b.run, b.options, texts((b, w))) for b, w in batches] == [
            (0, PLAIN, ["a", "b"]),
            (0, aligned, ["e"]),
            (1, PLAIN, ["f", "g"]),
            (0, PLAIN, ["c", "d"]),
            (1, PLAIN, ["h"]),
        ]

    run(test)


def test_idle_processes_divide_what_waits():
    async def test():
        queue = Scheduler(1_000, 0.0, 1_000, workers=2)
        waiting = [asyncio.create_task(queue.next_batch()) for _ in range(2)]
        await asyncio.sleep(0)
        queue.submit(0, sentences(*["abc"] * 100))  # 200 tokens
        sizes = [len(batch.sentences) for batch, _ in await asyncio.gather(*waiting)]
        assert sizes == [50, 50]

    run(test)


def test_sentences_that_arrive_together_are_translated_together():
    async def test():
        queue = scheduler(seconds=0.05)
        batch = asyncio.create_task(queue.next_batch())
        for text in "abc":
            queue.submit(0, sentences(text))
            await asyncio.sleep(0)
        assert texts(await batch) == ["a", "b", "c"]

    run(test)


def test_cancelled_sentences_leave_the_queue():
    async def test():
        queue = scheduler()
        first = queue.submit(0, sentences("a", "b"))
        second = queue.submit(0, sentences("c"))
        for future in first:
            future.cancel()
        taken = await queue.next_batch()
        assert texts(taken) == ["c"]
        second[0].cancel()  # on its way: the result is for nobody
        finish(queue, taken)
        assert queue.num_waiting == 0

    run(test)


def test_a_full_queue_refuses_and_says_for_how_long():
    async def test():
        queue = scheduler(limit=3)
        queue.submit(0, sentences("a", "b", "c", "d"))  # a large request is not refused as such
        with pytest.raises(OverloadedError) as caught:
            queue.submit(0, sentences("e"))
        assert caught.value.retry_after == 1
        finish(queue, await queue.next_batch())  # 0.2 s for each sentence, of late
        queue.submit(0, sentences(*"abcdefghijkl" * 50))
        with pytest.raises(OverloadedError) as caught:
            queue.submit(0, sentences("e"))
        assert 2 <= caught.value.retry_after <= 60

    run(test)


def test_sentences_of_a_process_that_dies_are_translated_by_others():
    async def test():
        queue = scheduler()
        futures = queue.submit(0, sentences("a", "b"))
        queue.retry(*await queue.next_batch())
        for text in "ab":  # each alone
            taken = await queue.next_batch()
            assert texts(taken) == [text]
            finish(queue, taken)
        assert [(await future)[0].text for future in futures] == ["A", "B"]

    run(test)


def test_a_sentence_that_kills_processes_fails_alone():
    async def test():
        queue = scheduler()
        futures = queue.submit(0, sentences("good", "bad"))
        others = queue.submit(0, sentences("x"))
        tries = 0
        while any(not future.done() for future in (*futures, *others)):
            taken = await queue.next_batch()
            if "bad" in texts(taken):
                tries += 1
                queue.retry(*taken)
            else:
                finish(queue, taken)
        assert tries == 5
        assert (await futures[0])[0].text == "GOOD"
        assert (await others[0])[0].text == "X"
        with pytest.raises(TranslationFailedError, match="died 5 times"):
            await futures[1]

    run(test)


def test_a_cancelled_wait_for_a_batch_loses_none():
    async def test():
        queue = scheduler(seconds=0.02)
        waiting = asyncio.create_task(queue.next_batch())
        queue.submit(0, sentences("a"))
        await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert texts(await queue.next_batch()) == ["a"]

    run(test)


def test_the_end_of_the_server_fails_what_waits():
    async def test():
        queue = scheduler()
        (future,) = queue.submit(0, sentences("a"))
        queue.fail_all("over")
        with pytest.raises(TranslationFailedError, match="over"):
            await future

    run(test)


def test_no_request_has_two_turns_before_another_has_one():
    async def test():
        queue = scheduler(tokens=6)
        for request in range(10):
            queue.submit(0, sentences(*(f"{request}{n}" for n in range(3))))
        order = [text for _ in range(10) for text in texts(await queue.next_batch())]
        assert order == [f"{request}{n}" for n in range(3) for request in range(10)]
        assert queue.num_waiting == 0

    run(test)


def test_many_waiting_sentences_are_taken_without_looking_at_each():
    """A cancelled request of many sentences goes with its first turn; counts stay right."""

    async def test():
        queue = scheduler(limit=10_000)
        large = queue.submit(0, sentences(*["abc"] * 9_000))
        queue.submit(0, sentences("x"))
        for future in large:
            future.cancel()
        assert texts(await queue.next_batch()) == ["x"]
        assert queue.num_waiting == 0

    run(test)
