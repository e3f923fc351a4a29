"""Training and translating where the system has no more than Windows has.

The modules and functions that Windows lacks are removed when Python starts, from child processes
too. What else differs on Windows, such as that open files cannot be removed, is not simulated.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT
from number_task import number_pairs, numbers_config, write_config, write_pairs

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


@pytest.fixture
def run_elsewhere(tmp_path: Path):
    """Return a function that runs `seq2seq` on such a system, in a folder with text and config."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(WITHOUT)
    settings = numbers_config(tmp_path, 400, max_steps=10, warmup_steps=5)
    settings["tokenizer"] = {"kind": "unigram", "vocab_size": 300}
    settings["validation"] = {"every": 10, "unit": "steps", "metric": "exact_match"}
    write_config(tmp_path, settings)
    write_pairs(tmp_path, "test", number_pairs(100, seed=3))
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
    trained = run_elsewhere("train", "numbers.yaml")
    assert trained.returncode == 0, trained.stderr
    translated = run_elsewhere("translate", "runs/numbers", "-i", "test.src", "-o", "out")
    assert translated.returncode == 0, translated.stderr
    translated = run_elsewhere("translate", "runs/numbers", text="1 2\n")
    assert translated.returncode == 0, translated.stderr
    assert len(translated.stdout.splitlines()) == 1


def test_what_needs_forks_and_signals_is_refused(run_elsewhere):
    several = ("--set", "training.processes=2")
    for arguments, reason in (
        (("serve", "runs/numbers"), "seq2seq serve needs Linux or macOS"),
        (("train", "numbers.yaml", *several), "training.processes: several need"),
    ):
        refused = run_elsewhere(*arguments)
        assert refused.returncode == 2
        assert refused.stderr.startswith(f"error: {reason}")
