"""Ensembles: members are ordinary runs, and the folder is used as one run."""

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
import yaml
from commands import Command
from launched import signal_and_finish, signal_and_wait
from number_task import FAST, numbers_config, write_config
from seams import signal_after

from seq2seq_cli import Translator
from seq2seq_cli.commands.diff import differing_results
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.errors import Interrupted, UserError
from seq2seq_cli.machine import available_memory
from seq2seq_cli.processes import ProcessDiedError
from seq2seq_cli.training.ensemble import hooks_of_one
from seq2seq_cli.training.parallel.launcher import launch_each

LINES = ("1 2 3", "", "9 0 4 4", "5")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ensemble")
    options = numbers_config(folder, 200, **FAST, max_steps=20, save_every=10)
    options["model"] |= {"d_model": 16, "d_ff": 16, "dropout": 0.1}
    return write_config(folder, options)


@pytest.fixture(scope="module")
def ensemble(config: Path, seq2seq: Command) -> Path:
    run = config.parent / "ensemble"
    trained(seq2seq, config, run, "--ensemble", 2)
    return run


def trained(seq2seq: Command, config: Path, run: Path, *options: object) -> str:
    # It names processes, so that they are forks of one that has made the imports of all tests.
    one = ("--set", "training.processes=1", "--device", "cpu")
    return seq2seq("train", config, "--run-dir", run, *one, *options).ok().stderr


def refused(seq2seq: Command, message: str, *arguments: object) -> None:
    result = seq2seq(*arguments)
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def answered(seq2seq: Command, *arguments: object) -> str:
    return seq2seq(*arguments).ok().stdout


@pytest.mark.slow
def test_members_are_the_runs_of_their_seeds(config, ensemble, seq2seq, tmp_path):
    trained(seq2seq, config, tmp_path / "run", "--set", "training.seed=2")
    assert differing_results(tmp_path / "run", ensemble / "members/2") == []
    assert differing_results(tmp_path / "run", ensemble / "members/1") != []


def test_a_smaller_ensemble_would_lose_members(config, ensemble, seq2seq, tmp_path):
    larger = tmp_path / "larger"
    shutil.copytree(ensemble, larger)
    shutil.copytree(ensemble / "members/2", larger / "members/3")
    (larger / "ensemble.json").write_text('{"members": 3}')
    message = "larger has 3 members already: give --ensemble 3"
    refused(seq2seq, message, "train", config, "--run-dir", larger, "--ensemble", 2)


def test_the_folder_is_used_as_its_members_together(ensemble, seq2seq, numbers, tmp_path):
    first, second = (ensemble / "members" / name for name in "12")
    for search in ((), ("--beam-size", 3, "--format", "tsv", "--log-probs")):
        together = answered(seq2seq, "translate", first, "--ensemble", second, *search, *LINES)
        assert answered(seq2seq, "translate", ensemble, *search, *LINES) == together
    assert (
        Translator.load(ensemble).translate(LINES)
        == answered(seq2seq, "translate", ensemble, *LINES).splitlines()
    )
    text = ("--src", numbers / "test.src", "--ref", numbers / "test.tgt")
    scores = json.loads(answered(seq2seq, "eval", ensemble, *text, "--json"))
    rows = [row.split("\t") for row in answered(seq2seq, "score", ensemble, *text).splitlines()]
    loss = -sum(float(log_prob) for log_prob, *_ in rows)
    assert loss / scores["num_tokens"] == pytest.approx(scores["loss"], abs=1e-3)
    members = [
        json.loads(answered(seq2seq, "eval", one, *text, "--json")) for one in (first, second)
    ]
    assert scores["loss"] < sum(one["loss"] for one in members) / 2


def test_members_may_read_sources_differently(ensemble, tmp_path):
    """The search in C reads them once for all members."""
    first, second = ensemble / "members/1", tmp_path / "second"
    shutil.copytree(ensemble / "members/2", second)
    config = yaml.safe_load((second / "config.yaml").read_text())
    config["model"]["source_eos"] = False
    (second / "config.yaml").write_text(yaml.safe_dump(config))
    inputs = [TranslationInput(line) for line in LINES]
    found = []
    for engine in ("auto", "plain"):
        options = ["decoding.beam_size=3", "decoding.precision=fp32", f"decoding.engine={engine}"]
        members = [Translator.load(run, "cpu", options) for run in (first, second)]
        results = Translator.ensemble(members).search(inputs)
        found.append([(best.text, best.score) for best, *_ in results])
    for (text, score), (other_text, other_score) in zip(*found, strict=True):
        assert text == other_text
        assert score == pytest.approx(other_score, abs=1e-4)


@pytest.mark.slow
def test_an_interrupted_ensemble_is_resumed_and_grows(config, ensemble, seq2seq, tmp_path):
    run = tmp_path / "run"
    member = ("train", config, "--run-dir", run / "members/2", "--set", "training.seed=2")
    with signal_after(5):
        assert seq2seq(*member, "--set", "training.processes=1", "--device", "cpu").exit_code == 130
    refused(seq2seq, "is an ensemble that is not trained yet", "translate", run, "1")
    table = trained(seq2seq, config, run, "--ensemble", 2)
    for name in "12":
        assert differing_results(run / "members" / name, ensemble / "members" / name) == []
    kept = {path: path.stat().st_mtime_ns for path in run.glob("members/*/model.safetensors")}
    third = trained(seq2seq, config, run, "--ensemble", 3)
    assert "member 3" in third and "member 3" not in table
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert len(Translator.load(run).models) == 3


