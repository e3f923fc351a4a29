"""Requests with long texts take turns, and those that are given up have none."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from seq2seq_cli.extras.serve.gateway import Gateway

LONG = ["a" * 5_000]


def gateway(thread: ThreadPoolExecutor) -> Gateway:
    return Gateway(SimpleNamespace(long_text_thread=thread), None, None, False)


def test_requests_take_turns():
    done: list[str] = []
    first_may_end = threading.Event()

    def work(text: str) -> str:
        if not done:
            first_may_end.wait(60)
        done.append(text)
        return text.upper()

    async def request(name: str, server: Gateway) -> list[str]:
        return [await server.in_turn(LONG, work, f"{name}{number}") for number in range(3)]

    async def main() -> None:
        server = gateway(ThreadPoolExecutor(1))
        tasks = [asyncio.create_task(request(name, server)) for name in "abc"]
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

    async def main() -> None:
        server = gateway(ThreadPoolExecutor(1))

        async def request() -> None:
            for number in range(64):
                await server.in_turn(LONG, work, number)

        task = asyncio.create_task(request())
        await asyncio.to_thread(has_begun.wait, 60)
        task.cancel()
        may_end.set()
        await server.in_turn(LONG, done.append, -1)

    asyncio.run(main())
    assert done == [0, -1]


def test_short_requests_do_not_wait():
    async def main() -> None:
        server, may_end = gateway(ThreadPoolExecutor(1)), threading.Event()
        long = asyncio.create_task(server.in_turn(LONG, may_end.wait, 60))
        assert await server.in_turn(["short"], str.upper, "short") == "SHORT"
        may_end.set()
        assert await long

    asyncio.run(main())
