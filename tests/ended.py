"""Commands that end while they work, as by Ctrl-C or `kill -9`."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

# Ends the process by a signal before a file of this name becomes complete.
_ENDED = """
import os, sys
name, number = sys.argv.pop(1), int(sys.argv.pop(1))
def end(event, arguments):
    if event == "os.rename" and os.path.basename(arguments[1]) == name:
        os.kill(os.getpid(), number)
sys.addaudithook(end)
from seq2seq_cli.cli import main
main()
"""


def ended(command: Sequence[object], name: str, number: signal.Signals) -> str:
    """Run a command in a process that a signal ends before it has written the file `name`.

    Returns what it says.
    """
    given = [name, str(int(number)), *map(str, command)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    call = [sys.executable, "-c", _ENDED, *given]
    process = subprocess.run(call, env=environment, capture_output=True, text=True)
    status = -signal.SIGKILL if number == signal.SIGKILL else 128 + number
    assert process.returncode == status, (name, process.stderr)
    return process.stderr
