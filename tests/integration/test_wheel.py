"""A wheel has all that the program needs, whether there is a compiler or not."""

import os
import platform
import shutil
import struct
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from commands import ROOT
from compiling import COMPILER, compile_program
from served import serving

MODULES = """
import pkgutil, seq2seq_cli
for module in pkgutil.walk_packages(seq2seq_cli.__path__, "seq2seq_cli."):
    if not module.name.endswith((".__main__", ".libnative")):
        try:
            __import__(module.name)
        except ModuleNotFoundError as error:  # of an extra that is not installed
            assert error.name.split(".")[0] in {"ctranslate2", "optuna"}, module.name
"""
# Of warnings there is only that setuptools may change how extension modules are written.
NO_COMPILER = {"CC": "/no/compiler", "CFLAGS": "", "PYTHONWARNINGS": "ignore"}
EMPTY_LIBRARY = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
: > "$2"
"""
ENGINE = """
from seq2seq_cli import Translator
print(type(Translator.load("runs/quickstart", "cpu").backend.decoder).__name__)
"""


def checkout(folder: Path) -> Path:
    """Copy what git knows, as a clone has it; building writes to the folder."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a clone of the repository")
    for name in listed.stdout.splitlines():
        if name.startswith(("seq2seq_cli/", "configs/", "data/quickstart")) or "/" not in name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def build(
    source: Path, output: Path, *options: str, status: int = 0, **environment: str
) -> tuple[Path | None, str]:
    """Build a wheel of a folder or of an archive; return it and what pip has said."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(output)]
    done = subprocess.run(
        [*command, *options, str(source)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == status, done.stdout + done.stderr
    return next(output.glob("*.whl"), None), done.stdout + done.stderr


@pytest.mark.slow
def test_the_runtime_is_not_built_without_a_compiler(tmp_path):
    variables = {**NO_COMPILER, "SEQ2SEQ_DISTRIBUTION": "seq2seq-runtime"}
    source = checkout(tmp_path / "clone")
    _, said = build(source, tmp_path, "--no-build-isolation", status=1, **variables)
    assert "command '/no/compiler' failed" in said


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["seq2seq-cli", "seq2seq-runtime"])
def test_both_distributions_have_the_same_files(distribution, tmp_path):
    """The runtime has the native library too, the other one if there is a compiler."""
    source = checkout(tmp_path / "clone")
    library = "seq2seq_cli/native/libnative.so"
    variables = {**NO_COMPILER, "SEQ2SEQ_DISTRIBUTION": distribution}
    if distribution == "seq2seq-runtime":
        (compiler := tmp_path / "cc").write_text(EMPTY_LIBRARY)
        compiler.chmod(0o755)
        variables["CC"] = str(compiler)
    wheel, said = build(source, tmp_path, "--no-build-isolation", **variables)
    assert "error" not in said.lower()
    assert "warning: building" not in said.lower()
    assert wheel is not None and wheel.name.startswith(f"{distribution.replace('-', '_')}-")
    with zipfile.ZipFile(wheel) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    assert (found.pop(library, None) == b"") == (distribution == "seq2seq-runtime")
    (metadata,) = (found[name].decode() for name in found if name.endswith("/METADATA"))
    assert ("Requires-Dist: torch" in metadata) == (distribution == "seq2seq-cli")
    assert {"Provides-Extra: serve", f"Name: {distribution}"} <= set(metadata.splitlines())
    package = [path for path in (source / "seq2seq_cli").rglob("*") if path.is_file()]
    package = [path for path in package if path.suffix not in {".c", ".h"}]
    needed = {str(path.relative_to(source)): path for path in package}
    for path in (source / "data/quickstart").iterdir():
        needed[f"seq2seq_cli/commands/init/example/data/quickstart/{path.name}"] = path
    assert {name for name in found if ".dist-info/" not in name} == set(needed)
    for name, path in needed.items():
        assert found[name] == path.read_bytes(), name
    endings = {Path(name).suffix for name in needed} | {Path(name).name for name in needed}
    assert {".py", ".html", ".css", ".js", ".yaml", ".de", ".en", "py.typed"} <= endings


@pytest.mark.slow
def test_make_wheels_compiles_the_library_for_all_platforms(tmp_path):
    """Zig's compiler makes libraries for the right processors, with the bits of this machine's."""
    pytest.importorskip("ziglang")
    source = checkout(tmp_path / "clone")
    subprocess.run([sys.executable, "make_wheels.py"], cwd=source, check=True)
    machines = {}
    for wheel in (source / "dist").glob("*.whl"):
        name, _, python, abi, tag = wheel.stem.split("-")
        assert (python, abi) == ("py3", "none")
        library = zipfile.ZipFile(wheel).read("seq2seq_cli/native/libnative.so")
        machines.setdefault(tag, []).append((name, machine_of(library)))
    elf = {"x86_64": (b"\x7fELF", 62), "aarch64": (b"\x7fELF", 183)}
    expected = {
        **{
            f"{libc}_{name}": elf[name]
            for name in elf
            for libc in ("manylinux_2_17", "musllinux_1_2")
        },
        "macosx_11_0_x86_64": (b"\xcf\xfa\xed\xfe", 0x01000007),
        "macosx_11_0_arm64": (b"\xcf\xfa\xed\xfe", 0x0100000C),
        "win_amd64": (b"PE\0\0", 0x8664),
    }
    names = ("seq2seq_cli", "seq2seq_runtime")
    assert {key: sorted(found) for key, found in machines.items()} == {
        key: [(name, machine) for name in names] for key, machine in expected.items()
    }
    if COMPILER is None or platform.machine() != "x86_64" or sys.platform != "linux":
        return
    (wheel,) = (source / "dist").glob("seq2seq_runtime-*-manylinux_2_17_x86_64.whl")
    with zipfile.ZipFile(wheel) as archive:
        library = Path(archive.extract("seq2seq_cli/native/libnative.so", tmp_path))
    printed = []
    for name, compiled in (("wheel", library), ("here", None)):
        program = tmp_path / name
        compile_program(COMPILER, ROOT / "tests/numerics/kernels.c", program, library=compiled)
        printed.append(subprocess.run([program], capture_output=True, check=True).stdout)
    assert printed[0] == printed[1]


def machine_of(library: bytes) -> tuple[bytes, int]:
    """Return the signature of an ELF, Mach-O or PE file and the number of its processor."""
    if library.startswith(b"MZ"):
        (start,) = struct.unpack_from("<I", library, 0x3C)
        library = library[start:]
        return library[:4], struct.unpack_from("<H", library, 4)[0]
    offset, size = (18, "<H") if library.startswith(b"\x7fELF") else (4, "<I")
    return library[:4], struct.unpack_from(size, library, offset)[0]


@pytest.mark.slow
@pytest.mark.parametrize("has_compiler", [True, False])
def test_an_installed_wheel_trains_and_translates(has_compiler, tmp_path):
    """Made of the source distribution, in an environment of its own, in an empty folder."""
    source = checkout(tmp_path / "clone")
    code = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=source, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    compiler = {} if has_compiler else {"CC": "/no/compiler"}
    wheel, _ = build(archive, tmp_path / "wheel", "--no-build-isolation", **compiler)
    environment, work = tmp_path / "venv", tmp_path / "work"
    work.mkdir()
    venv.create(environment, with_pip=True)
    python = environment / "bin/python"
    constraints = ("--constraint", str(ROOT / "constraints.txt"))
    install = [python, "-m", "pip", "install", "--quiet", *constraints]
    subprocess.run([*install, "torch"], check=True)
    subprocess.run([*install, f"{wheel}[serve]"], check=True)

    def run(*command: object) -> str:
        variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        variables |= {"SEQ2SEQ_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(
            list(map(str, command)), cwd=work, env=variables, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    seq2seq = environment / "bin/seq2seq"
    assert run(seq2seq, "--version").startswith("seq2seq ")
    assert not list(work.iterdir())
    run(python, "-c", MODULES)
    run(seq2seq, "init", "--example")
    few = ("--set", "training.max_steps=20", "--set", "training.warmup_steps=5")
    run(seq2seq, "train", "configs/quickstart.yaml", *few, "--set", "validation.every=20")
    sentence = "Ich möchte ein Bier trinken."
    assert len(run(seq2seq, "translate", "runs/quickstart", sentence).splitlines()) == 1
    run(seq2seq, "attend", "runs/quickstart", sentence, "--output", "page.html")
    with serving("runs/quickstart", program=[seq2seq, "serve"], folder=work) as server:
        fields = {"q": sentence, "source": "de", "target": "en"}
        assert server.ask("/translate", fields).status == 200
        assert server.ask("/").headers["content-type"].startswith("text/html")
    native = any(name.endswith(".so") for name in zipfile.ZipFile(wheel).namelist())
    assert native == has_compiler
    assert (run(python, "-c", ENGINE) == "CpuDecoder\n") == native
