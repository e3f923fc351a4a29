"""Work on long texts: in a thread of its own, one text of each request in turn."""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")

_MANY_CHARACTERS = 2_000  # of a request, whose texts wait for their turns


def long_text_thread() -> Executor:
    """Return the thread in which all requests work on long texts.

    It is one, as threads of Python would only take turns too, and the event loop with them. It is
    none of the event loop's own, which that would wait for when it ends.
    """
    return ThreadPoolExecutor(1, "long-texts")


class Turns:
    """The turns of a request: it has the next one after all other requests that wait for theirs.

    A request that is given up has no further turn, so that it works on no more than one text.
    """

    def __init__(self, thread: Executor, num_characters: int) -> None:
        """Short requests have no need of turns."""
        self._thread = thread if num_characters > _MANY_CHARACTERS else None

    async def call(
        self, work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
    ) -> Result:
        """Call what works on one text, when it is this request's turn."""
        if self._thread is None:
            return work(*args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, functools.partial(work, *args, **kwargs))
