"""Builds the wheels of both distributions for all platforms into dist/: `make wheels`.

`zig cc`, which pip installs (package ziglang), compiles the native library for other systems and
processors than this machine's.
"""

import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent
DISTRIBUTIONS = ("seq2seq-cli", "seq2seq-runtime")
TARGETS = {  # of zig, for the tags of wheels
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "win_amd64": "x86_64-windows-gnu",
}


def main() -> None:
    for tag in sys.argv[1:] or TARGETS:
        for distribution in DISTRIBUTIONS:
            build(distribution, tag)


def build(distribution: str, tag: str) -> None:
    """Build one wheel. The library is compiled once for both distributions, in build/TAG."""
    folder = f"build/{tag}"  # not absolute: libraries for macOS contain their path
    (ROOT / folder).mkdir(parents=True, exist_ok=True)
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[tag]]
    variables = {"CC": shlex.join(compiler), "SEQ2SEQ_DISTRIBUTION": distribution}
    variables["PYTHONWARNINGS"] = "ignore"  # of running setup.py
    options = ["egg_info", "--egg-base", folder, "build", "--build-base", folder]
    options += ["bdist_wheel", "--plat-name", tag, "--dist-dir", "dist"]
    command = [sys.executable, "setup.py", "--quiet", *options]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=True)
    (wheel,) = (ROOT / "dist").glob(f"{distribution.replace('-', '_')}-*-{tag}.whl")
    with zipfile.ZipFile(wheel) as archive:
        if "seq2seq_cli/native/libnative.so" not in archive.namelist():
            raise SystemExit(f"{wheel.name}: the native library was not compiled")
    print(wheel.relative_to(ROOT), f"{wheel.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
