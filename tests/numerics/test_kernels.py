"""The kernels of every instruction set: naive sums in int8 and bf16, equal bits in the others."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from compiling import (
    COMPILER,
    EMULATION_FLAGS,
    EMULATION_PATCHES,
    SANITIZERS,
    compile_program,
    copy_sources,
)
from small_models import build, random_sources

from seq2seq_cli.decoding.engines.cpu_decoder import CpuDecoder
from seq2seq_cli.decoding.search.scoring import padded_ids
from seq2seq_cli.native import library as native
from seq2seq_cli.tokenizers.tokenizer import BOS_ID

PROGRAM = Path(__file__).with_name("kernels.c")
HERE = ["amx", "avx512", "avxvnni", "avx2", "i8mm", "dotprod", "neon", "plain"]
CANNOT_RUN = 77
ARM_COMPILER, ARM_EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
X86_EMULATOR = "qemu-x86_64"
# The processor that is emulated for a set: one without dot products of bytes, one without products
# of matrices, one with all.
EMULATED = {"neon": "cortex-a53", "dotprod": "neoverse-n1", "i8mm": "max", "plain": "max"}
PRECISIONS = {"neon": "5", "dotprod": "5", "i8mm": "7", "plain": "5"}  # bits of fp32, bf16, int8


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if COMPILER is None or not native.precisions():
        pytest.skip("no compiler")
    path = tmp_path_factory.mktemp("kernels") / "kernels"
    compile_program(COMPILER, PROGRAM, path)
    return path


@pytest.fixture(scope="module")
def arm_program(tmp_path_factory):
    if platform.machine() != "x86_64" or not all(map(shutil.which, (ARM_COMPILER, ARM_EMULATOR))):
        pytest.skip(f"needs {ARM_COMPILER} and {ARM_EMULATOR}")
    path = tmp_path_factory.mktemp("arm") / "kernels"
    compile_program(ARM_COMPILER, PROGRAM, path, "-static", library=None)
    return path


def hashes(*command) -> dict[str, str] | None:
    """The hash of each kernel's results; None if the machine cannot run the set."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode == CANNOT_RUN:
        return None
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


def test_all_sets_of_this_machine_give_the_same_bits(program):
    found = {name: made for name in HERE if (made := hashes(program, name)) is not None}
    assert "plain" in found
    for name, made in found.items():
        assert made.pop("kernels") == name
        del made["precisions"]
    first = found.pop("plain")
    assert set(first) == {"int8", "fp32", "attention", "rows"}
    training = {made.pop("training") for made in found.values()}
    assert len(training) <= 1
    for name, made in found.items():
        assert made == first, name


@pytest.mark.slow  # compiles all kernels
def test_kernels_of_newer_processors_give_the_same_bits(program, tmp_path):
    expected = hashes(program, "avx2")
    if expected is None:
        pytest.skip("emulation needs avx2")
    copy_sources(tmp_path, EMULATION_PATCHES)
    emulated = tmp_path / "emulated"
    compile_program(COMPILER, PROGRAM, emulated, *EMULATION_FLAGS, library=None, folder=tmp_path)
    for name, precisions in {"avxvnni": "5", "avx512": "7", "amx": "7"}.items():
        assert hashes(emulated, name) == expected | {"kernels": name, "precisions": precisions}


@pytest.mark.slow  # compiles all kernels
@pytest.mark.parametrize("name", EMULATED)
def test_arm_gives_the_same_bits(name, program, arm_program):
    made = hashes(ARM_EMULATOR, "-cpu", EMULATED[name], arm_program, name)
    same = "plain" if name == "plain" else "avx2"  # plain has no kernels of training
    expected = hashes(program, same)
    assert made is not None
    if expected is None:
        pytest.skip("this machine does not run avx2")
    assert (made.pop("kernels"), made.pop("precisions")) == (name, PRECISIONS[name])
    assert (expected.pop("kernels"), expected.pop("precisions")) == (same, "5")
    assert made == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("emulator", "processor", "lacks", "fastest"),
    [
        (ARM_EMULATOR, "cortex-a53", "dotprod", "neon"),
        (ARM_EMULATOR, "neoverse-n1", "i8mm", "dotprod"),
        (ARM_EMULATOR, "max", None, "i8mm"),
        (X86_EMULATOR, "Nehalem", "avx2", "plain"),
        (X86_EMULATOR, "Haswell", "avx512", "avx2"),
    ],
)
def test_a_processor_runs_the_fastest_of_its_own(emulator, processor, lacks, fastest, request):
    if platform.machine() != "x86_64" or shutil.which(emulator) is None:
        pytest.skip(f"needs {emulator}")
    name = "arm_program" if emulator == ARM_EMULATOR else "program"
    emulated = (emulator, "-cpu", processor, request.getfixturevalue(name))
    if emulator == X86_EMULATOR and hashes(*emulated, fastest) is None:  # before version 7.2
        pytest.skip(f"this {emulator} has no {fastest}")
    assert lacks is None or hashes(*emulated, lacks) is None
    chosen = hashes(*emulated)
    assert chosen is not None and chosen["kernels"] == fastest


@pytest.mark.slow  # compiles all kernels twice
def test_sanitizers_find_nothing(program, tmp_path):
    sanitized = tmp_path / "sanitized"
    compile_program(COMPILER, PROGRAM, sanitized, *SANITIZERS, library=None)
    for name in HERE:
        assert hashes(sanitized, name) == hashes(program, name)
    if not all(map(shutil.which, (ARM_COMPILER, ARM_EMULATOR))):
        return
    on_arm = tmp_path / "arm"  # where only the sanitizer without a runtime library works
    trapping = ("-fsanitize=undefined", "-fsanitize-undefined-trap-on-error", "-static")
    compile_program(ARM_COMPILER, PROGRAM, on_arm, "-O1", *trapping, library=None)
    for name, processor in EMULATED.items():
        assert hashes(ARM_EMULATOR, "-cpu", processor, on_arm, name) is not None


@pytest.mark.skipif(not native.precisions(), reason="not compiled")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize(
    "options", [{}, {"activation": "gelu", "norm": "post", "d_model": 36, "d_ff": 50}], ids=str
)
def test_a_model_has_the_same_logits_with_all_sets(precision, options):
    model = build(3, vocabulary=70, **options)
    src_BS = padded_ids(random_sources(20))
    tokens = torch.randint(4, 70, (6, 20, 1), generator=torch.Generator().manual_seed(1))
    logits = {}
    try:
        for name in HERE:
            if precision not in native.choose_kernels(name):
                continue
            state = CpuDecoder(model, precision).start(src_BS)
            steps = [torch.full((20, 1), BOS_ID), *tokens]
            logits[native.kernels_name()] = torch.cat([state.logits(last) for last in steps])
    finally:
        native.choose_kernels(os.environ.get("SEQ2SEQ_CPU_ISA"))
    assert "plain" in logits
    first = logits.pop("plain")
    assert all(torch.equal(made, first) for made in logits.values())
