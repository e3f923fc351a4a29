"""A compiled library that does not match the package is not used."""

import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT
from compiling import COMPILER, LIBRARY

from seq2seq_cli.native import library as native
from seq2seq_cli.native.sources import LIBRARY_NAME, source_hash

pytestmark = pytest.mark.skipif(
    COMPILER is None or not native.precisions(), reason="no compiler, or not compiled"
)
WARNING = "was compiled from other sources and is not used"


def stub_library(library: Path, source_hash: str) -> None:
    """A library whose structures have other sizes."""
    source = library.with_suffix(".c")
    text = f'const char source_hash[] = "{source_hash}"; const long long interface[16] = {{1}};\n'
    source.write_text(text, encoding="utf-8")
    subprocess.run([COMPILER, "-shared", "-fPIC", source, "-o", library], check=True)


def test_library_of_other_sources_is_not_loaded(tmp_path, caplog):
    stub_library(tmp_path / "library.so", "of others")
    with caplog.at_level(logging.WARNING):
        assert native.load_library(tmp_path / "library.so") is None
    assert WARNING in caplog.text


def test_library_uses_no_openmp():
    """PyTorch has its own, and two in a process disturb each other."""
    assert not re.search(rb"GOMP_|__kmpc_", LIBRARY.read_bytes())


def test_missing_library_gives_no_warning(tmp_path, caplog):
    assert native.load_library(tmp_path / "none.so") is None
    assert not caplog.records


def test_library_of_another_project_is_not_loaded(tmp_path, caplog):
    source, library = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text("int start(void) { return 7; }", encoding="utf-8")
    subprocess.run([COMPILER, "-shared", "-fPIC", source, "-o", library], check=True)
    assert native.load_library(library) is None
    assert WARNING in caplog.text


def test_mismatch_of_c_sources_and_python_structures_is_detected(tmp_path):
    stub_library(tmp_path / "library.so", source_hash())
    with pytest.raises(AssertionError, match=r"library\.py and native\.h differ"):
        native.load_library(tmp_path / "library.so")


@pytest.mark.parametrize(
    ("is_edited", "said"),
    [
        pytest.param(True, WARNING, marks=pytest.mark.slow),
        (False, "which is slower; unsupported by native (it was not compiled"),
    ],
    ids=["checkout updated, not reinstalled", "installed without a compiler"],
)
def test_translate_works_without_a_library(is_edited, said, trained, seq2seq, tmp_path):
    package = tmp_path / "seq2seq_cli"
    shutil.copytree(ROOT / package.name, package, ignore=shutil.ignore_patterns("__pycache__"))
    if is_edited:
        with (package / "native/native.h").open("a", encoding="utf-8") as file:
            file.write("/* edited */\n")
    else:
        (package / "native" / LIBRARY_NAME).unlink()
    command = ["translate", str(trained), "--precision", "fp32", "1 2 3", "4 5"]
    done = run_in(tmp_path, "-m", "seq2seq_cli", *command)
    assert said in done.stderr
    assert done.returncode == 0
    assert done.stdout == seq2seq(*command).stdout


def test_kernels_can_be_chosen_by_name(trained, seq2seq):
    """And one that this machine lacks is an error that says what there is."""
    done = run_in(ROOT, "-m", "seq2seq_cli", "translate", trained, "1 2 3", isa="plain")
    assert done.returncode == 0, done.stderr
    assert done.stdout == seq2seq("translate", trained, "1 2 3").stdout
    done = run_in(ROOT, "-m", "seq2seq_cli", "translate", trained, "1 2 3", isa="mmx")
    assert done.returncode == 2
    assert "SEQ2SEQ_CPU_ISA" in done.stderr and "plain" in done.stderr


def run_in(folder: Path, *arguments: object, isa: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(folder), "SEQ2SEQ_CPU_ISA": isa}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
