"""Searches: what is tried, pruned and written, and that no interruption changes any of it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from commands import ROOT, Command, logged_points
from number_task import FAST, numbers_config, write_config

from seq2seq_cli.commands.diff import differing_results
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.tune.results import evidence
from seq2seq_cli.extras.tune.space import DEFAULTS, Option, own_values, search_space
from seq2seq_cli.extras.tune.study import StopTrial, Study, Trial

pytest.importorskip("optuna")
from seq2seq_cli.extras.tune.tuning import open_study, propose, train_trial

ONE = ("--set", "training.processes=1", "--device", "cpu")
SEARCH = ("--search", "training.lr=0.01,0.02,0.03,0.04,0.05")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    options = numbers_config(folder, 200, **FAST, max_steps=15, save_every=50)
    options["model"] |= {"d_model": 16, "d_ff": 16, "dropout": 0.1}
    options["validation"]["every"] = 5
    return write_config(folder, options)


@pytest.fixture(scope="module")
def searched(config: Path, seq2seq: Command) -> Path:
    """A search without interruptions, which has tried everything."""
    folder = config.parent / "searched"
    result = tuned(seq2seq, config, folder)
    assert "all combinations were tried" in result
    return folder


def command(config: Path, folder: Path, hours: float = 1) -> tuple[object, ...]:
    return ("tune", config, "--hours", hours, "--output", folder, *ONE, *SEARCH)


def tuned(seq2seq: Command, config: Path, folder: Path) -> str:
    return seq2seq(*command(config, folder)).ok().stderr


def trials_of(folder: Path) -> list[dict[str, Any]]:
    """The record of all trials without their times."""
    trials = json.loads((folder / "trials.json").read_text())["trials"]
    return [{key: trial[key] for key in trial if key != "seconds"} for trial in trials]


def test_every_value_is_tried_in_a_run(config, searched, seq2seq, tmp_path):
    first, *others = trials_of(searched)
    assert first["values"] == {"training.lr": "0.02"}
    rates = {trial["values"]["training.lr"] for trial in (first, *others)}
    assert len(rates) == 1 + len(others) == 5
    for trial in (first, *others):
        run = searched / f"trials/{trial['number']}"
        assert load_config(run / "config.yaml").training.lr == float(trial["values"]["training.lr"])
        assert (trial["state"], trial["updates"]) == ("finished", 15)
    alone = ("train", config, "--run-dir", tmp_path / "run", *ONE)
    assert seq2seq(*alone).exit_code == 0
    assert differing_results(tmp_path / "run", searched / "trials/1") == []


def test_the_best_config_trains_the_best_trial_again(searched, seq2seq, tmp_path):
    best = min((t for t in trials_of(searched) if t["score"]), key=lambda trial: trial["score"])
    written = (searched / "best.yaml").read_text()
    lr = best["values"]["training.lr"]
    (line,) = (line for line in written.splitlines() if line.startswith("  lr:"))
    assert line.startswith(f"  lr: {lr}")
    assert f"{best['score']:.3f} with {lr}" in written
    seq2seq("train", searched / "best.yaml", "--run-dir", tmp_path / "run").ok()
    assert differing_results(tmp_path / "run", searched / f"trials/{best['number']}") == []


def test_table_and_json(config, searched, seq2seq):
    again = seq2seq(*command(config, searched, 0))
    rows = [line.split() for line in again.stdout.splitlines()[:-1]]
    assert rows[0] == ["trial", "loss", "state", "updates", "minutes", "lr"]
    scores = [float(row[1]) for row in rows[1:] if row[2] == "finished"]
    assert scores == sorted(scores) and len(scores) == 5
    report = json.loads(seq2seq(*command(config, searched, 0), "--json").stdout)
    assert report["metric"] == "loss"
    assert [t["number"] for t in report["trials"]] == [1, 2, 3, 4, 5]
    assert report["best"] == int(rows[1][0])


@pytest.mark.slow
def test_interruptions_change_nothing(config, searched, seq2seq, tmp_path):
    folder = tmp_path / "searched"
    result = seq2seq(*command(config, folder, 1e-9))  # ends after the first update
    assert "no trial has finished in 1e-09 hours" in result.stderr
    killed_after(["trial 3: training.lr", "step 5  valid"], command(config, folder))
    assert trials_of(folder)[-1]["state"] == "running"
    tuned(seq2seq, config, folder)
    assert trials_of(folder) == trials_of(searched)
    for number in (1, 3):
        run = f"trials/{number}"
        assert differing_results(folder / run, searched / run) == []


def killed_after(starts: list[str], command: tuple[object, ...]) -> None:
    """Run a command until lines with these starts were printed in this order; then kill it."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    call = [sys.executable, "-m", "seq2seq_cli", *map(str, command)]
    process = subprocess.Popen(call, env=environment, stderr=subprocess.PIPE, text=True)
    with process:
        for line in process.stderr:
            if starts and line.startswith(starts[0]):
                del starts[0]
            if not starts:
                process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def with_next_trial(searched: Path, folder: Path, values: dict[str, str]) -> Path:
    """Copy a search to a folder, with a further trial that has just begun."""
    shutil.copytree(searched, folder)
    record = json.loads((folder / "trials.json").read_text())
    record["trials"].append({"number": 6, "values": values})
    (folder / "trials.json").write_text(json.dumps(record))
    return folder


