"""What the documents tell people to type works, and both languages tell the same."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from commands import ROOT
from typer.main import get_command

from seq2seq_cli.cli import app
from seq2seq_cli.config.schema import Config

README, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
DOCUMENTS = [
    path
    for folder in (".", "docs", "runs", "benchmarks", "data")
    for path in sorted((ROOT / folder).glob("*.md"))
]
MADE_BY_THE_READER = ("mine", "new.", "all.", "data/multi30k")


def commands(path: Path) -> list[str]:
    """The lines of the bash blocks, comments left out."""
    blocks = re.findall(r"```bash\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


SEQ2SEQ = [line for line in commands(README) if line.startswith("seq2seq ")]


def test_chinese_readme_has_the_same_commands():
    assert commands(CHINESE) == commands(README)


def test_readme_has_commands():
    assert commands(README)[:2] == ["make demo", "make test"]
    assert len(SEQ2SEQ) >= 10


@pytest.mark.parametrize("line", SEQ2SEQ)
def test_readme_commands_parse_and_their_files_exist(line):
    words = shlex.split(line)[1:]
    name, *arguments = words
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    if name == "bench":
        name, *arguments = arguments
        command = command.commands[name]
    command.make_context(name, arguments, resilient_parsing=False)
    for word in words[1:]:
        if word.startswith(("configs/", "data/")) and not word.startswith(MADE_BY_THE_READER):
            assert (ROOT / word).exists(), word


def test_readme_configs_are_valid():
    text = README.read_text(encoding="utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    whole = [block for block in blocks if isinstance(block, dict) and "data" in block]
    assert whole
    for block in whole:
        block["training"]["lr"] = float(block["training"]["lr"])
        Config.model_validate(block)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_document_links_have_targets(path):
    for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / link).exists(), link


def test_architecture_lists_every_file():
    document = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    tree = document.split("```text\nseq2seq_cli/\n")[1].split("```")[0]
    folders, named = [ROOT / "seq2seq_cli"], set()
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip("│├─ "))) // 4 - 1
        name = line.lstrip("│├─ ").split()[0]
        del folders[depth + 1 :]
        path = folders[-1] / name
        folders.append(path) if name.endswith("/") else named.add(path)
    files = {*(ROOT / "seq2seq_cli").rglob("*.py"), *(ROOT / "seq2seq_cli").rglob("*.c")}
    assert named - {ROOT / "seq2seq_cli/__main__.py"} == {
        path for path in files if not path.name.startswith("__")
    }


def test_functions_named_in_architecture_exist():
    document = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py): (?:(\w+)\.)?(\w+)`", document)
    assert len(named) >= 20
    for file, of_class, name in named:
        (path,) = (ROOT / "seq2seq_cli").rglob(file)
        source = path.read_text(encoding="utf-8")
        assert not of_class or f"class {of_class}" in source, f"{file}: {of_class}"
        pattern = rf"^ *(def|class) {name}\b|^{name}\b.* = "
        assert re.search(pattern, source, re.MULTILINE), f"{file}: {name}"


def test_documents_have_no_todo():
    for path in DOCUMENTS:
        assert "TODO" not in path.read_text(encoding="utf-8"), path.name


def test_tests_named_in_documents_exist():
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", (ROOT / "docs/failures.md").read_text())
    assert len(named) >= 19
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(), name
