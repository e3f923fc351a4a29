"""Work on long texts: in one thread, one text of each request in turn."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar, TypeVarTuple

Given = TypeVarTuple("Given")
Result = TypeVar("Result")

_MAX_CHARACTERS = 2_000  # of a request that works outside of the thread


class Turns:
    """The turns of a request, each after the waiting turns of all other requests.

    A canceled request has no further turn, so it works on at most one more text.
    """

    def __init__(self, thread: Executor, num_characters: int) -> None:
        """Short requests do without turns."""
        self._thread = thread if num_characters > _MAX_CHARACTERS else None

    async def call(self, work: Callable[[*Given], Result], *args: *Given) -> Result:
        """Call work on one text in the next turn of this request."""
        if self._thread is None:
            return work(*args)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)
