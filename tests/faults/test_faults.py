"""A short run of the scripts in this folder; `make faults` runs them for longer."""

import multiprocessing
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT
from faults.hostile_lines import complaint, failures
from launched import run_script


@pytest.mark.slow
def test_translate_writes_one_line_per_hostile_line(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQ2SEQ_CACHE", str(tmp_path / "cache"))
    assert list(failures(20, seed=7, folder=tmp_path)) == []


def run_in_fork(module: str, *arguments: object, output: Path) -> str:
    """Run a script in a fork of a process without threads; return what it says."""
    given = (module, [*map(str, arguments)], output)
    process = multiprocessing.get_context("forkserver").Process(target=run_script, args=given)
    process.start()
    process.join()
    said = output.read_text()
    assert process.exitcode == 0, said
    return said


@pytest.mark.slow
@pytest.mark.usefixtures("imports_shared")
def test_disturbed_run_ends_with_the_same_bits(tmp_path):
    """Disturbances are kills, stops, a full disk, damage, and a clock that is set back."""
    said = run_in_fork("faults.kills", "--kills", 3, "--seed", 3, output=tmp_path / "said")
    assert "every run ended as the undisturbed one, bit for bit" in said


@pytest.mark.slow
def test_errors_of_the_system_are_no_damage():
    """Each of them on the newest checkpoint, a candidate at the end, and the ids in the cache."""
    weights, optimizer = (f"step-00000003/{name}.safetensors" for name in ("weights", "optimizer"))
    chosen = [
        f"resume: ESTALE at every call of open work/run/checkpoints/{weights}",
        f"resume: ENOENT at every call of open work/run/checkpoints/{weights}",
        f"resume: EIO at every call of read work/run/checkpoints/{optimizer}",
        "end: EIO at call 1 of open work/run/checkpoints/step-00000004/ema.safetensors",
        "end: EIO at every call of read work/run/best/step-00000002.safetensors",
        r"resume: EMFILE at every call of open work/cache/\w+/(facts\.json|src\.ids)",
    ]
    only = [word for case in chosen for word in ("--only", case)]
    command = [sys.executable, "-m", "faults.io_errors", *only]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (count,) = re.findall(r"(\d+) stopped with status 2, 0 went on", done.stdout)
    assert int(count) > len(chosen)


GOOD = {"text": b"x\n\n", "tsv": b"1\tx\n\t\n", "nbest": b"0 ||| x\n1 ||| \n"} | {
    "jsonl": b'{"src": "1", "translation": "x"}\n{"src": "", "translation": ""}\n'
}


def test_line_checker_detects_lost_lines():
    assert complaint(b"1\n\n", GOOD) is None
    for content in (b"1\n", b"1\n\n\n", b"\n1\n", b"2\n\n"):
        assert complaint(content, GOOD)
    for form in GOOD:
        assert complaint(b"1\n\n", GOOD | {form: GOOD[form].replace(b"\n", b"", 1)})
    assert complaint(b"1\n\n", GOOD | {"text": b"y\n\n"})


@pytest.mark.slow
@pytest.mark.usefixtures("imports_shared")
@pytest.mark.parametrize("seed", [1])
def test_damaged_files_are_rejected_or_harmless(seed, tmp_path):
    options = ("--cases", 8, "--seed", seed, "--keep", tmp_path)
    said = run_in_fork("faults.fuzz", *options, output=tmp_path / "said")
    assert f"seed {seed}, 8 cases" in said
