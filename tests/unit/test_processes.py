"""New processes import what the first one would, from wherever it is started."""

import subprocess
import sys

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
