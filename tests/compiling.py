"""Compiles the native library as the installation does, and programs that contain it."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

from seq2seq_cli.native.sources import C_FILES, FLAGS, FOLDER, LIBRARY_NAME, LINK_FLAGS, source_hash

LIBRARY = FOLDER / LIBRARY_NAME
COMPILER = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g", "-O1")


def compile_library(folder: Path, library: Path, *options: str) -> None:
    """Compile the C files of a folder with the flags of the installation, followed by `options`."""
    assert COMPILER is not None
    define = f'-DSOURCE_HASH="{source_hash(folder)}"'
    flags = [*FLAGS, define, *options, "-shared", "-fPIC"]
    command = [COMPILER, *flags, *folder.glob("*.c"), *LINK_FLAGS, "-o", library]
    subprocess.run(command, check=True)


def compile_program(
    compiler: str, source: Path, program: Path, *options: str, library: Path | None = LIBRARY
) -> None:
    """Compile a program that calls the native library, or has its files in it if it is None."""
    files = C_FILES if library is None else [library, f"-Wl,-rpath,{library.parent}"]
    flags = [*FLAGS, '-DSOURCE_HASH=""', *options, f"-I{FOLDER}", "-pthread"]
    subprocess.run([compiler, *flags, source, *files, "-lm", "-o", program], check=True)
