"""Requests with long texts take turns, and those that are given up have none."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from seq2seq_cli.extras.serve.text_translation import Turns


def test_requests_take_turns():
    done: list[str] = []
    first_may_end = threading.Event()

    def work(text: str) -> str:
        if not done:
            first_may_end.wait(60)
        done.append(text)
        return text.upper()

    async def request(name: str, turns: Turns) -> list[str]:
        return [await turns.call(work, f"{name}{number}") for number in range(3)]

    async def main() -> None:
        thread = ThreadPoolExecutor(1)
        tasks = [asyncio.create_task(request(name, Turns(thread, 5_000))) for name in "abc"]
        await asyncio.sleep(0)  # so that each of them waits for its first turn
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        first_may_end.set()
        assert await tasks[2] == ["C0", "C1", "C2"]
        assert await tasks[0] == ["A0", "A1", "A2"]

    asyncio.run(main())
    assert done == ["a0", "c0", "a1", "c1", "a2", "c2"]


def test_a_request_that_is_given_up_works_on_one_text_only():
    done: list[int] = []
    has_begun, may_end = threading.Event(), threading.Event()

    def work(number: int) -> None:
        has_begun.set()
        may_end.wait(60)
        done.append(number)

    async def request(turns: Turns) -> None:
        for number in range(64):
            await turns.call(work, number)

    async def main() -> None:
        thread = ThreadPoolExecutor(1)
        task = asyncio.create_task(request(Turns(thread, 5_000)))
        await asyncio.to_thread(has_begun.wait, 60)
        task.cancel()
        may_end.set()
        await Turns(thread, 5_000).call(done.append, -1)

    asyncio.run(main())
    assert done == [0, -1]


def test_short_requests_do_not_wait():
    async def main() -> None:
        thread, may_end = ThreadPoolExecutor(1), threading.Event()
        long = asyncio.create_task(Turns(thread, 5_000).call(may_end.wait, 60))
        assert await Turns(thread, 100).call(str.upper, "short") == "SHORT"
        may_end.set()
        assert await long

    asyncio.run(main())
