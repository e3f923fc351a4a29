"""Ctrl-C and SIGTERM ask training to stop; it does when the current update is done and saved."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from seq2seq_cli.training.distributed import Ranks, is_started_by_launcher

_SECONDS_OF_COPIES = 1.0  # a launcher sends its processes the Ctrl-C that they have had already


class StopRequest:
    """Set by the first signal; the same signal again has its usual effect, at once."""

    def __init__(self) -> None:
        self.signal = 0  # its number; 0: none yet

    def signal_of_any(self, ranks: Ranks) -> int:
        """Return the number of the signal that any process received; 0: none."""
        return int(ranks.all_reduce_max(self.signal))


@contextmanager
def stop_on_signals(ranks: Ranks) -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a request while the block runs; the main process says so."""
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    received: dict[int, float] = {}
    patience = _SECONDS_OF_COPIES if is_started_by_launcher() else 0.0

    def note(number: int, frame: FrameType | None) -> None:
        if number in received and time.monotonic() - received[number] >= patience:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)
        if not received and ranks.is_main:
            os.write(2, b"\nstopping after this update; a second Ctrl-C ends at once\n")
        received.setdefault(number, time.monotonic())
        request.signal = request.signal or number

    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # as under nohup
            signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
