"""The length of a run: its limits, the learning-rate schedule up to them, and what is logged."""

import json
import re
from pathlib import Path

import pytest
import yaml
from bare_runs import stop_at
from commands import Command, last_checkpoint
from number_task import numbers_config, write_config

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.training.loop import train


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    """A config of 28 updates per epoch; tests set the length of the run and its warm-up."""
    folder = tmp_path_factory.mktemp("numbers")
    settings = numbers_config(folder, 3_000, log_every=1, device="cpu")
    settings["model"] = {"d_model": 16, "heads": 2, "layers": 1, "d_ff": 16}
    settings["validation"] = {"every": 10, "unit": "steps", "decode": False}
    for name in ("max_steps", "warmup_steps"):
        del settings["training"][name]
    return write_config(folder, settings)


def options(**training: object) -> list[str]:
    return [
        part for name, value in training.items() for part in ("--set", f"training.{name}={value}")
    ]


def points(run: Path, name: str) -> dict[int, float]:
    """By step."""
    found = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {point["step"]: point[name] for point in found if name in point}


@pytest.mark.parametrize("schedule", ["linear", "inverse_sqrt"])
def test_auto_warmup_is_a_tenth_of_a_short_run(config, seq2seq: Command, tmp_path, schedule):
    """It also holds if max_epochs ends the run before the default of 1,000 updates."""
    run = tmp_path / "run"
    given = options(max_epochs=2, schedule=schedule, lr=1e-2)
    result = seq2seq("train", config, "--run-dir", run, *given)
    assert result.exit_code == 0, result.stderr
    assert "56 updates (max_epochs), 2.0 epochs" in result.stderr
    assert "after 5 updates of warm-up" in result.stderr
    assert "finished after 56 updates (training.max_epochs reached)" in result.stderr
    rates = points(run, "train/lr")
    assert min(rates.values()) > 0
    assert max(rates.values()) == rates[5] == 1e-2
    losses = points(run, "valid/loss")
    assert losses[56] < losses[10]
    epochs = points(run, "train/epoch")  # those of the updates, not of what comes next
    assert [epochs[step] for step in (1, 28, 29, 56)] == [1, 1, 2, 2]
    assert yaml.safe_load((run / "config.yaml").read_text())["training"]["warmup_steps"] == 5
    again = seq2seq("train", config, "--run-dir", run, *given)
    assert "finished after 56 updates (training.max_epochs reached)" in again.stderr
    lowered = seq2seq(
        "train", config, "--run-dir", run, *options(max_epochs=1, schedule=schedule, lr=1e-2)
    )
    assert "finished after 56 updates" in lowered.stderr
    assert max(points(run, "train/loss")) == 56


def test_last_model_of_a_run_that_is_ended_by_a_new_limit_is_validated(
    config, seq2seq: Command, tmp_path
):
    """The run was left between two validations, and ends where it was left."""
    run, given = tmp_path / "run", options(warmup_steps=1, max_steps=40)
    train(load_config(config, given[1::2]), run, hooks=stop_at(3))
    assert not (run / "model.safetensors").exists()
    command = ("train", config, "--run-dir", run, *options(warmup_steps=1, max_steps=3))
    for _ in range(2):
        ended = seq2seq(*command)
        assert ended.exit_code == 0, ended.stderr
        assert "finished after 3 updates (training.max_steps reached)" in ended.stderr
        assert list(points(run, "valid/loss")) == [3]
        assert (run / "model.safetensors").is_file()


@pytest.mark.parametrize("command", ["check", "train"])
@pytest.mark.parametrize("warmup_steps", [57, 58, 1_000])
def test_warmup_longer_than_the_run_is_rejected(
    config, seq2seq: Command, tmp_path, command, warmup_steps
):
    given = options(max_epochs=2, warmup_steps=warmup_steps, schedule="linear")
    where = ("--run-dir", tmp_path / "run") if command == "train" else ()
    result = seq2seq(command, config, *where, *given)
    assert result.exit_code == 2
    ends = "training.max_epochs 2 ends the run after 56 updates, before the peak rate is reached"
    assert f"training.warmup_steps {warmup_steps:,}: {ends}" in result.stderr
    assert not (tmp_path / "run").exists()
    by_steps = options(max_steps=56, warmup_steps=warmup_steps)
    assert "exceed max_steps 56" in seq2seq(command, config, *where, *by_steps).stderr


