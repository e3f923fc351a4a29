"""Compiles the native library as the installation does, and programs that contain it."""

import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from seq2seq_cli.native.sources import FLAGS, FOLDER, LIBRARY_NAME, LINK_FLAGS, SOURCES, source_hash

LIBRARY = FOLDER / LIBRARY_NAME
COMPILER = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g", "-O1")

# The kernels for newer processors, in C for those that have AVX2: what is put in place of what, and
# options. GCC 12 cannot optimize it further.
EMULATION_PATCHES = {
    'USE_TARGET(FEATURES ",avx512vnni" FEATURES_BF16)': 'USE_TARGET("avx2,fma")',
    'USE_TARGET("avx2,fma,avxvnni")': 'USE_TARGET("avx2,fma")',
    "return (bits & wanted) == wanted;": "return 1;",
    "return syscall(SYS_arch_prctl, ask_for_tiles, tile_data) == 0;": "return 1;",
}
EMULATION_FLAGS = (
    "-mavx2",
    "-mfma",
    "-include",
    str(Path(__file__).with_name("emulated_x86.h")),
    "-O1",
)


def copy_sources(folder: Path, replaced: Mapping[str, str]) -> None:
    """Copy the C files and headers to a folder, and put something in place of some text of theirs.

    Every text must be there.
    """
    sources = {path.name: path.read_text() for path in SOURCES}
    for before, after in replaced.items():
        assert any(before in text for text in sources.values()), before
        sources = {name: text.replace(before, after) for name, text in sources.items()}
    for name, text in sources.items():
        (folder / name).write_text(text)


def compile_library(folder: Path, library: Path, *options: str) -> None:
    """Compile the C files of a folder with the flags of the installation, followed by `options`."""
    assert COMPILER is not None
    define = f'-DSOURCE_HASH="{source_hash(folder)}"'
    flags = [*FLAGS, define, *options, "-shared", "-fPIC"]
    command = [COMPILER, *flags, *folder.glob("*.c"), *LINK_FLAGS, "-o", library]
    subprocess.run(command, check=True)


def compile_program(
    compiler: str,
    source: Path,
    program: Path,
    *options: str,
    library: Path | None = LIBRARY,
    folder: Path = FOLDER,
) -> None:
    """Compile a program that calls the native library.

    If that is None, the program has the C files of a folder in it.
    """
    files = folder.glob("*.c") if library is None else [library, f"-Wl,-rpath,{library.parent}"]
    flags = [*FLAGS, '-DSOURCE_HASH=""', *options, f"-I{folder}", "-pthread"]
    subprocess.run([compiler, *flags, source, *files, "-lm", "-o", program], check=True)
