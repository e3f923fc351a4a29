"""Classification and language modelling as strings to strings: the shipped configs, untrained."""

import json
import math
import shutil
from pathlib import Path

import pytest
import yaml
from commands import ROOT, Command, logged_points

TINY = {
    "model.d_model": 16,
    "model.layers": 1,
    "model.d_ff": 16,
    "training.max_steps": 3,
    "training.warmup_steps": 1,
    "training.precision": "fp32",
    "training.processes": 1,
    "training.tokens_per_batch": 256,
    "decoding.precision": "fp32",
}
LABELS = {"kitchen", "service", "cleaning", "reception", "manager", "nobody"}
COMMENT = "the soup was not cold but the porter was rude"
BEGINNING = "Nora had a red kite . Tom had a blue drum . They met at the lake ."


@pytest.fixture(scope="module")
def trained_a_little(tmp_path_factory, seq2seq):
    """A function that trains a shipped config for three updates, and returns the run."""

    def train(name: str, **options: object) -> Path:
        run = tmp_path_factory.mktemp(name) / "run"
        sets = [f"--set={key}={value}" for key, value in (TINY | options).items()]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(ROOT)
            result = seq2seq("train", f"configs/{name}.yaml", "--run-dir", run, *sets)
        assert result.exit_code == 0, result.stderr
        return run

    return train


@pytest.fixture(scope="module")
def classifier(trained_a_little) -> Path:
    return trained_a_little("classification")


@pytest.fixture(scope="module")
def stories(trained_a_little) -> Path:
    return trained_a_little("continuation")


@pytest.mark.slow
def test_the_n_best_list_ranks_every_label(classifier, seq2seq, tmp_path):
    """And its log-probabilities are those that `score` gives to these labels."""
    options = ("--beam-size", 6, "--n-best", 6, "--log-probs", "--format", "tsv")
    ranked = seq2seq("translate", classifier, *options, COMMENT).stdout.splitlines()
    rows = [line.split("\t") for line in ranked]
    assert {label for _, label, _, _ in rows} == LABELS
    log_probs = {label: float(log_prob) for _, label, _, log_prob in rows}
    assert list(log_probs) == sorted(log_probs, key=log_probs.__getitem__, reverse=True)
    pairs = tmp_path / "labels.tsv"
    pairs.write_text("".join(f"{COMMENT}\t{label}\n" for label in log_probs))
    scored = seq2seq("score", classifier, "--pairs", pairs).stdout.splitlines()
    assert [float(line.split("\t")[0]) for line in scored] == pytest.approx(
        list(log_probs.values()), abs=1e-3
    )


def test_a_prediction_is_exactly_one_label(classifier, seq2seq):
    comments = ["the soup", "but but but", "unknown words only", COMMENT]
    predicted = seq2seq("translate", classifier, *comments).stdout.splitlines()
    assert len(predicted) == len(comments)
    assert set(predicted) <= LABELS


def test_eval_of_strings_counts_what_is_right_and_what_is_wrong(classifier, seq2seq):
    """Not n-grams: these say nothing about labels."""
    pairs = ("--pairs", ROOT / "data/classification/valid.tsv")
    options = (*pairs, "--errors", "--worst", 2, "--json")
    report = json.loads(seq2seq("eval", classifier, *options).stdout)
    assert {"exact_match", "symbol_error_rate"} <= report.keys()
    assert not {"bleu", "chrf"} & report.keys()
    logged = logged_points(classifier)[-1]
    assert {"valid/exact_match", "valid/symbol_error_rate"} <= logged.keys()
    assert not {"valid/bleu", "valid/chrf"} & logged.keys()
    errors = report["errors"]
    assert errors["unit"] == "symbols"
    assert 100 * errors["num_wrong_lines"] / errors["num_lines"] == report["symbol_error_rate"]
    assert sum(change["number"] for change in errors["changes"]) == errors["num_wrong_lines"]
    assert [line["symbol_error_rate"] for line in report["worst"]] == [100, 100]
    shown = seq2seq("compare", classifier, classifier, *pairs).stdout
    assert "symbol_error_rate" in shown and "bleu" not in shown


