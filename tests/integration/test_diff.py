"""Training is deterministic, and `seq2seq diff` says where runs differ."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from commands import Command, logged_points
from safetensors.torch import load_file, save_file


@pytest.fixture(scope="module")
def config(tmp_path_factory, numbers) -> Path:
    """Of a short run."""
    values = yaml.safe_load((numbers / "numbers.yaml").read_text())
    values["training"]["max_steps"] = 40
    values["validation"]["every"] = 20
    path = tmp_path_factory.mktemp("short") / "short.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture(scope="module")
def run(config: Path, seq2seq: Command) -> Path:
    folder = config.parent / "run"
    assert seq2seq("train", config, "--run-dir", folder).exit_code == 0
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def kinds(seq2seq: Command, one: Path, other: Path) -> list[tuple[str, str]]:
    result = seq2seq("diff", one, other, "--json")
    assert result.exit_code == 1
    return [(found["kind"], found["name"]) for found in json.loads(result.stdout)]


@pytest.mark.slow
def test_training_is_deterministic(run, config, seq2seq, tmp_path):
    assert seq2seq("train", config, "--run-dir", tmp_path / "again").exit_code == 0
    for name in ("model.safetensors", "config.yaml", "src.model", "tgt.model"):
        assert (run / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name
    assert seq2seq("diff", run, tmp_path / "again") == (0, "no difference\n", "")
    assert json.loads(seq2seq("diff", run, tmp_path / "again", "--json").stdout) == []


@pytest.mark.slow
def test_diff_names_a_different_seed_and_its_consequences(run, config, seq2seq, tmp_path):
    other = tmp_path / "other"
    assert seq2seq("train", config, "--run-dir", other, "--set", "training.seed=2").exit_code == 0
    result = seq2seq("diff", run, other)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == "option       training.seed: 1 | 2"
    assert [line.split()[0] for line in lines[1:3]] == ["weights", "weights"]
    assert "metrics      train/loss at step 20: " in result.stdout
    assert "progress     best_models.1.loss: " in result.stdout
    assert "BestModel" not in result.stdout
    assert "tokens_per_second" not in result.stdout


@pytest.mark.slow
def test_diff_finds_the_largest_weight_difference(run, copy, seq2seq):
    weights = load_file(run / "model.safetensors")
    name = "decoder.0.feed_forward.expand.weight"
    weights[name][3, 1] += 0.25
    save_file(weights, copy / "model.safetensors")
    found = seq2seq("diff", run, copy)
    expected = f"weights      best model: greatest absolute difference 0.25, in {name}\n"
    assert found.stdout == expected
    del weights[name]
    save_file(weights, copy / "model.safetensors")
    assert f"different names or shapes: {name}" in seq2seq("diff", run, copy).stdout
    (copy / "model.safetensors").unlink()
    assert "best model: present | missing" in seq2seq("diff", run, copy).stdout
    (copy / "model.safetensors").mkdir()
    assert "Is a directory" in seq2seq("diff", run, copy).stderr


def test_diff_reads_the_vocabularies(run, copy, seq2seq):
    (copy / "src.model").write_bytes((copy / "tgt.model").read_bytes())
    assert kinds(seq2seq, run, copy) == [("tokenizer", "src.model")]
    (copy / "src.model").unlink()
    assert seq2seq("diff", run, copy).stdout.endswith(" | missing\n")


def test_diff_compares_manifests(run, copy, seq2seq):
    recorded = json.loads((copy / "manifest.json").read_text())
    recorded["data"]["valid"] = "0"
    recorded["packages"]["torch"] = "1.0"
    recorded["git"], recorded["from"] = "abc-dirty", "base"
    del recorded["threads"]  # as earlier versions
    recorded["continuations"] = [{"git": "abc-dirty"}]
    (copy / "manifest.json").write_text(json.dumps(recorded))
    found = kinds(seq2seq, run, copy)
    names = [("data", "valid"), ("from", ""), ("package", "torch"), ("threads", ""), ("git", "")]
    assert [each for each in found if each in names] == names
    shown = seq2seq("diff", run, copy).stdout
    assert re.search(r"^from +none \| base$", shown, re.MULTILINE)
    assert re.search(r"^threads +\d+ \| not recorded$", shown, re.MULTILINE)


def test_diff_knows_the_former_names_of_metrics(run, copy, seq2seq):
    other = shutil.copytree(run, copy.parent / "other")
    for folder, name in ((other, "exact_match_error"), (copy, "wer")):
        point = {"step": 20, f"valid/{name}": 1.5}
        (folder / "metrics.jsonl").write_text(json.dumps(point) + "\n")
    assert seq2seq("diff", other, copy).stdout == "no difference\n"


def test_diff_names_the_first_step_with_different_metrics(run, copy, seq2seq):
    points = logged_points(run)
    points[0]["train/tokens_per_second"] = 1.0
    points[-1]["valid/loss"] = float("nan")
    (copy / "metrics.jsonl").write_text("".join(json.dumps(p) + "\n" for p in points))
    assert kinds(seq2seq, run, copy) == [("metrics", "valid/loss at step 40")]
    (copy / "metrics.jsonl").write_text(json.dumps(points[0]) + "\n")
    assert kinds(seq2seq, run, copy) == [("metrics", "step 20")]


def test_diff_rejects_a_folder_that_is_no_run(run, seq2seq, tmp_path):
    assert "is not a run folder" in seq2seq("diff", run, tmp_path).error()


def test_manifest_records_every_resume(run, copy, config, seq2seq):
    longer = ("train", config, "--run-dir", copy, "--set", "training.max_steps=50")
    assert seq2seq(*longer).exit_code == 0
    recorded = json.loads((copy / "manifest.json").read_text())
    begun = json.loads((run / "manifest.json").read_text())
    (entry,) = recorded.pop("continuations")
    assert entry["step"] == 40
    assert entry["changed"] == {"training.max_steps": {"from": "40", "to": "50"}}
    assert entry["packages"] == begun["packages"]
    assert recorded | {"num_continuations": 0, "continuations": []} == begun
    earlier = [entry | {"python": "3.99"}] * 99
    recorded |= {"continuations": [entry, *earlier], "num_continuations": 100}
    (copy / "manifest.json").write_text(json.dumps(recorded))
    assert seq2seq(*longer).exit_code == 0
    recorded = json.loads((copy / "manifest.json").read_text())
    assert recorded["num_continuations"] == 101
    assert recorded["continuations"][:-1] == earlier  # the first one has gone
    assert recorded["continuations"][-1]["step"] == 50
    found = json.loads(seq2seq("diff", run, copy, "--json").stdout)
    (python,) = [one for one in found if one["kind"] == "python"]
    assert python["second"] == f"{begun['python']}, then 3.99, then {begun['python']}"


def test_run_with_a_replaced_vocabulary_is_not_used(copy, config, seq2seq):
    (copy / "src.model").write_bytes((copy / "tgt.model").read_bytes())
    longer = ("--set", "training.max_steps=50")
    for command in (("train", config, "--run-dir", copy, *longer), ("translate", copy, "1")):
        assert "is not the one that the run started with" in seq2seq(*command).error()
    (copy / "manifest.json").unlink()
    seq2seq("translate", copy, "1").ok()
