"""The threads of the native library: each item of a loop is worked on once, whoever calls."""

import subprocess
from pathlib import Path

import pytest
from compiling import COMPILER

from seq2seq_cli.native.sources import FLAGS, FOLDER

PROGRAM = Path(__file__).with_name("threads.c")


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no compiler")
@pytest.mark.parametrize("threads", [2, 8])
def test_every_item_of_a_loop_is_worked_on_once(threads, tmp_path):
    """Also by several callers, and in processes that are forked while threads work.

    A thread that is late must not take a piece of the next loop while it is written.
    """
    program = tmp_path / "threads"
    files = [PROGRAM, FOLDER / "threads.c"]
    subprocess.run([COMPILER, *FLAGS, f"-I{FOLDER}", "-pthread", *files, "-o", program], check=True)
    done = subprocess.run([program, str(threads), "300000"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "0\n")
