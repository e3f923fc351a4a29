"""A compiled decoder that does not match the package is not used."""

import importlib.machinery
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT
from compiling import COMPILER, SOURCE, compile_decoder

from seq2seq_cli.decoding.engines import cpu_library

pytestmark = pytest.mark.skipif(
    COMPILER is None or not cpu_library.precisions(), reason="no compiler, or no AVX-512"
)
WARNING = "was compiled from another version of cpu_decoder.c and is not used"


def edited_source(folder: Path, before: str, after: str) -> Path:
    text = SOURCE.read_text(encoding="utf-8")
    assert text.count(before) == 1
    copy = folder / SOURCE.name
    copy.write_text(text.replace(before, after), encoding="utf-8")
    return copy


def test_library_of_another_source_is_not_loaded(tmp_path, caplog):
    library, source = tmp_path / "library.so", edited_source(tmp_path, "MANY = 12,", "MANY = 13,")
    compile_decoder(source, library, "-O1")
    assert cpu_library.load_library(library, source) is not None
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert cpu_library.load_library(library, SOURCE) is None
        assert cpu_library.load_library(library, tmp_path / "none.c") is None
    assert [WARNING in record.message for record in caplog.records] == [True, False]


def test_missing_library_gives_no_warning(tmp_path, caplog):
    assert cpu_library.load_library(tmp_path / "none.so", SOURCE) is None
    assert not caplog.records


def test_library_that_needs_an_absent_one_is_not_loaded_and_gives_no_warning(tmp_path, caplog):
    """As libgomp may be where the package was installed but not compiled."""
    source = tmp_path / "other.c"
    source.write_text("int start(void) { return 7; }", encoding="utf-8")
    needed, library = tmp_path / "libneeded.so", tmp_path / "other.so"
    compile_decoder(source, needed)
    compile_decoder(source, library, f"-L{tmp_path}", "-Wl,--no-as-needed", "-lneeded")
    needed.unlink()
    assert cpu_library.load_library(library, SOURCE) is None
    assert not caplog.records


def test_library_of_another_project_is_not_loaded(tmp_path, caplog):
    source, library = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text("int start(void) { return 7; }", encoding="utf-8")
    compile_decoder(source, library)
    assert cpu_library.load_library(library, SOURCE) is None
    assert WARNING in caplog.text


def test_mismatch_of_c_source_and_python_structs_is_detected(tmp_path):
    source = edited_source(tmp_path, "SLOTS = 32,", "SLOTS = 64,")
    compile_decoder(source, tmp_path / "library.so", "-O1")
    with pytest.raises(AssertionError, match=r"cpu_library\.py and cpu_decoder\.c differ"):
        cpu_library.load_library(tmp_path / "library.so", source)


def test_translate_works_without_a_matching_library(trained, seq2seq, tmp_path):
    """Its C structs have other fields, as after updating a checkout without reinstalling."""
    package = tmp_path / "seq2seq_cli"
    shutil.copytree(ROOT / package.name, package, ignore=shutil.ignore_patterns("__pycache__"))
    name = "_cpu_decoder" + importlib.machinery.EXTENSION_SUFFIXES[0]
    source = edited_source(
        tmp_path, "int64_t sentences, longest;", "int64_t one, sentences, longest;"
    )
    compile_decoder(source, package / "decoding/engines" / name, "-O1")
    command = ["translate", str(trained), "--precision", "fp32", "1 2 3", "4 5"]
    done = subprocess.run(
        [sys.executable, "-m", "seq2seq_cli", *command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert WARNING in done.stderr
    assert done.returncode == 0
    assert done.stdout == seq2seq(*command).stdout
