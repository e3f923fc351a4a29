"""The recipes in examples/serving, as far as they can be run here."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT, all_commands
from served import Served

RECIPES = ROOT / "examples/serving"


def parses(arguments: list[str]) -> bool:
    command = all_commands()["serve"]
    return bool(command.make_context("serve", arguments).params["runs"])


def test_the_dockerfile_has_no_known_mistakes():
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if linter is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([linter, RECIPES / "Dockerfile"], capture_output=True, text=True)
    assert done.stdout == ""


def test_the_image_has_what_the_package_is_made_of():
    kept = (RECIPES / "Dockerfile.dockerignore").read_text().splitlines()
    names = [line.removeprefix("!") for line in kept if line.startswith("!")]
    assert all((ROOT / name).exists() for name in names)
    assert {"seq2seq_cli", "pyproject.toml", "setup.py", "README.md", "LICENSE"} <= {*names}
    links = [path for path in (ROOT / "seq2seq_cli").rglob("*") if path.is_symlink()]
    targets = [path.resolve().relative_to(ROOT) for path in links]
    assert targets and all(any(path.is_relative_to(name) for name in names) for path in targets)


def test_the_image_serves_and_knows_whether_it_is_healthy(server: Served):
    text = (RECIPES / "Dockerfile").read_text()
    entry = re.search(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE)
    check = re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", text, re.MULTILINE)
    assert entry is not None and check is not None
    program, verb, *arguments = json.loads(entry[1])
    assert (program, verb) == ("seq2seq", "serve")
    assert parses(arguments)
    _, *script = json.loads(check[1])
    for port, status in ((server.port, 0), (1, 1)):
        command = [part.replace(":5000/", f":{port}/") for part in script]
        done = subprocess.run([sys.executable, *command], capture_output=True)
        assert done.returncode == status


def test_the_unit_of_systemd(tmp_path: Path):
    text = (RECIPES / "seq2seq.service").read_text()
    started = re.search(r"^ExecStart=\S+ serve (.*)$", text, re.MULTILINE)
    assert parses(started[1].split())
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("there is no systemd-analyze")
    unit = tmp_path / "seq2seq.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE))
    done = subprocess.run([program, "verify", unit], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
