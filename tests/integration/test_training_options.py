"""Every option that should change a trained model does."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import last_checkpoint, logged_points
from number_task import numbers_config, write_config
from safetensors.torch import load_file

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.training.loop import train

CHANGES = {
    "data.max_length": 4,
    "model.dropout": 0.3,
    "model.attention_dropout": 0.3,
    "model.activation_dropout": 0.3,
    "model.activation": "gelu",
    "model.embedding_scale": "false",
    "model.heads": 1,
    "model.positions": "rotary",
    "training.seed": 2,
    "training.lr": 0.02,
    "training.schedule": "constant",
    "training.warmup_steps": 3,
    "training.optimizer": "adam",
    "training.weight_decay": 0.3,
    "training.adam_beta1": 0.5,
    "training.adam_beta2": 0.5,
    "training.adam_epsilon": 0.01,
    "training.max_grad_norm": 0.05,
    "training.label_smoothing": 0.3,
    "training.gradient_accumulation": 2,
    "training.tokens_per_batch": 64,
    "training.precision": "bf16",
    "training.freeze": "[encoder]",
}


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("options")
    options: dict[str, Any] = numbers_config(folder, max_steps=4, warmup_steps=2, log_every=1)
    options["training"] |= {"weight_decay": 0.1, "precision": "fp32", "device": "cpu"}
    options["model"] = {"d_model": 16, "heads": 2, "layers": 1, "d_ff": 16, "dropout": 0.1}
    options["model"] |= {"attention_dropout": 0.1, "activation_dropout": 0.1}
    options["validation"]["decode"] = False
    return write_config(folder, options)


def trained_weights(config: Path, run: Path, *overrides: str) -> dict[str, torch.Tensor]:
    train(load_config(config, overrides), run)
    return load_file(last_checkpoint(run) / "weights.safetensors")


@pytest.fixture(scope="module")
def weights(config: Path, tmp_path_factory) -> dict[str, torch.Tensor]:
    return trained_weights(config, tmp_path_factory.mktemp("options") / "run")


def test_training_is_the_same_without_a_change_or_standard_error(
    config, weights, tmp_path, monkeypatch
):
    monkeypatch.setattr("sys.stderr", None)  # as with pythonw, or in a service of Windows
    repeated = trained_weights(config, tmp_path / "run")
    assert all(torch.equal(repeated[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize("option", CHANGES)
def test_option_changes_the_trained_weights(option, config, weights, tmp_path):
    changed = trained_weights(config, tmp_path / "run", f"{option}={CHANGES[option]}")
    assert changed.keys() == weights.keys()
    assert any(not torch.equal(changed[name], weight) for name, weight in weights.items())


def test_logged_metrics_of_an_update(config, tmp_path):
    """Before the model has learned anything, its loss is near that of a uniform guess."""
    trained_weights(config, tmp_path / "run", "training.max_grad_norm=null")
    points = [point for point in logged_points(tmp_path / "run") if "train/loss" in point]
    state = json.loads((last_checkpoint(tmp_path / "run") / "state.json").read_text())
    assert [point["step"] for point in points] == [1, 2, 3, 4]
    for point in points:
        assert 1.5 < point["train/loss"] < 5
        assert 0.1 < point["train/grad_norm"] < 100
        assert point["train/tokens_per_second"] > 300 / state["seconds"]  # of one update alone
    assert len({point["train/grad_norm"] for point in points}) == 4


def test_muon_resumes_exactly(config, tmp_path, seq2seq):
    for run, stops in (("whole", [4]), ("resumed", [2, 4])):
        for stop in stops:
            options = ("--set=training.optimizer=muon", f"--set=training.max_steps={stop}")
            assert seq2seq("train", config, "--run-dir", tmp_path / run, *options).exit_code == 0
    whole, resumed = (last_checkpoint(tmp_path / run) for run in ("whole", "resumed"))
    for name in ("weights", "optimizer"):
        tensors, others = (load_file(path / f"{name}.safetensors") for path in (whole, resumed))
        assert tensors.keys() == others.keys()
        assert all(torch.equal(others[name], tensor) for name, tensor in tensors.items())
    kept = {name.rpartition("/")[2] for name in tensors if name.startswith("encoder.0.")}
    assert kept == {"momentum_buffer", "step", "exp_avg", "exp_avg_sq"}  # of matrices, of vectors


@pytest.mark.parametrize("optimizer", ["muon", "schedule_free_adamw"])
def test_run_is_not_resumed_with_the_state_of_another_optimizer(
    config, tmp_path, seq2seq, optimizer
):
    run_dir = tmp_path / "run"
    options = (f"--set=training.optimizer={optimizer}", "--set=training.schedule=constant")
    assert seq2seq("train", config, "--run-dir", run_dir, *options).exit_code == 0
    before = (last_checkpoint(run_dir), (run_dir / "config.yaml").read_text())
    options = ("--allow-changed=training", "--set=training.max_steps=5")
    result = seq2seq("train", config, "--run-dir", run_dir, *options)
    assert result.exit_code == 2
    message = f"training.optimizer {optimizer} cannot become adamw in a run: only adam and adamw"
    assert message in result.stderr
    assert (last_checkpoint(run_dir), (run_dir / "config.yaml").read_text()) == before


def test_model_with_rotary_positions_resumes_exactly_and_translates(config, tmp_path, seq2seq):
    weights = []
    for run, stops in (("whole", [4]), ("resumed", [2, 4])):
        for stop in stops:
            options = ("--set=model.positions=rotary", f"--set=training.max_steps={stop}")
            assert seq2seq("train", config, "--run-dir", tmp_path / run, *options).exit_code == 0
        weights.append(load_file(last_checkpoint(tmp_path / run) / "weights.safetensors"))
    assert all(torch.equal(weights[1][name], weight) for name, weight in weights[0].items())
    run_dir = tmp_path / "whole"
    translated = seq2seq("translate", run_dir, "1 2 3", "--beam-size=3")
    assert translated.exit_code == 0 and len(translated.stdout.splitlines()) == 1
    assert json.loads(seq2seq("eval", run_dir, "--json").stdout)["num_lines"] == 60
    assert "rotary: computed, not learned" in seq2seq("inspect", run_dir).stdout
    traced = json.loads(seq2seq("inspect", run_dir, "--trace", "1 2 3", "--json").stdout)
    names = [tensor["name"] for tensor in traced["trace"]["tensors"]]
    assert "src_embedding" in names and "src_positions" not in names
