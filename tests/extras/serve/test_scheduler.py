"""Dynamic batching: every sentence is translated once, in turns, whatever processes do."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from seq2seq_cli.extras.serve.messages import Batch, SearchOptions, SentenceInput, SentenceOutput
from seq2seq_cli.extras.serve.responses import RequestError
from seq2seq_cli.extras.serve.scheduler import Scheduler, SentenceToTranslate, Waiting

PLAIN = SearchOptions()


def scheduler(tokens: int = 10, seconds: float = 0.0, limit: int = 100) -> Scheduler:
    return Scheduler(tokens, seconds, limit, workers=1)


def sentences(*texts: str, options: SearchOptions = PLAIN, run: int = 0):
    """Sentences of four letters or fewer cost two tokens."""
    return [SentenceToTranslate(run, SentenceInput(text), options) for text in texts]


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
        futures = queue.submit(sentences("a", "b", "c")).results
        taken = await queue.next_batch()
        assert texts(taken) == ["a", "b", "c"]
        finish(queue, taken)
        assert [(await future)[0].text for future in futures] == ["A", "B", "C"]
        assert queue.num_waiting == 0

    run(test)


def test_a_small_request_is_not_behind_a_large_one():
    async def test():
        queue = scheduler(tokens=6)
        queue.submit(sentences(*map(str, range(20))))
        queue.submit(sentences("x"))
        assert texts(await queue.next_batch()) == ["0", "x", "1"]
        queue.submit(sentences("y"))
        assert texts(await queue.next_batch()) == ["2", "y", "3"]
        assert texts(await queue.next_batch()) == ["4", "5", "6"]

    run(test)


def test_runs_and_options_have_batches_of_their_own_and_take_turns():
    async def test():
        queue = scheduler(tokens=4)
        aligned = SearchOptions(alignment=True)
        queue.submit(sentences("a", "b", "c", "d") + sentences("e", options=aligned))
        queue.submit(sentences("f", "g", "h", run=1))
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
        queue.submit(sentences(*["abc"] * 100))  # 200 tokens
        sizes = [len(batch.sentences) for batch, _ in await asyncio.gather(*waiting)]
        assert sizes == [50, 50]

    run(test)


def test_sentences_that_arrive_together_are_translated_together():
    """Only the first, which finds all processes idle, does not wait for others."""

    async def test():
        queue = Scheduler(10, 0.05, 100, workers=2)
        first, second = (asyncio.create_task(queue.next_batch()) for _ in range(2))
        await asyncio.sleep(0)
        queue.submit(sentences("a"))
        assert texts(await first) == ["a"]
        for text in "bcd":
            queue.submit(sentences(text))
            await asyncio.sleep(0)
        assert texts(await second) == ["b", "c", "d"]

    run(test)


def test_cancelled_sentences_leave_the_queue():
    async def test():
        queue = scheduler()
        first = queue.submit(sentences("a", "b"))
        second = queue.submit(sentences("c"))
        first.close()
        assert queue.num_waiting == 1
        taken = await queue.next_batch()
        assert texts(taken) == ["c"]
        second.close()  # on its way: its result is dropped
        finish(queue, taken)
        assert queue.num_waiting == 0

    run(test)


def test_a_full_queue_refuses_and_says_for_how_long():
    async def test():
        queue = scheduler(limit=3)
        queue.submit(sentences("a", "b", "c", "d"))  # a large request is not refused as such
        with pytest.raises(RequestError) as caught:
            queue.submit(sentences("e"))
        assert caught.value.headers == {"Retry-After": "1"}
        finish(queue, await queue.next_batch())  # 0.2 s for each sentence, of late
        queue.submit(sentences(*"abcdefghijkl" * 50))
        with pytest.raises(RequestError) as caught:
            queue.submit(sentences("e"))
        assert 2 <= int((caught.value.headers or {})["Retry-After"]) <= 60

    run(test)


def test_sentences_of_a_process_that_dies_are_translated_by_others():
    async def test():
        queue = scheduler()
        futures = queue.submit(sentences("a", "b")).results
        queue.retry(*await queue.next_batch())
        for text in "ab":  # each alone
            taken = await queue.next_batch()
            assert texts(taken) == [text]
            finish(queue, taken)
        assert [(await future)[0].text for future in futures] == ["A", "B"]

    run(test)


def test_a_batch_that_was_put_back_costs_no_try_and_keeps_its_turn():
    async def test():
        queue = scheduler()
        queue.submit(sentences("a", "b"))
        for _ in range(10):
            taken = await queue.next_batch()
            assert texts(taken) == ["a", "b"]
            queue.put_back(*taken)
        queue.submit(sentences("c"))
        queue.retry(*await queue.next_batch())
        queue.put_back(*await queue.next_batch())
        assert [texts(await queue.next_batch()) for _ in "acb"] == [["a"], ["c"], ["b"]]
        assert queue.num_waiting == 0

    run(test)


def test_a_sentence_that_kills_processes_fails_alone():
    async def test():
        queue = scheduler()
        futures = queue.submit(sentences("good", "bad")).results
        others = queue.submit(sentences("x")).results
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
        with pytest.raises(RequestError, match=r"503.*died 5 times"):
            await futures[1]

    run(test)


def test_a_cancelled_wait_for_a_batch_loses_none():
    async def test():
        queue = Scheduler(10, 0.02, 100, workers=2)
        waiting = asyncio.create_task(queue.next_batch())
        queue.submit(sentences("a"))
        await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert texts(await queue.next_batch()) == ["a"]

    run(test)


def test_the_end_of_the_server_fails_what_waits():
    async def test():
        queue = scheduler()
        (future,) = queue.submit(sentences("a")).results
        queue.fail_all("over")
        with pytest.raises(RequestError, match=r"503.*over"):
            await future
        assert queue.num_waiting == 0

    run(test)


def test_no_request_has_two_turns_before_another_has_one():
    async def test():
        queue = scheduler(tokens=6)
        for request in range(10):
            queue.submit(sentences(*(f"{request}{n}" for n in range(3))))
        order = [text for _ in range(10) for text in texts(await queue.next_batch())]
        assert order == [f"{request}{n}" for n in range(3) for request in range(10)]
        assert queue.num_waiting == 0

    run(test)


def test_a_full_queue_is_empty_again_when_its_client_leaves():
    async def test():
        queue = scheduler(limit=10)
        large = queue.submit(sentences(*["abc"] * 9_000))
        with pytest.raises(RequestError):
            queue.submit(sentences("x"))
        large.close()
        queue.submit(sentences("x"))
        assert texts(await queue.next_batch()) == ["x"]
        assert queue.num_waiting == 0

    run(test)


def test_a_sentence_without_a_translation_says_why():
    async def test():
        queue = scheduler()
        good, bad = queue.submit(sentences("a", "b")).results
        _, taken = await queue.next_batch()
        queue.finish(taken, [(SentenceOutput("A"),), "no such word"], seconds=1.0)
        assert (await good)[0].text == "A"
        with pytest.raises(RequestError, match=r"400.*no such word"):
            await bad

    run(test)


def test_wide_searches_count_as_more_tokens():
    async def test():
        queue = scheduler(tokens=12)
        queue.submit(sentences(*"abcdef", options=SearchOptions(n_best=3)))
        assert texts(await queue.next_batch()) == ["a", "b"]

    run(test)
