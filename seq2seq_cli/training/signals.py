"""Ctrl-C and SIGTERM ask training to stop; it does when the current update is done and saved."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from seq2seq_cli.errors import Interrupted
from seq2seq_cli.processes import has_terminal
from seq2seq_cli.training.parallel.process_group import is_started_by_torchrun
from seq2seq_cli.training.parallel.strategy import SingleProcess

_SECONDS_OF_COPIES = 1.0  # in which a launcher forwards a signal that its processes already had


def seconds_of_copies(number: int) -> float:
    """Return the seconds in which a launcher may forward a signal that this process already had.

    `torchrun` forwards SIGINT and SIGTERM, `launcher.py` SIGINT only if no terminal sends it.
    """
    is_ctrl_c = number == signal.SIGINT and not is_started_by_torchrun() and has_terminal()
    is_started = "TORCHELASTIC_RUN_ID" in os.environ or multiprocessing.parent_process() is not None
    return _SECONDS_OF_COPIES if is_started and not is_ctrl_c else 0.0


class StopRequest:
    """Set by the first signal; the same signal again ends the command without saving."""

    def __init__(self) -> None:
        self.signal = 0  # its number; 0: none yet

    def agree(self, parallel: SingleProcess, is_asked: bool) -> tuple[bool, int]:
        """Return whether any process is to stop, and the number of the signal; 0: none.

        `is_asked`: this process is to stop without a signal.
        """
        # One number tells both: the numbers of signals begin at 1.
        request = parallel.all_reduce_max(self.signal or (0.5 if is_asked else 0.0))
        return request > 0, int(request)

    def check(self, message: str) -> None:
        """Raise Interrupted with this message after a signal."""
        if self.signal:
            raise Interrupted(message, 128 + self.signal)


@contextmanager
def stop_on_signals(parallel: SingleProcess) -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a request while the block runs; confirm Ctrl-C on stderr."""
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    received: dict[int, float] = {}

    def note(number: int, frame: object) -> None:
        now = time.monotonic()
        first = received.setdefault(number, now)  # a copy may interrupt this function
        if first is not now and now - first >= seconds_of_copies(number):
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)
        if number == signal.SIGINT and first is now and parallel.is_main:
            with suppress(OSError):  # Ctrl-C has also ended `| tee`
                os.write(2, b"\nstopping after this update; a second Ctrl-C ends at once\n")
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
