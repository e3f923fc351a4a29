"""Signals that ask training to stop."""

import signal

from seq2seq_cli.training.parallel.strategy import SingleProcess
from seq2seq_cli.training.signals import stop_on_signals


def test_a_copy_that_interrupts_the_first_signal_is_not_confirmed_again(monkeypatch, capfd):
    """As when a launcher forwards a signal that its process group has received, too."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    asked = []

    class Interrupted(SingleProcess):
        @property
        def is_main(self) -> bool:
            asked.append(1)
            if len(asked) == 1:
                signal.raise_signal(signal.SIGINT)
            return True

    with stop_on_signals(Interrupted()) as request:
        signal.raise_signal(signal.SIGINT)
    assert request.signal == signal.SIGINT
    assert capfd.readouterr().err.count("stopping after this update") == 1
