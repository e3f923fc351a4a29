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
from served import serving

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROGRAM = (sys.executable, "-S", "-m", "seq2seq_cli")
REFUSAL = (
    "this needs the package torch, which seq2seq-runtime does not install: "
    "pip uninstall seq2seq-runtime, then pip install seq2seq-cli"
)
METADATA = "Metadata-Version: 2.1\nName: seq2seq-runtime\nVersion: 0\nProvides-Extra: remote\n"


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
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which Python finds the packages of the runtime and none other."""
    folder = tmp_path_factory.mktemp("packages")
    extra = PROJECT["project"]["optional-dependencies"]["serve"]
    link_packages(folder, [*PROJECT["tool"]["seq2seq-runtime"]["dependencies"], *extra], set())
    (folder / "seq2seq_cli").symlink_to(ROOT / "seq2seq_cli")
    (folder / "seq2seq_runtime-0.dist-info").mkdir()
    (folder / "seq2seq_runtime-0.dist-info/METADATA").write_text(METADATA)
    return {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}


def run(*arguments: object, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_a_command_that_needs_pytorch_says_what_to_install(environment):
    refused = run("train", "configs/quickstart.yaml", environment=environment)
    assert (refused.returncode, refused.stderr) == (2, f"error: {REFUSAL}\n")


@pytest.mark.parametrize("options", [(), ("--beam-size", "4", "--n-best", "2", "--format", "tsv")])
def test_it_translates_as_with_pytorch(trained, seq2seq, environment, options):
    sentences = ("4 2", "1 9 7 7")
    with_pytorch = seq2seq("translate", trained, *sentences, *options)
    without = run("translate", trained, *sentences, *options, environment=environment)
    assert (without.returncode, without.stdout) == (0, with_pytorch.stdout), without.stderr


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (("plot", "RUN"), "pip uninstall seq2seq-runtime, then pip install 'seq2seq-cli[plot]'"),
        (("translate", "RUN", "-i", "s3://a/b"), "pip install 'seq2seq-runtime[remote]'"),
    ],
)
def test_it_names_the_distribution_that_has_an_extra(trained, environment, command, advice):
    arguments = [trained if argument == "RUN" else argument for argument in command]
    refused = run(*arguments, environment=environment)
    assert refused.returncode == 2
    assert refused.stderr.endswith(f"{advice}\n")


def test_it_serves(trained, environment):
    command = (*PROGRAM, "serve", "--langs", "en-de")
    with serving(trained, program=command, environment=environment) as server:
        lines = ["x 4 2", "y 1 9 7 7"]  # without letters there is nothing to translate
        translations = server.translate(lines)["translatedText"]
        assert translations[0].endswith("four two"), translations
        assert translations[1].endswith("one nine seven seven"), translations
        assert server.ask("/").status == 200
        # A glossary needs PyTorch: the request is refused, and its worker lives.
        fields = {"q": "x 4 2", "source": "en", "target": "de", "glossary": {"4": "four"}}
        refused = server.ask("/translate", fields)
        assert (refused.status, refused.json) == (400, {"error": REFUSAL})
        assert b"worker_deaths_total 0.0" in server.ask("/metrics").body


@pytest.mark.slow
def test_serve_says_that_its_search_needs_pytorch(trained, environment):
    sampling = ("--set", "decoding.sampling=true", "--port", 0)
    refused = run("serve", trained, "--langs", "en-de", *sampling, environment=environment)
    assert (refused.returncode, refused.stderr) == (2, f"error: {REFUSAL}\n")