def test_warmup_may_last_the_whole_run(config, seq2seq: Command, tmp_path):
    given = options(max_epochs=1, max_steps=100, warmup_steps=28)
    assert seq2seq("train", config, "--run-dir", tmp_path / "run", *given).exit_code == 0
    rates = points(tmp_path / "run", "train/lr")
    assert (len(rates), rates[28]) == (28, max(rates.values()))


@pytest.mark.slow
def test_extended_run_keeps_its_auto_warmup(config, seq2seq: Command, tmp_path):
    train = ("train", config, "--run-dir", tmp_path / "run")
    assert seq2seq(*train, *options(max_epochs=1)).exit_code == 0
    assert seq2seq(*train, *options(max_epochs=3)).exit_code == 0
    result = seq2seq(*train, *options(max_steps=90))
    assert "90 updates (max_steps)" in result.stderr
    assert "after 2 updates of warm-up" in result.stderr
    rates = points(tmp_path / "run", "train/lr")
    assert list(rates) == list(range(1, 91))
    assert rates[2] == max(rates.values())


def test_max_hours_ends_a_run_and_can_be_raised(config, seq2seq: Command, tmp_path):
    train = ("train", config, "--run-dir", tmp_path / "run")
    result = seq2seq(*train, *options(max_steps=40, max_hours=1e-9))
    assert result.exit_code == 0
    assert "40 updates (max_steps) or 1e-09 hours" in result.stderr
    assert "finished after 1 updates (training.max_hours reached)" in result.stderr
    assert list(points(tmp_path / "run", "valid/loss")) == [1]
    assert (tmp_path / "run/model.safetensors").is_file()
    again = seq2seq(*train, *options(max_steps=40, max_hours=1e-9))
    assert "finished after 1 updates (training.max_hours reached)" in again.stderr
    assert list(points(tmp_path / "run", "train/loss")) == [1]
    result = seq2seq(*train, *options(max_steps=40, max_hours=24))
    assert "finished after 40 updates (training.max_steps reached)" in result.stderr
    assert list(points(tmp_path / "run", "train/loss")) == list(range(1, 41))


def test_max_hours_counts_all_starts_of_a_run(config, seq2seq: Command, tmp_path):
    """Restarting a run does not reset its time."""
    train = ("train", config, "--run-dir", tmp_path / "run")
    assert seq2seq(*train, *options(max_steps=20)).exit_code == 0
    first = json.loads((last_checkpoint(tmp_path / "run") / "state.json").read_text())["seconds"]
    assert first > 0
    assert seq2seq(*train, *options(max_steps=25)).exit_code == 0
    both = json.loads((last_checkpoint(tmp_path / "run") / "state.json").read_text())["seconds"]
    assert both > first
    given = options(max_steps=1_000, max_hours=both / 3_600)
    assert "finished after 25 updates (training.max_hours" in seq2seq(*train, *given).stderr


def test_max_hours_stops_all_processes(config, seq2seq: Command, tmp_path):
    given = options(max_steps=40, max_hours=1e-9, processes=2)
    result = seq2seq("train", config, "--run-dir", tmp_path / "run", *given)
    assert result.exit_code == 0, result.stderr
    logged = (tmp_path / "run/train.log").read_text()
    assert "finished after 1 updates (training.max_hours reached)" in logged


def test_check_names_the_limit_that_ends_the_run(config, seq2seq: Command):
    result = seq2seq("check", config, "--json", *options(max_epochs=2))
    training = json.loads(result.stdout)["run"]["training"]
    assert (training["updates"], training["limited_by"]) == (56, "max_epochs")
    assert training["warmup_updates"] == 5
    page = seq2seq("check", config, *options(max_epochs=2, max_steps=30)).stdout
    assert re.search(r"^training +30 updates \(max_steps\)", page, re.MULTILINE)
