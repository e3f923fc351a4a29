"""Runs are pushed to a hub and pulled from it, with the real client and a stand-in server."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Command
from hub_server import READER, WRITER, Hub, Repository, running_hub

pytest.importorskip("huggingface_hub")

pytestmark = pytest.mark.filterwarnings("ignore")

REPO = "me/numbers"
FILES = ["README.md", "config.yaml", "manifest.json", "metrics.jsonl", "model.safetensors"]
FILES += ["src.model", "statistics.json", "tgt.model"]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


def run(seq2seq: Command, *arguments: object) -> str:
    return seq2seq(*arguments).ok().stdout


def fail(seq2seq: Command, *arguments: object) -> str:
    result = seq2seq(*arguments)
    assert result.exit_code == 2, result.stdout
    assert WRITER not in result.stdout + result.stderr
    return result.stderr


def add_run(hub: Hub, run_dir: Path, name: str = REPO) -> Repository:
    """Put a run on the hub as it is."""
    repository = hub.repositories.setdefault(name, Repository(is_private=False))
    files = {path.name: path.read_bytes() for path in run_dir.iterdir() if path.is_file()}
    repository.commit("main", {file: files[file] for file in FILES if file in files})
    return repository


def test_a_run_comes_back_as_it_was(hub, trained, numbers, seq2seq, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = run(seq2seq, "push", trained, REPO, "--license", "mit")
    repository = hub.repositories[REPO]
    assert f"{hub.url}/{REPO}/commit/" in said
    assert WRITER not in said
    assert (repository.is_private, sorted(repository.files())) == (True, FILES)
    for name, data in repository.files().items():
        text = data.decode("utf-8", "replace")
        assert str(numbers.parent) not in text, name
        assert str(Path.home()) not in text, name
    assert repository.files()["README.md"].startswith(b"---\nlicense: mit\n")
    said = run(seq2seq, "pull", REPO)
    assert "pulled me/numbers at commit" in said
    pulled = tmp_path / "runs" / "numbers"
    assert sorted(path.name for path in pulled.iterdir()) == FILES
    assert [path.name for path in pulled.parent.iterdir()] == ["numbers"]
    for name in ("model.safetensors", "src.model", "metrics.jsonl"):
        assert (pulled / name).read_bytes() == (trained / name).read_bytes()
    files = ("--src", numbers / "test.src", "--ref", numbers / "test.tgt", "--json")
    scores = [json.loads(run(seq2seq, "eval", folder, *files)) for folder in (trained, pulled)]
    assert scores[0] == scores[1]
    assert run(seq2seq, "translate", pulled, "1 2") == "one two\n"


def test_a_machine_without_pytorch_can_pull(hub, trained, tmp_path):
    add_run(hub, trained)
    code = (
        "import sys\n"
        "from seq2seq_cli.extras.hub.hub import pull\n"
        "from pathlib import Path\n"
        f"pull({REPO!r}, Path('pulled'))\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "pulled/model.safetensors").exists()


def test_the_current_folder_is_not_replaced(hub, trained, seq2seq, tmp_path, monkeypatch):
    add_run(hub, trained)
    monkeypatch.chdir(tmp_path)
    for folder in (".", tmp_path):
        message = fail(seq2seq, "pull", REPO, folder)
        assert f"{folder} is the current folder: name another folder" in message
    assert not [*tmp_path.iterdir()]


def test_a_second_push_replaces_the_first(hub, trained, seq2seq, tmp_path):
    """On a branch too; files of an earlier push that the run lacks are removed, others stay."""
    repository = hub.repositories[REPO] = Repository(is_private=True)
    repository.commit(
        "main", {"tokenizer.model": b"old", "notes.txt": b"mine", ".gitattributes": b""}
    )
    run(seq2seq, "push", trained, REPO)
    assert sorted(repository.files()) == sorted([".gitattributes", "notes.txt", *FILES])
    run(seq2seq, "push", trained, REPO, "--revision", "next")
    assert sorted(repository.branches) == ["main", "next"]
    run(seq2seq, "pull", REPO, tmp_path / "next", "--revision", "next")
    first = repository.branches["main"]
    run(seq2seq, "pull", REPO, tmp_path / "first", "--revision", first)
    assert not (tmp_path / "first" / "notes.txt").exists()
    message = fail(seq2seq, "pull", REPO, tmp_path / "no", "--revision", "other")
    assert "me/numbers has no such revision" in message


def test_a_public_repository_is_asked_for(hub, trained, seq2seq):
    hub.repositories[REPO] = Repository(is_private=False)
    assert "is public: push to it with --public" in fail(seq2seq, "push", trained, REPO)
    assert hub.repositories[REPO].files() == {}
    run(seq2seq, "push", trained, REPO, "--public")
    run(seq2seq, "push", trained, "me/new", "--public")
    assert not hub.repositories["me/new"].is_private
    hub.repositories["me/new"].is_private = True
    assert "is private: push to it without" in fail(seq2seq, "push", trained, "me/new", "--public")


@pytest.mark.parametrize(
    ("token", "push_message", "pull_message"),
    [
        ("hf_wrong", "the hub does not know the token", "the hub does not know the token"),
        ("", "the hub does not know the token", "the hub does not know the token"),
        (READER, "it needs the right to write", "the hub has no repository me/numbers"),
    ],
)
def test_tokens(hub, trained, seq2seq, tmp_path, monkeypatch, token, push_message, pull_message):
    monkeypatch.setenv("HF_TOKEN", token)
    assert push_message in fail(seq2seq, "push", trained, REPO)
    message = fail(seq2seq, "pull", REPO, tmp_path / "run")
    assert pull_message in message
    assert not token or token not in message
    assert not (tmp_path / "run").exists()


def test_an_interrupted_push_changes_nothing_and_the_next_goes_on(hub, trained, seq2seq):
    """The weights, which are uploaded first, are not uploaded again."""
    repository = hub.repositories[REPO] = Repository(is_private=True, lfs={"model.safetensors"})
    hub.broken = "POST .*/commit/"
    assert "the hub refused with status 500" in fail(seq2seq, "push", trained, REPO)
    assert (repository.files(), len(hub.objects)) == ({}, 1)
    hub.broken = "PUT "
    run(seq2seq, "push", trained, REPO)
    weights = (trained / "model.safetensors").read_bytes()
    assert repository.files()["model.safetensors"] == weights


def test_a_connection_that_is_lost_is_resumed(hub, trained, seq2seq, tmp_path):
    add_run(hub, trained)
    hub.cut_after = 20_000
    run(seq2seq, "pull", REPO, tmp_path / "run")
    assert hub.cut_after == 0
    weights = (trained / "model.safetensors").read_bytes()
    assert (tmp_path / "run/model.safetensors").read_bytes() == weights


def test_an_interrupted_pull_goes_on(hub, trained, seq2seq, tmp_path):
    """No folder of the run exists before it is complete; what is complete is not fetched again."""
    add_run(hub, trained)
    hub.broken = "GET .*/tgt.model"
    assert "hub" in fail(seq2seq, "pull", REPO, tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run.part"]
    (tmp_path / "run.part" / "tokenizer.model").write_text("of another revision")
    hub.broken = ""
    hub.requests.clear()
    run(seq2seq, "pull", REPO, tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == FILES[1:]
    assert not [line for line in hub.requests if line.startswith("GET") and "safetensors" in line]


def test_nothing_is_overwritten(hub, trained, seq2seq, tmp_path):
    add_run(hub, trained)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("")
    assert "is not an empty folder" in fail(seq2seq, "pull", REPO, tmp_path / "run")
    (tmp_path / "other.part").mkdir()
    (tmp_path / "other.part" / "mine").write_text("")
    assert "is not an interrupted download" in fail(seq2seq, "pull", REPO, tmp_path / "other")
    (tmp_path / "link.part").mkdir()
    (tmp_path / "link.part" / "config.yaml").symlink_to(tmp_path / "elsewhere")
    assert "is not an interrupted download" in fail(seq2seq, "pull", REPO, tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.yaml", b"data: !!python/object/apply:os.getpid []", "cannot be loaded"),
        ("config.yaml", b" " * 600_000, "config.yaml is larger than"),
        ("model.safetensors", b"no weights", "model.safetensors is damaged"),
        ("src.model", b"no model", "src.model: this is not a SentencePiece model"),
        ("statistics.json", b"{}", "statistics.json is damaged"),
        ("config.yaml", None, "it has no config.yaml"),
        ("model.safetensors", None, "it has no model.safetensors"),
    ],
)
def test_what_is_no_run_is_refused(hub, trained, seq2seq, tmp_path, name, content, message):
    repository = add_run(hub, trained)
    files = {**repository.files(), name: content}
    repository.commit("main", {key: data for key, data in files.items() if data is not None})
    assert message in fail(seq2seq, "pull", REPO, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_names_and_hubs_that_do_not_exist(trained, seq2seq, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", WRITER)
    assert "the transfer to or from the hub failed" in fail(seq2seq, "pull", REPO, tmp_path / "run")
    message = fail(seq2seq, "pull", "a/b/c", tmp_path / "run")
    assert "a/b/c is not the name of a repository" in message
    assert "not a run folder" in fail(seq2seq, "push", tmp_path, REPO)


@pytest.mark.slow
def test_a_pull_that_is_killed_leaves_no_run(hub, trained, seq2seq, tmp_path):
    add_run(hub, trained)
    hub.cut_after = 1_000
    program = "import os, sys, threading; threading.Timer(0.2, os._exit, [9]).start()\n"
    program += "from seq2seq_cli.cli import main; main()"
    folder = shutil.copytree(tmp_path, tmp_path / "work")
    command = [sys.executable, "-c", program, "pull", REPO, "run"]
    subprocess.run(command, cwd=folder, env=os.environ, capture_output=True)
    assert not (folder / "run").exists()
    run(seq2seq, "pull", REPO, folder / "run")
