"""The notebook goes from two text files to a served model."""

import os
import shlex
import sys
from pathlib import Path

import pytest
from commands import ROOT, all_commands, free_port

nbformat = pytest.importorskip("nbformat")
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def read() -> "nbformat.NotebookNode":
    return nbformat.read(NOTEBOOK, as_version=4)


def test_the_notebook_is_valid_and_has_no_outputs():
    notebook = read()
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) >= 5
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    assert sum(len(cell.source.splitlines()) for cell in cells) < 30


def test_the_commands_of_the_notebook_parse():
    lines = "\n".join(cell.source for cell in read().cells if cell.cell_type == "code").splitlines()
    commands = [line for line in lines if line.startswith("seq2seq ")]
    assert {line.split()[1] for line in commands} >= {"init", "train", "eval", "export"}
    for line in commands:
        _, name, *arguments = shlex.split(line)
        all_commands()[name].make_context(name, arguments)


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch):
    """With a few updates of training instead of hundreds."""
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    notebook = read()
    port = str(free_port())
    for cell in notebook.cells:
        cell.source = cell.source.replace("5000", port).replace(
            "training.max_steps=600", "training.max_steps=10 --set training.warmup_steps=2"
        )
    resources = {"metadata": {"path": str(tmp_path)}}
    client.NotebookClient(notebook, timeout=300, resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    translations, exit_status = (out.data["text/plain"] for out in outputs if "data" in out)
    assert translations.startswith("['")
    printed = "".join(output.text for output in outputs if "text" in output)
    assert '{"status":"ok"}' in printed
    assert '"translatedText":"' in printed
    assert exit_status == "0", "of the server"
    assert (tmp_path / "mine-ct2" / "model.bin").is_file()
