"""Ctrl-C and SIGTERM ask training to stop; it does when the current update is done and saved."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from seq2seq_cli.processes import has_terminal
from seq2seq_cli.training.parallel.distributed import RUN_ID, Ranks

_SECONDS_OF_COPIES = 1.0  # in which a launcher sends on a signal that its processes had already


class StopRequest:
    """Set by the first signal; the same signal again has its usual effect, at once."""

    def __init__(self) -> None:
        self.signal = 0  # its number; 0: none yet

    def agree(self, ranks: Ranks, is_asked: bool) -> tuple[bool, int]:
        """Return whether any process is to stop, and the number of the signal; 0: none.

        `is_asked`: this process is to stop without a signal.
        """
        request = ranks.all_reduce_max(self.signal or 0.5 * is_asked)
        return request > 0, int(request)


@contextmanager
def stop_on_signals(ranks: Ranks) -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a request while the block runs; confirm Ctrl-C on stderr."""
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    received: dict[int, float] = {}

    def note(number: int, frame: FrameType | None) -> None:
        if number in received and time.monotonic() - received[number] >= _patience(number):
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)
        if number == signal.SIGINT and number not in received and ranks.is_main:
            with suppress(OSError):  # Ctrl-C has also ended `| tee`
                os.write(2, b"\nstopping after this update; a second Ctrl-C ends at once\n")
        received.setdefault(number, time.monotonic())
        request.signal = request.signal or number

    noted = [number for number, handler in before.items() if handler != signal.SIG_IGN]  # nohup
    if threading.current_thread() is not threading.main_thread():
        noted = []  # Python allows no handlers there
    for number in noted:
        signal.signal(number, note)
    try:
        yield request
    finally:
        for number in noted:
            signal.signal(number, before[number])


def _patience(number: int) -> float:
    """Return the seconds in which a launcher may send on a signal that this process has had.

    `torchrun` sends on both, `launcher.py` SIGINT only if no terminal does.
    """
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    is_ctrl_c = number == signal.SIGINT and run_id == RUN_ID and has_terminal()
    is_sent_on = run_id is not None and not is_ctrl_c
    return _SECONDS_OF_COPIES if is_sent_on else 0.0