@pytest.mark.slow
def test_an_average_has_the_scores_of_strings(trained_a_little, seq2seq, tmp_path, monkeypatch):
    run = trained_a_little("classification", **{"training.save_every": 1})
    monkeypatch.chdir(ROOT)  # where its validation text is
    result = seq2seq("average", run, "--last", 2, "--output", tmp_path / "average.safetensors").ok()
    assert "symbol_error_rate" in result.stdout
    assert "bleu" not in result.stdout and "chrf" not in result.stdout


def test_text_of_a_run_is_found_from_another_folder(seq2seq, tmp_path, monkeypatch):
    """Its relative paths start in a folder that the run is in; elsewhere a message names both."""
    (tmp_path / "project" / "text").mkdir(parents=True)
    for name in ("train", "valid"):
        shutil.copy(ROOT / f"data/classification/{name}.tsv", tmp_path / "project" / "text")
    config = yaml.safe_load((ROOT / "configs/classification.yaml").read_text())
    config["data"] = {name: {"pairs": f"text/{name}.tsv"} for name in ("train", "valid")}
    (tmp_path / "project" / "labels.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path / "project")
    sets = [f"--set={key}={value}" for key, value in TINY.items()]
    assert seq2seq("train", "labels.yaml", "--run-dir", "runs/labels", *sets).exit_code == 0
    monkeypatch.chdir(tmp_path)
    result = seq2seq("eval", "project/runs/labels", "--breakdown", "--json")
    assert json.loads(result.stdout)["by_training_frequency"], result.stderr
    assert "has changed since" not in result.stderr
    (tmp_path / "text").mkdir()
    (tmp_path / "text/valid.tsv").write_text(f"{COMMENT}\tpositive\n")
    command = ("eval", "project/runs/labels", "--loss-only")
    again = seq2seq(*command, "--json").ok()  # another text of the same name does not matter
    assert json.loads(again.stdout)["loss"] == json.loads(result.stdout)["loss"]
    assert "has changed since" not in again.stderr
    with (tmp_path / "project/text/valid.tsv").open("a") as file:
        file.write(f"{COMMENT}\tpositive\n")
    changed = "text/valid.tsv has changed since project/runs/labels was trained"
    assert changed in seq2seq(*command).ok().stderr
    shutil.rmtree(tmp_path / "text")
    assert f"project/{changed}" in seq2seq(*command).ok().stderr
    shutil.move(tmp_path / "project/runs/labels", tmp_path / "labels")
    valid = ("--pairs", "project/text/valid.tsv")
    result = seq2seq("eval", "labels", *valid, "--breakdown", "--json")
    assert json.loads(result.stdout)["by_training_frequency"] is None
    assert f"(text/train.tsv) was not found in {tmp_path} or in a folder" in result.stderr
    message = seq2seq("eval", "labels").error()
    assert f"(text/valid.tsv) was not found in {tmp_path} or in a folder" in message


def test_perplexity_of_continuations(stories, seq2seq):
    pairs = ROOT / "data/continuation/valid.tsv"
    found = json.loads(seq2seq("eval", stories, "--pairs", pairs, "--loss-only", "--json").stdout)
    lines = pairs.read_text().splitlines()
    assert found["num_tokens"] == sum(len(line.split("\t")[1].split()) + 1 for line in lines)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))


def test_sampled_continuations_differ_and_keep_their_prefix(stories, seq2seq):
    options = ("--sampling", "--n-best", 3, "--prefix", "Tom gave ", "--format", "tsv")
    lines = seq2seq("translate", stories, *options, BEGINNING).stdout.splitlines()
    written = {line.split("\t")[1] for line in lines}
    assert len(written) == 3
    assert all(text.split()[:2] == ["Tom", "gave"] for text in written)


def test_a_constant_source_makes_a_language_model_of_whole_texts(
    trained_a_little, seq2seq: Command, tmp_path
):
    for name in ("train", "valid"):
        lines = (ROOT / f"data/continuation/{name}.tsv").read_text().splitlines()[:200]
        texts = (line.replace("\t", " ") for line in lines)
        (tmp_path / f"{name}.tsv").write_text("".join(f"<start>\t{text}\n" for text in texts))
    files = {f"data.{name}.pairs": tmp_path / f"{name}.tsv" for name in ("train", "valid")}
    run = trained_a_little("continuation", **files)
    result = seq2seq("translate", run, "--sampling", "--prefix", "Nora had a ", "<start>")
    assert result.stdout.startswith("Nora had a ")
