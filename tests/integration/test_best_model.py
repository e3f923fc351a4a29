"""The best model: its metric, the tie-break, and how long it is kept."""

import json
from pathlib import Path

import pytest
import yaml
from bare_runs import stop_at
from commands import Command, last_checkpoint, logged_points
from number_task import number_pairs, numbers_config, write_config, write_pairs

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.metrics.metrics import share_with_4_grams
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.loop import train


def config_of(folder: Path, **validation: object) -> dict:
    settings = numbers_config(folder, max_steps=40, warmup_steps=10, lr=1e-3, device="cpu")
    settings["model"] = {"d_model": 32, "heads": 2, "layers": 1, "d_ff": 32, "dropout": 0.0}
    settings["validation"] = {"every": 10, "unit": "steps"} | validation
    return settings


@pytest.fixture(scope="module")
def worded(tmp_path_factory) -> Path:
    """A config of text whose targets have four words or more in half of the lines."""
    folder = tmp_path_factory.mktemp("worded")
    return write_config(folder, config_of(folder))


@pytest.fixture(scope="module")
def unspaced(tmp_path_factory) -> Path:
    """A config of text whose targets have no spaces, as in Chinese: `threeonefour`."""
    folder = tmp_path_factory.mktemp("unspaced")
    settings = config_of(folder)
    for name, count, seed in (("train", 3_000, 1), ("valid", 60, 2)):
        pairs = [(src, tgt.replace(" ", "")) for src, tgt in number_pairs(count, seed)]
        settings["data"][name] = write_pairs(folder, name, pairs)
    settings["tokenizer"] = {"kind": "char", "shared": False}
    return write_config(folder, settings)


def options(**validation: object) -> list[str]:
    return [
        part for n, value in validation.items() for part in ("--set", f"validation.{n}={value}")
    ]


def validations(run: Path) -> dict[int, dict[str, float]]:
    """By step."""
    points = logged_points(run)
    return {point["step"]: point for point in points if "valid/loss" in point}


def best_step(run: Path) -> int:
    state = json.loads((last_checkpoint(run) / "state.json").read_text())
    return int(state["best_models"][0][0])


def metric_of(run: Path) -> str:
    return str(yaml.safe_load((run / "config.yaml").read_text())["validation"]["metric"])


@pytest.mark.slow
def test_equal_scores_are_ranked_by_validation_loss(worded, seq2seq: Command, tmp_path):
    """No translation is right yet but the loss falls, so early stopping does not trigger."""
    run = tmp_path / "run"
    given = options(metric="exact_match", patience=1)
    result = seq2seq("train", worded, "--run-dir", run, *given).ok()
    found = validations(run)
    assert list(found) == [10, 20, 30, 40]
    assert {point["valid/exact_match"] for point in found.values()} == {0.0}
    losses = {step: point["valid/loss"] for step, point in found.items()}
    assert best_step(run) == min(losses, key=losses.__getitem__) == 40
    assert (
        f"of step 40, with validation exact_match 0.000 and loss {losses[40]:.3f}" in result.stderr
    )


@pytest.mark.slow
def test_auto_metric_depends_on_the_references(worded, unspaced, seq2seq: Command, tmp_path):
    for config, given, metric in (
        (worded, (), "bleu"),
        (unspaced, (), "chrf"),
        (unspaced, ("--set", "validation.bleu_tokenize=char"), "bleu"),
        (unspaced, ("--set", "validation.decode=false"), "loss"),
    ):
        found = json.loads(seq2seq("check", config, "--json", *given).stdout)
        assert found["run"]["validation"]["metric"] == metric
    run = tmp_path / "run"
    result = seq2seq("train", unspaced, "--run-dir", run).ok()
    assert "chrf: only 0.0% of the references have the four words" in result.stderr
    assert metric_of(run) == "chrf"
    scores = {step: point["valid/chrf"] for step, point in validations(run).items()}
    assert scores[best_step(run)] == max(scores.values())


@pytest.mark.parametrize("command", ["check", "train"])
def test_bleu_is_rejected_without_4_grams_in_the_references(
    unspaced, seq2seq: Command, tmp_path, command
):
    where = ("--run-dir", tmp_path / "run") if command == "train" else ()
    message = seq2seq(command, unspaced, *where, *options(metric="bleu")).error()
    assert "validation.metric bleu cannot tell models apart on this text" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_resumed_run_keeps_its_auto_metric(unspaced, seq2seq: Command, tmp_path):
    train = ("train", unspaced, "--run-dir", tmp_path, "--set", "training.max_steps=10")
    assert seq2seq(*train).exit_code == 0
    longer = (*train, "--set", "training.max_steps=12")
    assert seq2seq(*longer).exit_code == 0
    refused = seq2seq(*longer, *options(metric="exact_match"))
    assert "validation.metric: chrf in the run, exact_match now" in refused.stderr
    refused = seq2seq(*longer, *options(decode="false"))
    assert "validation.metric: chrf in the run, auto now" in refused.stderr
    given = (*longer, "--set", "training.max_steps=14", *options(decode="false"))
    assert seq2seq(*given, "--allow-changed", "validation").exit_code == 0
    assert metric_of(tmp_path) == "loss"


def test_4_grams_are_counted_with_the_bleu_tokenizer():
    lines = ["one two three four", "one two, three", "one two three", "", "一二三四"]
    assert share_with_4_grams(lines, "13a") == 2 / 5
    assert share_with_4_grams(lines, "none") == 1 / 5
    assert share_with_4_grams(lines, "zh") == 3 / 5


@pytest.mark.slow
def test_best_models_are_kept_until_the_next_validation(worded, seq2seq: Command, tmp_path):
    """New validation text invalidates their scores, but the models stay."""
    settings = yaml.safe_load(worded.read_text())
    settings["validation"] |= {"metric": "loss", "decode": False, "keep_best": 2}
    config, run = write_config(tmp_path, settings), tmp_path / "run"
    assert seq2seq("train", config, "--run-dir", run).exit_code == 0
    kept = list(RunFolder(run).all_best_models())
    assert kept == [40, 30]
    settings["data"]["valid"] = write_pairs(tmp_path, "other", number_pairs(50, seed=7))
    settings["validation"]["every"] = 45
    settings["training"] |= {"max_steps": 44, "save_every": 1}
    config = write_config(tmp_path, settings)
    given = ("train", config, "--run-dir", run, "--allow-changed", "data.valid")
    train(load_config(config), run, allow_changed=["data.valid"], hooks=stop_at(42))
    assert list(RunFolder(run).all_best_models()) == kept
    assert seq2seq("translate", run, "--model", "30", "1 2").exit_code == 0
    assert seq2seq(*given).exit_code == 0
    assert list(RunFolder(run).all_best_models()) == [44]
