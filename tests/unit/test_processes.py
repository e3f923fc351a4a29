"""New processes: what they import, and that they end."""

import importlib
import multiprocessing
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from functools import partial

import pytest
from launched import signal_and_wait

from seq2seq_cli.errors import Interrupted
from seq2seq_cli.processes import (
    ProcessDiedError,
    call_in_new_process,
    call_in_process,
    ending_at_signals,
    process_context,
)

SCRIPT = """
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from seq2seq_cli.processes import call_in_new_process, process_context

if __name__ == "__main__":
    print(call_in_new_process(partial(divmod, 7, 2)))
    with ProcessPoolExecutor(2, process_context("json")) as pool:
        print(pool.submit(divmod, 8, 3).result())
"""


def test_new_processes_import_nothing_from_the_working_folder(tmp_path):
    script, folder = tmp_path / "script.py", tmp_path / "folder"
    script.write_text(SCRIPT)
    folder.mkdir()
    for name in ("json", "random", "socket"):
        (folder / f"{name}.py").write_text("raise ImportError('not a file to import')\n")
    done = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("(3, 1)\n(2, 2)\n", "")


def test_processes_start_with_a_temporary_folder_too_long_for_a_socket(tmp_path):
    script, folder = tmp_path / "script.py", tmp_path / ("a" * 100)
    script.write_text(SCRIPT)
    folder.mkdir()
    environment = os.environ | {"TMPDIR": str(folder)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("(3, 1)\n(2, 2)\n", "")
    assert not list(folder.iterdir())


VARIABLES = """
import os
from concurrent.futures import ProcessPoolExecutor
from seq2seq_cli.processes import process_context

if __name__ == "__main__":
    context = process_context("json", OURS="theirs", THEIRS="theirs")
    with ProcessPoolExecutor(1, context) as pool:
        print(*pool.map(os.getenv, ("OURS", "THEIRS")), os.getenv("THEIRS"))
"""


def test_new_processes_get_the_variables_that_this_one_does_not_have(tmp_path):
    (script := tmp_path / "script.py").write_text(VARIABLES)
    environment = os.environ | {"OURS": "ours"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("ours theirs None\n", "")


UNUSABLE = """
from functools import partial
from seq2seq_cli.errors import UserError
from seq2seq_cli.processes import (
    call_in_new_process, call_in_process, ordered_pool, process_context
)

if __name__ == "__main__":
    for start in (
        partial(call_in_new_process, print),
        lambda: call_in_process(process_context("json"), print),
        ordered_pool(2, partial).__enter__,
    ):
        try:
            start()
        except UserError as error:
            print(error)
"""
READ_ONLY = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o ro tmpfs /dev/shm; exec "$@"', "sh")


def test_processes_without_semaphores_are_an_error_of_the_user(tmp_path):
    if not shutil.which("unshare") or subprocess.run([*READ_ONLY, "true"], check=False).returncode:
        pytest.skip("this machine does not let a test mount a file system")
    (script := tmp_path / "script.py").write_text(UNUSABLE)
    done = subprocess.run([*READ_ONLY, sys.executable, script], capture_output=True, text=True)
    assert done.stdout.count("/dev/shm (Read-only file system)") == 3, done.stderr
    assert done.stdout.count("--processes 1\n") == 3


def test_process_that_dies_is_an_error():
    with pytest.raises(ProcessDiedError, match="has died"):
        call_in_new_process(partial(os._exit, 9))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such a stack earlier")
def test_process_of_a_pool_without_a_thread_ends(imports_shared, capfd):
    context = process_context()
    before = threading.stack_size(1 << 46)  # more than there are addresses
    try:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            call_in_process(context, os.getpid)
    finally:
        threading.stack_size(before)
    for process in multiprocessing.active_children():
        process.join(60)
        assert process.exitcode is not None
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
def test_sigterm_does_not_wait_for_the_new_process():
    with pytest.raises(Interrupted) as stop, ending_at_signals():
        call_in_new_process(partial(signal_and_wait, os.getpid(), signal.SIGTERM))
    assert stop.value.exit_status == 128 + signal.SIGTERM


KILLED = """
import signal
from seq2seq_cli.processes import ending_at_signals, killed_at_sigterm

with ending_at_signals(), killed_at_sigterm():
    signal.raise_signal(signal.SIGTERM)
"""


def test_sigterm_kills_at_once_what_may_take_minutes():
    killed = subprocess.run([sys.executable, "-c", KILLED], capture_output=True)
    assert (killed.returncode, killed.stderr) == (-signal.SIGTERM, b"")


SWALLOWS = """
import signal
try:
    signal.raise_signal(signal.{})
except BaseException:
    pass
"""


@pytest.mark.parametrize(
    ("number", "end"), [("SIGTERM", Interrupted), ("SIGINT", KeyboardInterrupt)]
)
def test_signal_in_an_import_ends_what_follows(number, end, tmp_path, monkeypatch):
    """PyTorch's import of NumPy ignores any exception; pydantic's models raise another one."""
    (tmp_path / f"swallows_{number}.py").write_text(SWALLOWS.format(number))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(end), ending_at_signals():
        importlib.import_module(f"swallows_{number}")
        threading.Event().wait(60)
        pytest.fail("it was lost")


def test_signal_in_an_import_may_be_handled(tmp_path, monkeypatch):
    (tmp_path / "swallows_once.py").write_text(SWALLOWS.format("SIGINT"))
    monkeypatch.syspath_prepend(tmp_path)
    with ending_at_signals():
        with pytest.raises(KeyboardInterrupt):
            importlib.import_module("swallows_once")
            threading.Event().wait(60)
        handled = True
    assert handled


ENDLESS = """
import os
import time
from seq2seq_cli.processes import call_in_new_process

def work():
    print(os.getpid(), flush=True)
    time.sleep(3600)

if __name__ == "__main__":
    call_in_new_process(work)
"""


def test_process_ends_with_the_one_that_started_it(tmp_path):
    """Its standard output ends when the last process that has it does."""
    script = tmp_path / "script.py"
    script.write_text(ENDLESS)
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE)
    pid = int(process.stdout.readline())
    process.kill()
    ended, _, _ = select.select([process.stdout], [], [], 60)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    assert ended and process.stdout.read() == b""
    process.stdout.close()
    process.wait()
