"""A config that leaves options out gets them from the preset for its number of pairs."""

import re
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT
from number_task import write_config

from seq2seq_cli.config.loader import config_yaml, load_config
from seq2seq_cli.config.presets import PRESETS, as_tree, warn_of_defaults, with_preset
from seq2seq_cli.config.schema import Config, TrainingConfig
from seq2seq_cli.errors import UserError

DATA = {"train": {"src": "a", "tgt": "b"}}


def config(**sections: Any) -> Config:
    return Config.model_validate({"data": DATA, **sections})


@pytest.mark.parametrize(("pairs", "name"), [(10, "small"), (100_000, "medium"), (10**7, "large")])
def test_smallest_config_is_the_preset_for_its_pairs(pairs, name):
    found = with_preset(config(), pairs)
    assert found == config(**as_tree(PRESETS[name].choices), preset=name)
    assert with_preset(config(preset=name), 1).model == found.model


def test_config_of_a_preset_is_that_preset():
    """The files of configs/ say the same as a config that leaves everything out."""
    for name, preset in PRESETS.items():
        written = load_config(ROOT / "configs" / f"{name}.yaml")
        pairs = max(1, preset.fewest_pairs)
        left_out = with_preset(config(), pairs)
        for section in ("model", "training", "validation"):
            assert getattr(written, section) == getattr(left_out, section)


def test_the_example_of_real_text_trains_what_a_config_of_its_paths_does():
    """So its score is the score of a config that names two pairs of files and nothing else."""
    written = load_config(ROOT / "configs/multi30k_en_de.yaml")
    left_out = with_preset(config(), 29_000)
    for section in ("tokenizer", "model", "training"):
        assert getattr(written, section) == getattr(left_out, section)


def test_options_that_do_not_go_together_with_the_preset_are_refused():
    for name, reason in (("small", "rotary needs heads of an even size"), ("large", "8 heads")):
        given = config(preset=name, model={"d_model": 100})
        with pytest.raises(UserError, match=f"model cannot be combined with preset {name}: .*"):
            with_preset(given, 10)
        with pytest.raises(UserError, match=reason):
            with_preset(given, 10)


def test_one_depth_leaves_the_other_to_the_preset():
    whole = with_preset(config(preset="large"), 10).model.layers
    found = with_preset(config(preset="large", model={"layers": {"encoder": 12}}), 10).model.layers
    assert (found.encoder, found.decoder) == (12, whole.decoder) != (12, 4)


@pytest.mark.parametrize("size", [{"d_model": 64}, {"heads": 2}, {"layers": 1}, {"d_ff": 8}])
def test_config_with_a_size_has_the_defaults(size):
    """The learning rate of a preset suits its size alone."""
    found = with_preset(config(model=size), 10)
    assert found.preset == "none"
    assert found.training == TrainingConfig()


def test_given_options_win():
    found = with_preset(config(model={"dropout": 0.5}, training={"lr": 1e-5}), 10)
    small = with_preset(config(), 10)
    assert (found.preset, found.model.dropout, found.training.lr) == ("small", 0.5, 1e-5)
    assert found.model.d_model == small.model.d_model
    assert found.training.max_steps == small.training.max_steps


@pytest.mark.parametrize(
    "given",
    [{"max_steps": 9}, {"max_epochs": 2}, {"optimizer": "schedule_free_adamw"}, {"lr": 1e-3}],
)
def test_options_that_belong_together_are_not_mixed(given):
    """Such as 500 updates of warm-up with a run of 9."""
    found = with_preset(config(training=given), 10).training
    alone = TrainingConfig(**given)
    length, optimizer = {"max_steps", "max_epochs", "warmup_steps"}, {"optimizer", "lr", "schedule"}
    for some, others in ((length, length), (optimizer, {*optimizer, "weight_decay"})):
        if some & given.keys():
            assert all(getattr(found, name) == getattr(alone, name) for name in others)


def test_weight_decay_alone_leaves_the_optimizer_of_the_preset():
    found = with_preset(config(training={"weight_decay": 0.05}), 10).training
    assert (found.optimizer, found.weight_decay) == ("muon", 0.05)


