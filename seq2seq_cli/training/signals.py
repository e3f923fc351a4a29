"""Ctrl-C and SIGTERM ask for an end; the loop ends when what it has can be saved."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Set by the first signal; the same one again has its usual effect, at once."""

    def __init__(self) -> None:
        self.signal = 0  # its number; 0: none yet


@contextmanager
def stop_on_signals(is_announced: bool) -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a request while the block runs; say so on stderr."""
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        request.signal = number
        signal.signal(number, before[signal.Signals(number)])
        if is_announced:
            os.write(2, b"\nstopping after this update; a second Ctrl-C ends at once\n")

    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # as under nohup
            signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