@pytest.mark.slow
def test_the_table_has_the_scores_that_eval_prints(config, ensemble, seq2seq):
    shown = trained(seq2seq, config, ensemble, "--ensemble", 2)
    lines = [line for line in shown.splitlines() if line.startswith(("member ", "ensemble "))]
    rows = dict(line.rsplit(maxsplit=1) for line in lines)
    for name, run in (("ensemble", ensemble), ("member 2", ensemble / "members/2")):
        loss = json.loads(answered(seq2seq, "eval", run, "--json"))["loss"]
        assert float(rows[name]) == pytest.approx(loss, abs=6e-4)


def test_what_needs_one_model_refuses_an_ensemble(config, ensemble, seq2seq, tmp_path):
    by_name = "is an ensemble, but one model is needed: give a member, such as"
    new = ("--run-dir", tmp_path / "new")
    refused(seq2seq, by_name, "average", ensemble, "--last", 2)
    refused(seq2seq, by_name, "train", config, "--from", ensemble, *new)
    refused(seq2seq, by_name, "diff", ensemble, ensemble)
    refused(seq2seq, by_name, "inspect", ensemble)
    refused(seq2seq, by_name, "attend", ensemble, "1", "--output", tmp_path / "attention.html")
    refused(
        seq2seq,
        by_name,
        "export",
        ensemble,
        "--format",
        "marian",
        "--output",
        tmp_path / "exported",
    )
    text = ("--text", ensemble / "members/1/metrics.jsonl")
    refused(seq2seq, by_name, "trim", ensemble, *text, "--output", tmp_path / "trimmed")
    weights = ensemble / "members/1/model.safetensors"
    for command in ("translate", "eval", "compare"):
        given = (*[ensemble] * (1 + (command == "compare")), "--model", weights)
        refused(seq2seq, "belongs to one run, but", command, *given)
    without = "is an ensemble, which train --ensemble continues; choose another --run-dir"
    refused(seq2seq, without, "train", config, "--run-dir", ensemble)
    ordinary = ("--run-dir", ensemble / "members/1", "--ensemble", 2)
    refused(seq2seq, "is a run already: choose another --run-dir", "train", config, *ordinary)
    (tmp_path / "notes.txt").touch()
    taken = ("--run-dir", tmp_path, "--ensemble", 2)
    refused(seq2seq, "it contains notes.txt", "train", config, *taken)


@pytest.mark.parametrize("count", ["0", "true", "1e9", '"2"'])
def test_damaged_records(ensemble, seq2seq, tmp_path, count):
    run = shutil.copytree(ensemble, tmp_path / "run", ignore=shutil.ignore_patterns("members"))
    (run / "ensemble.json").write_text(f'{{"members": {count}}}')
    refused(seq2seq, "it is not the record of an ensemble", "translate", run, "1")


def test_foreign_members_do_not_lead_out_of_the_folder(ensemble, seq2seq, tmp_path):
    run = tmp_path / "run"
    (run / "members").mkdir(parents=True)
    shutil.copy(ensemble / "ensemble.json", run)
    for name in "12":
        (run / "members" / name).symlink_to(ensemble / "members" / name)
    refused(seq2seq, "is a link that leads out of the run folder", "translate", run, "1")


def test_a_member_that_fails_does_not_end_the_others(imports_shared, tmp_path):
    (tmp_path / "works").touch()
    works = {name: partial(Path.unlink, tmp_path / name) for name in ("missing", "works")}
    with pytest.raises(FileNotFoundError):
        launch_each(works, 1)
    assert not (tmp_path / "works").exists()
    with pytest.raises(ProcessDiedError, match="was it out of memory"):
        launch_each({"": partial(signal.raise_signal, signal.SIGKILL)}, 1)


def test_a_process_of_torchrun_starts_no_runs(monkeypatch):
    """It would start a whole ensemble in each of its processes."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "mine")
    with pytest.raises(UserError, match="a launcher such as torchrun is for one run"):
        launch_each({}, 1)


def test_what_fails_is_named(imports_shared, tmp_path, caplog):
    fails = partial(load_config, tmp_path / "missing.yaml")
    with pytest.raises(UserError, match=r"^runs/2: there is no config file"):
        launch_each({"runs/2": fails, "runs/1": partial((tmp_path / "works").touch)}, 1)
    assert "runs/2: there is no config file" in caplog.text  # before the others have ended
    caplog.clear()
    with pytest.raises(UserError, match=r"^runs/2: there is no config file"):
        launch_each({"runs/1": fails, "runs/2": fails}, 1)
    assert [record.getMessage()[:7] for record in caplog.records] == ["runs/1:"]  # each once
    caplog.clear()
    with pytest.raises(UserError, match=r"^there is no config file"):
        launch_each({str(tmp_path): fails}, 1)
    assert not caplog.text


def test_a_signal_ends_the_members_and_starts_no_more(imports_shared, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    first = partial(signal_and_wait, os.getpid(), signal.SIGTERM)
    with pytest.raises(Interrupted) as stop:
        launch_each({"": first, "second": partial((tmp_path / "started").touch)}, 1)
    assert (stop.value.exit_status, signal.getsignal(signal.SIGTERM)) == (143, before)
    assert str(stop.value) == "interrupted; the same command goes on"
    assert not (tmp_path / "started").exists()


def test_a_signal_that_comes_too_late_for_a_member_stops_the_caller(imports_shared):
    """As Ctrl-C while the last trial of `tune` measures its search."""
    with pytest.raises(Interrupted) as stop:
        launch_each({"": partial(signal_and_finish, os.getpid(), signal.SIGTERM)}, 1)
    assert stop.value.exit_status == 143


def test_members_side_by_side_share_the_memory():
    """With `training.tokens_per_batch: auto` none plans with the memory of all."""
    assert hooks_of_one(1_000).available_memory() < available_memory() / 100
