"""Compiles cpu_decoder.c as the installation does."""

import shutil
import subprocess
import sysconfig
import tomllib
from pathlib import Path

from commands import ROOT

SOURCE = ROOT / "seq2seq_cli/decoding/engines/cpu_decoder.c"
COMPILER = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])


def compile_decoder(source: Path, library: Path, *options: str) -> None:
    """Compile with the flags of pyproject.toml, followed by `options`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (module,) = project["tool"]["setuptools"]["ext-modules"]
    flags = [*module["extra-compile-args"], *options, "-shared", "-fPIC"]
    links = module["extra-link-args"]
    assert COMPILER is not None
    command = [COMPILER, *flags, source, *links, "-o", library]
    subprocess.run(command, check=True, cwd=source.parent)