def test_config_of_a_run_is_complete(tmp_path):
    """So that later versions of a preset change no run that has begun."""
    found = with_preset(config(), 10)
    (tmp_path / "config.yaml").write_text(config_yaml(found), encoding="utf-8")
    assert with_preset(load_config(tmp_path / "config.yaml"), 10**7) == found


def test_a_run_keeps_its_values_when_its_preset_changes():
    """But for those that may change in a run, such as its length."""
    now = with_preset(config(), 10)
    begun = now.updated(model={"d_model": 64}, training={"optimizer": "adamw", "max_steps": 9})
    found = with_preset(config(preset="small", training={"seed": 7}), 0, begun)
    assert (found.model, found.training.optimizer, found.training.seed) == (begun.model, "adamw", 7)
    assert found.training.max_steps == now.training.max_steps
    assert with_preset(config(preset="medium"), 0, begun).model.d_model != 64


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A config of text alone."""
    for side in ("src", "tgt"):
        (tmp_path / side).write_text("one two three\n" * 20)
    data = {"train": {side: str(tmp_path / side) for side in ("src", "tgt")}}
    return write_config(tmp_path, {"data": data, "tokenizer": {"kind": "word"}})


@pytest.mark.slow
def test_fine_tuning_has_the_model_of_the_first_run_and_defaults_of_its_own(
    tiny, tmp_path, seq2seq
):
    """A config of text alone has the same model, whatever number of pairs the new text has."""
    train = ("train", tiny, "--set", "training.max_steps=1")
    seq2seq(*train, "--run-dir", tmp_path / "first", "--set", "preset=medium").ok()
    tuned = seq2seq(*train, "--run-dir", tmp_path / "tuned", "--from", tmp_path / "first").ok()
    ours, theirs = (load_config(tmp_path / name / "config.yaml") for name in ("tuned", "first"))
    assert (ours.preset, ours.model) == ("fine_tuning", theirs.model)
    assert (ours.training.optimizer, ours.training.lr) == ("adamw", 1e-4)
    (listed,) = re.findall("of fine-tuning, where the config gives none: (.*)", tuned.stderr)
    assert listed.startswith("training.optimizer adamw"), "max_steps replaces max_epochs"
    seq2seq(*train[:2], "--run-dir", tmp_path / "tuned", "--set", "training.max_steps=2").ok()
    other = ("--run-dir", tmp_path / "other", "--from", tmp_path / "first")
    other += ("--set", "model.d_model=128")
    assert "its model.d_model is 192, this config's 128" in seq2seq(*train, *other).stderr


def test_run_resumes_with_its_preset(tiny, tmp_path, seq2seq):
    """Whatever number of pairs another text has; a run that is older than presets has none."""
    train = ("train", tiny, "--run-dir", tmp_path / "run")
    assert seq2seq(*train, "--set", "training.max_steps=1").exit_code == 0
    written = load_config(tmp_path / "run" / "config.yaml")
    assert (written.preset, written.model) == ("small", with_preset(config(), 10).model)
    assert seq2seq(*train, "--set", "training.max_steps=2").exit_code == 0
    message = seq2seq(*train, "--set", "preset=medium").error()
    assert "preset: small in the run, medium now" in message


def test_what_goes_with_a_given_option_is_named(caplog):
    """A learning rate alone leaves optimizer and schedule to the defaults, which surprises."""
    warn_of_defaults(config(training={"lr": 0.01}), 10)
    assert "with training.lr in the config, related options have their defaults" in caplog.text
    for option in ("optimizer=muon", "weight_decay=0.1", "schedule=cosine"):
        assert f" training.{option}" in caplog.text
    caplog.clear()
    warn_of_defaults(config(training={"warmup_steps": 100}), 10)
    assert "also set training.max_steps=3200" in caplog.text
    caplog.clear()
    chosen = {"lr": 0.01, "optimizer": "muon", "schedule": "cosine", "max_steps": 10}
    chosen["weight_decay"] = 0.0
    warn_of_defaults(config(training=chosen), 10)
    warn_of_defaults(config(training={"lr": 0.01}, preset="none"), 10)
    assert not caplog.text