def test_a_bad_trial_is_pruned(config, searched, seq2seq, tmp_path):
    folder = with_next_trial(searched, tmp_path / "searched", {"training.lr": "1.0e-05"})
    assert tuned(seq2seq, config, folder).count("trial 6: pruned with loss") == 1
    *_, pruned = trials_of(folder)
    # It is not judged in its first third, and ends with the update after its second validation.
    assert (pruned["state"], pruned["updates"]) == ("pruned", 11)
    points = logged_points(folder / "trials/6")
    assert pruned["score"] == min(p["valid/loss"] for p in points if "valid/loss" in p)
    assert options_of(folder / "best.yaml") == options_of(searched / "best.yaml")


def test_trials_are_compared_after_the_same_share_of_their_updates(searched, tmp_path):
    folder = with_next_trial(searched, tmp_path / "searched", {"training.lr": "0.06"})
    study = Study.read(folder)
    *finished, running = study.trials

    def log(trial: Trial, losses: dict[int, float]) -> None:
        points = ({"step": step, "valid/loss": loss} for step, loss in losses.items())
        study.run_of(trial).path.mkdir(exist_ok=True)
        study.run_of(trial).metrics.write_text("".join(f"{json.dumps(p)}\n" for p in points))

    for trial in finished:
        log(trial, {5: 3.0, 10: 2.0, 15: 1.0})
    log(finished[0], {20: 3.0, 40: 2.0, 60: 1.0})  # of a quarter of the batch
    log(running, {5: 3.1})
    assert study.should_prune(running, planned=14)
    assert not study.should_prune(running, planned=15)  # in its first third
    log(running, {4: 3.5, 12: 2.9})
    assert study.should_prune(running, planned=15)
    assert not study.should_prune(running, planned=30)  # of smaller batches
    log(running, {6: float("nan")})
    assert study.should_prune(running, planned=15)


@pytest.mark.parametrize(("seconds", "expected"), [(60, False), (-1, True)])
def test_time_is_up_by_a_clock_that_nobody_sets(seconds, expected, tmp_path):
    stop = StopTrial(tmp_path, 1, time.monotonic() + seconds)
    assert stop(SimpleNamespace(validated_step=0)) == expected


def test_the_config_itself_may_have_no_score(config, searched, seq2seq, tmp_path):
    folder = shutil.copytree(searched, tmp_path / "searched")
    record = json.loads((folder / "trials.json").read_text())
    record["trials"][0] |= {"state": "failed", "score": None}
    (folder / "trials.json").write_text(json.dumps(record))
    tuned(seq2seq, config, folder)
    assert "trial 1, the config itself, has none" in " ".join(
        line.removeprefix("# ") for line in (folder / "best.yaml").read_text().splitlines()
    )


def options_of(config: Path) -> dict[str, Any]:
    return load_config(config).model_dump()


def test_a_trial_that_cannot_be_trained_fails_alone(config, searched, seq2seq, tmp_path):
    """In one epoch there is no time for the warm-up."""
    folder = with_next_trial(searched, tmp_path / "searched", {"training.max_epochs": "1"})
    shown = tuned(seq2seq, config, folder)
    *_, failed = trials_of(folder)
    assert (failed["state"], "ends the run after" in failed["reason"]) == ("failed", True)
    assert f"trial 6 failed: {failed['reason']}" in shown
    assert options_of(folder / "best.yaml") == options_of(searched / "best.yaml")


