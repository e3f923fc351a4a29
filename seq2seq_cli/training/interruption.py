"""Ctrl-C and SIGTERM ask for an end; the loop ends when what it has can be saved."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Set by the first signal; the second one has its usual effect, at once."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    @property
    def is_made(self) -> bool:
        return self.signal is not None

    @property
    def exit_status(self) -> int:
        """The shell's convention: 128 plus the signal's number."""
        assert self.signal is not None
        return 128 + self.signal


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a request while the block runs."""
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        request.signal = signal.Signals(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.write(2, b"\nstopping after this update; a second Ctrl-C ends at once\n")

    for number in before:
        signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
