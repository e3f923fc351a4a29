"""Training and translating where the system has no more than Windows has.

The modules and functions that Windows lacks are removed when Python starts, from child processes
too. What else differs on Windows, such as that open files cannot be removed, is not simulated.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT

WITHOUT = """
import os, signal, socket, sys
import multiprocessing.forkserver, portalocker  # which go by the name of the system
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
FEW = ("training.max_steps=10", "training.warmup_steps=5", "validation.every=10")


@pytest.fixture
def run_elsewhere(tmp_path: Path):
    """Return a function that runs `seq2seq` on such a system, in a folder with the quickstart."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(WITHOUT)
    for name in ("configs/quickstart.yaml", "data/quickstart"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tmp_path / name).parent.mkdir(exist_ok=True)
        copy(ROOT / name, tmp_path / name)
    path = os.pathsep.join([str(site), str(ROOT)])
    variables = {"PYTHONPATH": path, "SEQ2SEQ_CACHE": str(tmp_path / "cache")}

    def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "seq2seq_cli", *arguments],
            cwd=tmp_path,
            env={**os.environ, **variables},
            input=text,
            capture_output=True,
            text=True,
        )

    return run


def test_training_and_translating_work(run_elsewhere):
    few = [argument for setting in FEW for argument in ("--set", setting)]
    trained = run_elsewhere("train", "configs/quickstart.yaml", *few)
    assert trained.returncode == 0, trained.stderr
    given = ("-i", "data/quickstart/test.de", "-o", "out.en")
    translated = run_elsewhere("translate", "runs/quickstart", *given)
    assert translated.returncode == 0, translated.stderr
    translated = run_elsewhere("translate", "runs/quickstart", text="Ein Bier.\n")
    assert translated.returncode == 0, translated.stderr
    assert len(translated.stdout.splitlines()) == 1


def test_what_needs_forks_and_signals_is_refused(run_elsewhere):
    several = ("--set", "training.processes=2")
    for arguments, reason in (
        (("serve", "runs/quickstart"), "seq2seq serve needs Linux or macOS"),
        (("train", "configs/quickstart.yaml", *several), "training.processes: several need"),
    ):
        refused = run_elsewhere(*arguments)
        assert refused.returncode == 2
        assert refused.stderr.startswith(f"error: {reason}")
