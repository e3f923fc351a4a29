"""Files to which another program writes while they are read."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def growing(path: Path, line: str, time: int) -> Iterator[None]:
    """Append a line to a file when this process opens it for the given time in the block."""
    times_opened = 0

    def note(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal times_opened
        if event == "open" and arguments[0] in (path, str(path)):
            times_opened += 1
            if times_opened == time:
                with path.open("a") as file:
                    file.write(f"{line}\n")

    sys.addaudithook(note)  # there is no way to remove it
    yield
    times_opened = time + 1
