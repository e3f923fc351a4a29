"""Work on long texts: in one thread, one text of each request in turn."""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")

_MAX_CHARACTERS = 2_000  # of a request that works outside of the thread


def long_text_thread() -> Executor:
    """Return the thread in which all requests work on long texts.

    One, as more threads of Python would only compete with the event loop. It is not the event
    loop's own executor, which the loop would wait for at its end.
    """
    return ThreadPoolExecutor(1, "long-texts")


class Turns:
    """The turns of a request, each after the waiting turns of all other requests.

    A cancelled request has no further turn, so it works on at most one more text.
    """

    def __init__(self, thread: Executor, num_characters: int) -> None:
        """Short requests do without turns."""
        self._thread = thread if num_characters > _MAX_CHARACTERS else None

    async def call(
        self, work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
    ) -> Result:
        """Call work on one text in the next turn of this request."""
        if self._thread is None:
            return work(*args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, functools.partial(work, *args, **kwargs))