def test_only_values_that_can_be_combined_are_tried_and_once(config, tmp_path):
    options = [Option("model.d_model", ("16", "20")), Option("model.heads", ("2", "4", "8"))]
    shutil.copy(config, tmp_path / "base.yaml")
    study = Study(tmp_path, options)
    while (trial := propose(study)) is not None:
        study.trials.append(trial)
        trial.state = "failed"
    tried = [(*trial.values.values(),) for trial in study.trials]
    assert sorted(tried) == [("16", "2"), ("16", "4"), ("16", "8"), ("20", "2"), ("20", "4")]


def test_trials_keep_the_values_of_a_preset(config, seq2seq, tmp_path):
    """A preset sets neither optimizer nor schedule if a config sets the rate."""
    options = yaml.safe_load(config.read_text())
    del options["model"], options["training"]
    small = write_config(tmp_path, options)
    result = seq2seq("tune", small, "--hours", 0, "--output", tmp_path / "out", *ONE)
    assert result.exit_code == 2
    base = load_config(tmp_path / "out/base.yaml", ["training.lr=0.01"])
    assert (base.training.optimizer, base.training.schedule) == ("muon", "cosine")
    assert (base.model.d_model, base.training.lr) == (128, 0.01)


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (["training.lrr=0.1..0.2"], "unknown option, did you mean training.lr?"),
        (["training.lrr=x0.5..x2"], "unknown option, did you mean training.lr?"),
        (["training.lr"], None),
        (["training.seed"], "write it as section.key=LOW..HIGH or section.key=A,B,C"),
        (["preset=small,medium"], "write it as section.key=LOW..HIGH or section.key=A,B,C"),
        (["training.lr=0.2..0.1"], "0.2 is not lower than 0.1"),
        (["training.lr=0.1..nan"], "is not lower than"),
        (["training.lr=0.1..high"], "'high' is not a number"),
        (["training.lr=0.1"], "give at least two values, or a range"),
        (["training.lr=[,0.1"], "the value is not valid YAML"),
        (["training.optimizer=adamw,mun"], "did you mean muon?"),
        (["model.layers.encoder=1.5..3"], "must be a whole number"),
        (["model.dropout=0..2"], "must be less than 1"),
        (["model.heads=3,4"], "3 heads do not divide d_model 16"),
        (["training.ema_decay=x0.5..x2"], "needs a number to multiply, but the config has null"),
        (["training.lr", "training.lr=0.1,0.2"], "training.lr set the same option"),
        (["model.layers.encoder=1,2", "model.layers=1,2"], "model.layers set the same option"),
        (["validation.metric=bleu,chrf"], "all trials must be scored alike"),
        (["data.direction=forward,reverse"], "all trials must be scored alike"),
        (["tokenizer.normalization=nfkc_cf,identity"], "all trials must be scored alike"),
        (["model.dropout=0..0.4", "training.consistency=x1..x2"], "but the config has null"),
        (["data.on_bad_line=skip,error"], "all trials must be scored alike"),
        (["data.max_length=9..99"], "leave out pairs of more than 8 times as many tokens"),
        (["tokenizer.vocab_size=100,200"], "different vocabularies cannot be compared"),
    ],
)
def test_what_is_searched_is_checked_first(config, seq2seq, tmp_path, search, message):
    given = [part for one in search for part in ("--search", one)]
    ended = seq2seq("tune", config, "--hours", 0, "--output", tmp_path / "out", *ONE, *given)
    assert (message or "no trial has finished in 0 hours") in ended.error()
    assert not (tmp_path / "out/trials").exists()
    assert (tmp_path / "out").exists() == (message is None)


def test_other_text_needs_another_folder(config, searched, seq2seq):
    path = config.parent / "valid.src"
    text = path.read_text()
    path.write_text(text.replace("1", "2", 1))
    try:
        result = seq2seq(*command(config, searched))
    finally:
        path.write_text(text)
    assert "the text has changed since the trials in" in result.error()


def test_text_that_changes_during_a_search_is_refused(config, tmp_path):
    """Before the next trial learns from it."""
    (tmp_path / "out").mkdir()
    study = open_study(tmp_path / "out", load_config(config), SEARCH[1:])
    study.text |= {"valid": "the hash of another text"}
    with pytest.raises(UserError, match="the text has changed since the trials in"):
        train_trial(study, study.trials[0], 60)
    assert not (tmp_path / "out/trials").exists()


@pytest.mark.parametrize("name", ["base.yaml", "best.yaml"])
def test_a_config_of_other_origin_is_not_overwritten(config, seq2seq, tmp_path, name):
    own = shutil.copy(config, tmp_path / name)
    message = seq2seq(*command(own, tmp_path)).error()
    assert f"{name} exists, but trials.json does not: choose another --output" in message
    assert own.read_bytes() == config.read_bytes()


