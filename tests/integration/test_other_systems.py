"""Training and translating where the system has no more than Windows has.

The modules and functions that Windows lacks are removed when Python starts, from child processes
too. What else differs on Windows, such as that open files cannot be removed, is not simulated.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT

WITHOUT = """
import os, signal, socket, sys, types
import asyncio, multiprocessing.forkserver, portalocker  # which go by the name of the system
from multiprocessing import resource_tracker  # likewise, whenever it starts a process
resource_tracker.signal = types.SimpleNamespace(**vars(signal))
for name in ("fcntl", "resource", "uvloop"):
    sys.modules[name] = None
lacking = {
    os: "fork forkpty getpgrp tcgetpgrp killpg pread sched_getaffinity sysconf sync setsid",
    signal: "pthread_sigmask SIGKILL SIGUSR1 SIGUSR2 SIGCHLD SIGHUP SIGSTOP",
    socket: "recv_fds send_fds",
}
for module, names in lacking.items():
    for name in names.split():
        delattr(module, name)
"""
# In one process, so that PyTorch is imported once; all commands end with the given status.
IN_TURN = """
import json, sys
from seq2seq_cli.cli import app, main
status, *commands, last = json.loads(sys.argv[1])
for command in commands:
    assert (app(command, standalone_mode=False) or 0) == status, command
if status == 0:
    from seq2seq_cli import Translator
    assert len(Translator.load("runs/quickstart").translate(["Ein Bier."])) == 1
sys.argv[1:] = last
main()
"""
TEST_SRC = "data/quickstart/test.de"
FEW = ("training.max_steps=2", "training.warmup_steps=1", "validation.every=2")
SMALL = ("tokenizer.kind=word", "model.d_model=32", "model.d_ff=32", "model.layers=1")


@pytest.fixture
def run_elsewhere(tmp_path: Path):
    """Return a function that runs commands on such a system, in a folder with the quickstart."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(WITHOUT)
    for name in ("configs/quickstart.yaml", "data/quickstart"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tmp_path / name).parent.mkdir(exist_ok=True)
        copy(ROOT / name, tmp_path / name)
    path = os.pathsep.join([str(site), str(ROOT)])
    variables = {"PYTHONPATH": path, "SEQ2SEQ_CACHE": str(tmp_path / "cache")}

    def run(
        *commands: tuple[str, ...], status: int, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", IN_TURN, json.dumps([status, *commands])],
            cwd=tmp_path,
            env={**os.environ, **variables},
            input=text,
            capture_output=True,
            text=True,
        )

    return run


@pytest.mark.slow
def test_training_and_translating_work(run_elsewhere):
    options = [argument for setting in (*FEW, *SMALL) for argument in ("--set", setting)]
    given = ("-i", TEST_SRC, "-o", "out.en")
    done = run_elsewhere(
        ("train", "configs/quickstart.yaml", *options),
        ("translate", "runs/quickstart", *given),
        ("score", "runs/quickstart", "--src", TEST_SRC, "--ref", "data/quickstart/test.en"),
        ("translate", "runs/quickstart"),
        status=0,
        text="Ein Bier.\n",
    )
    assert done.returncode == 0, done.stderr
    scores, translation = len((ROOT / TEST_SRC).read_text().splitlines()), 1
    assert len(done.stdout.splitlines()) == scores + translation


@pytest.mark.slow
def test_what_needs_forks_and_signals_is_refused(run_elsewhere):
    refused = run_elsewhere(
        ("serve", "runs/quickstart"),
        ("train", "configs/quickstart.yaml", "--set", "training.processes=2"),
        status=2,
    )
    assert refused.returncode == 2
    first, *_, second = refused.stderr.split("error: ")[1:]
    assert first.startswith("seq2seq serve needs Linux or macOS")
    assert second.startswith("training.processes: several need")
