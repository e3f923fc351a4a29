"""seq2seq-runtime with its dependencies and nothing else: translating needs no PyTorch."""

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from commands import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
METADATA = "Metadata-Version: 2.1\nName: seq2seq-runtime\nVersion: 0\n"


def link_packages(folder: Path, requirements: list[str], linked: set[str]) -> None:
    """Link the installed packages that are required, and those that they require, into a folder."""
    for requirement in map(Requirement, requirements):
        name = canonicalize_name(requirement.name)
        is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if name in linked or not is_needed:
            continue
        linked.add(name)
        try:
            package = importlib.metadata.distribution(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{requirement.name} is not installed")
        for name in {path.parts[0] for path in package.files or ()} - {"..", "__pycache__"}:
            (folder / name).symlink_to(package.locate_file(name))
        link_packages(folder, package.requires or [], linked)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    """Return a function that runs `seq2seq` with the packages of the runtime and none other."""
    folder = tmp_path_factory.mktemp("packages")
    extra = PROJECT["project"]["optional-dependencies"]["serve"]
    link_packages(folder, [*PROJECT["tool"]["seq2seq-runtime"]["dependencies"], *extra], set())
    (folder / "seq2seq_cli").symlink_to(ROOT / "seq2seq_cli")
    (folder / "seq2seq_runtime-0.dist-info").mkdir()
    (folder / "seq2seq_runtime-0.dist-info/METADATA").write_text(METADATA)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-S", "-m", "seq2seq_cli", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"},
            capture_output=True,
            text=True,
        )

    return run


def test_a_command_that_needs_pytorch_says_what_to_install(run):
    refused = run("train", "configs/quickstart.yaml")
    assert refused.returncode == 2
    assert refused.stderr == (
        "error: this needs the package torch, which seq2seq-runtime is installed without: "
        "pip uninstall seq2seq-runtime, then pip install seq2seq-cli\n"
    )