def test_another_search_needs_another_folder(config, searched, seq2seq, tmp_path):
    for options, output, message in (
        (("--search", "training.seed=1,2"), searched, "trials of another config or of other"),
        (("--set", "training.seed=2"), searched, "trials of another config or of other"),
        ((), searched / "trials/1", "is a run already: choose another --output"),
        (("--set", "data.valid=null"), tmp_path / "out", "tune needs data.valid"),
    ):
        result = seq2seq(*command(config, output), *options)
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
    damaged = shutil.copytree(searched, tmp_path / "damaged")
    for record in ('{"trials": 3}', '{"options": [], "trials": []}'):
        (damaged / "trials.json").write_text(record)
        result = seq2seq(*command(config, damaged))
        assert (result.exit_code, "is not a record of trials" in result.stderr) == (2, True)


def test_the_config_itself_must_be_trainable(config, seq2seq, tmp_path):
    mistake = ("--set", "training.max_epochs=1")
    result = seq2seq(*command(config, tmp_path / "out"), *mistake)
    assert (result.exit_code, "ends the run after" in result.stderr) == (2, True), result.stderr


def test_a_range_has_the_scale_and_the_numbers_of_its_option(config):
    def takes(override: str) -> None:
        load_config(config, [override])

    given = ["training.lr=x0.1..x10", "training.warmup_steps=x0.5..x1.5", "model.dropout=0..0.5"]
    lr, warmup, dropout = search_space(given, load_config(config), takes)
    assert (lr.low, lr.high, lr.is_log, lr.is_whole) == (pytest.approx(2e-3), 0.2, True, False)
    assert warmup == Option("training.warmup_steps", (), 5, 15, is_whole=True)
    assert (dropout.is_log, dropout.is_whole) == (False, False)
    for ends in ("20000..400000", "x1000..x30001", "1234567..1234568"):
        (steps,) = search_space([f"training.max_steps={ends}"], load_config(config), takes)
        assert steps.is_whole, ends
    for option, value, text in ((lr, 0.0123456, "0.0123"), (lr, 0.2, "0.2"), (warmup, 7, "7")):
        assert option.text_of(value) == text
        assert option.value_of(text) == pytest.approx(value, rel=5e-3)
    assert dropout.value_of("0.7") is dropout.value_of("null") is None


def test_a_group_has_the_value_that_all_of_its_options_have(config):
    def takes(override: str) -> None:
        load_config(config, [override])

    loaded = load_config(config, ["model.layers=2", "tokenizer.kind=bpe"])
    given = ["model.layers=x1..x2", "model.layers.encoder=1,2"]
    layers, _ = options = [search_space([one], loaded, takes)[0] for one in given]
    assert (layers.low, layers.high) == (2, 4)
    assert own_values(options, loaded) == {"model.layers": "2", "model.layers.encoder": "2"}
    none = Option("training.subword_sampling", ("null", "0.1"))
    assert own_values([none], loaded) == {"training.subword_sampling": "null"}
    uneven = load_config(config, ["model.layers={encoder: 2, decoder: 1}"])
    assert own_values(options, uneven) == {"model.layers.encoder": "2"}
    with pytest.raises(UserError, match="but the config has several values"):
        search_space(["model.layers=x1..x2"], uneven, takes)


def test_ends_of_thirds_have_no_exponent_without_need(searched):
    study = Study.read(searched)
    for trial in study.trials:
        trial.values = {"training.tokens_per_batch": "600"}
    shown = evidence(Option("training.tokens_per_batch", (), 500, 2_000, is_whole=True), study)
    assert shown == f"500..2000: {study.best.score:.3f} up to 1000"


def test_default_ranges_are_those_that_a_config_takes(config):
    def takes(override: str) -> None:
        load_config(config, [override])

    names = [option.name for option in search_space([], load_config(config), takes)]
    left_out = {*DEFAULTS} - {*names}
    # Half a layer, a vocabulary of words, a warm-up longer than the training
    assert left_out == {
        *("model.layers.decoder", "tokenizer.vocab_size", "training.subword_sampling"),
        "training.warmup_steps",
    }
    with pytest.raises(UserError):
        search_space(["training.subword_sampling"], load_config(config), takes)


def test_the_documents_have_all_default_ranges():
    text = (ROOT / "docs/training.md").read_text()
    for name, (values, reason) in DEFAULTS.items():
        assert f"| `{name}` | `{values}` | {reason} |" in text
    assert "thirteen options" in text and len(DEFAULTS) == 13
