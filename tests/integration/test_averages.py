"""Averages of weights in whole runs: which model a run ends with, and `seq2seq average`."""

import errno
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
import yaml
from bare_runs import stop_at
from commands import Command, last_checkpoint
from number_task import numbers_config, write_config
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from seq2seq_cli.commands.diff import differing_results
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.errors import Interrupted, UserError
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.checkpoints.checkpoint import read_state
from seq2seq_cli.training.checkpoints.choose_model import find_candidates
from seq2seq_cli.training.loop import train
from seq2seq_cli.training.run import Hooks

STEPS = 20
EMA = ("training.ema_decay=0.8", "training.average_checkpoints=3", "validation.keep_best=2")
SCHEDULE_FREE = (
    "training.optimizer=schedule_free_adamw",
    "training.schedule=constant",
    "training.average_checkpoints=3",
)
KINDS = {"ema": EMA, "schedule_free": SCHEDULE_FREE}


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    """A validation every 8 updates, a checkpoint every 4; the last one alone is kept whole."""
    folder = tmp_path_factory.mktemp("averages")
    settings = numbers_config(
        folder, max_steps=STEPS, warmup_steps=4, save_every=4, keep_last=1, device="cpu"
    )
    settings["model"] = {"d_model": 16, "heads": 2, "layers": 1, "d_ff": 16, "dropout": 0.1}
    settings["training"] |= {"schedule": "inverse_sqrt", "log_every": 4}
    settings["validation"] = {"every": 8, "unit": "steps", "metric": "loss", "decode": False}
    return write_config(folder, settings)


@pytest.fixture(scope="module")
def runs(config, seq2seq: Command) -> dict[str, Path]:
    """A run of each kind that nothing disturbed."""
    for name, given in KINDS.items():
        options = [part for option in given for part in ("--set", option)]
        seq2seq("train", config, "--run-dir", config.parent / name, *options).ok()
    return {name: config.parent / name for name in KINDS}


def candidates(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "candidates.jsonl").read_text().splitlines()]


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path)


def is_mean(run: Path, found: dict[str, torch.Tensor], files: list[str]) -> bool:
    parts = [weights(run / file) for file in files]
    return all(
        torch.equal(found[name], torch.stack([p[name].double() for p in parts]).mean(0).float())
        for name in found
    )


def must_be_equal(run: Path, whole: Path) -> None:
    assert differing_results(run, whole) == []
    assert candidates(run) == candidates(whole)


@pytest.mark.parametrize("kind", KINDS)
def test_run_ends_with_the_best_of_its_models_and_averages(runs, seq2seq: Command, kind):
    run = runs[kind]
    rows = candidates(run)
    names = [row["model"] for row in rows]
    average = "average of 3 checkpoints, steps 12 to 20"
    if kind == "ema":
        assert names == [
            "best and EMA, step 20", "last, step 20", average, "average of the best 2"
        ]  # fmt: skip
        assert rows[-1]["files"] == [f"best/step-{step:08}.safetensors" for step in (20, 16)]
    else:
        assert names == ["best and last, step 20", average]
    assert [row["step"] for row in rows] == [STEPS] * len(rows)
    chosen = [row for row in rows if row["chosen"]]
    assert [row["loss"] for row in chosen] == [min(row["loss"] for row in rows)]
    model = weights(run / "model.safetensors")
    assert is_mean(run, model, chosen[0]["files"])
    scores = json.loads(seq2seq("eval", run, "--json", "--loss-only").stdout)
    assert scores["loss"] == chosen[0]["loss"]
    events = EventAccumulator(str(run))
    events.Reload()
    *_, shown = events.Scalars("best/loss")
    assert (shown.step, shown.value) == (STEPS, pytest.approx(scores["loss"]))
    (table,) = events.Tensors("valid/candidates/text_summary")
    assert table.step == STEPS
    assert average in table.tensor_proto.string_val[0].decode()


def test_checkpoints_that_only_averaging_needs_keep_their_weights(runs, seq2seq: Command):
    """Of step 16 too, whose checkpoint a validation has needed."""
    folder = RunFolder(runs["ema"])
    assert [path.name for path in sorted(folder.checkpoints.iterdir())] == [
        "step-00000012.safetensors", "step-00000016.safetensors", "step-00000020"
    ]  # fmt: skip
    for which in ("12", "16", "20", "last", "ema", str(folder.best_model(16))):
        assert seq2seq("translate", folder.path, "--model", which, "1 2").exit_code == 0
        assert seq2seq("inspect", folder.path, "--model", which).exit_code == 0
    losses = [
        json.loads(seq2seq("eval", folder.path, "--model", name, "--json", "--loss-only").stdout)
        for name in ("last", "ema", "20")
    ]
    assert losses[0]["loss"] != losses[1]["loss"]  # the raw weights, and their EMA
    points = [json.loads(line) for line in folder.metrics_lines()]
    assert losses[1]["loss"] == points[-1]["valid/loss"]  # validated is the EMA
    best = candidates(folder.path)[0]
    assert best["loss"] == losses[1]["loss"] or best["files"] == ["model.safetensors"]


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_run_ends_as_the_undisturbed_one(config, runs, tmp_path, kind):
    """Left between two checkpoints, before a validation, and after its models were compared."""
    given, folder = load_config(config, KINDS[kind]), RunFolder(tmp_path / "run")
    for stop in (3, 16):
        train(given, folder.path, hooks=stop_at(stop))

    def fail(path: Path) -> None:
        if path == folder.candidates:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError, match="Input/output"):
        train(given, folder.path, hooks=Hooks(before_write=fail))
    assert not folder.candidates.exists()
    train(given, folder.path)
    must_be_equal(folder.path, runs[kind])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "message"),
    [(EMA, "stopped while comparing models"), ((), "interrupted when the training had finished")],
)
def test_signal_in_the_last_validation_stops_what_comes_next(
    config, runs, tmp_path, given, message
):
    """The comparison, which the same command repeats; or else the next training of a command."""
    folder = RunFolder(tmp_path / "run")

    asked = []

    def stop(path: Path) -> None:  # after the last update, before its validation
        if path == folder.checkpoint(STEPS) and not asked:
            asked.append(path)
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted, match=message):
        train(load_config(config, given), folder.path, hooks=Hooks(before_write=stop))
    assert not folder.candidates.exists()
    train(load_config(config, given), folder.path)
    if given:
        must_be_equal(folder.path, runs["ema"])


@pytest.mark.slow
def test_extended_run_ends_as_one_that_was_long_from_the_start(config, runs, tmp_path):
    """The model that it ended with before, an average perhaps, is no part of what goes on."""
    run, given = tmp_path / "run", SCHEDULE_FREE
    train(load_config(config, [*given, "training.max_steps=16"]), run)
    assert candidates(run)[0]["step"] == 16
    train(load_config(config, given), run)
    must_be_equal(run, runs["schedule_free"])


def test_crash_between_the_two_parts_of_a_checkpoint_that_is_removed(config, runs, tmp_path):
    """Its weights are alone already; the rest of it is still there."""
    run = shutil.copytree(runs["ema"], tmp_path / "run")
    (run / "candidates.jsonl").unlink()
    left = shutil.copytree(last_checkpoint(run), run / "checkpoints/step-00000016")
    (left / "weights.safetensors").unlink()
    train(load_config(config, EMA), run)
    assert candidates(run) == candidates(runs["ema"])


def test_extended_run_reports_no_average_of_its_earlier_end(config, runs, tmp_path, caplog):
    run = shutil.copytree(runs["schedule_free"], tmp_path / "run")
    caplog.set_level("INFO")
    train(load_config(config, [*SCHEDULE_FREE[:2], "training.max_steps=24"]), run)
    assert "model.safetensors is the best, of step 24, with validation loss" in caplog.text
    assert not (run / "candidates.jsonl").exists()


def test_finished_run_names_the_average_that_a_command_has_installed(
    config, runs, seq2seq: Command, tmp_path, caplog
):
    run = shutil.copytree(runs["schedule_free"], tmp_path / "run")
    settings = load_config(
        config, [*SCHEDULE_FREE[:2], "training.max_steps=24", "training.keep_last=2"]
    )
    train(settings, run)
    assert seq2seq("average", run, "--last", 2, "--force").exit_code == 0
    caplog.set_level("INFO")
    train(settings, run)
    assert "model.safetensors is the average of 2 checkpoints, steps" in caplog.text


def test_finished_run_compares_again_only_if_candidates_differ(config, runs, seq2seq, tmp_path):
    run = shutil.copytree(runs["ema"], tmp_path / "run")
    command = ("train", config, "--run-dir", run, *(p for o in EMA for p in ("--set", o)))
    again = seq2seq(*command)
    assert "comparing" not in again.stderr
    chosen = next(row for row in candidates(run) if row["chosen"])
    assert f", with validation loss {chosen['loss']:.3f}" in again.stderr
    other = ("--set", "training.average_checkpoints=2")
    assert "comparing 4 models" in seq2seq(*command, *other).stderr


@pytest.mark.parametrize("is_there", [True, False])
def test_another_validation_compares_the_model_so_far_too(config, runs, tmp_path, is_there):
    """Once: where no validation has kept a model, the one that is written then counts as it."""
    run = shutil.copytree(runs["ema"], tmp_path / "run")
    whole = (run / "model.safetensors").read_bytes()
    if not is_there:
        (run / "model.safetensors").unlink()
    given = load_config(config, [*EMA, "decoding.repetition_penalty=1.1"])
    train(given, run, allow_changed=["decoding.repetition_penalty"])
    rows = candidates(run)
    assert (rows[0]["model"], rows[0]["chosen"]) == ("model so far", is_there)
    assert [row["chosen"] for row in rows].count(True) == 1
    assert not is_there or (run / "model.safetensors").read_bytes() == whole
    train(given, run)
    assert candidates(run) == rows


def test_damaged_weights_are_left_out_of_the_comparison(config, runs, tmp_path, caplog):
    run = shutil.copytree(runs["ema"], tmp_path / "run")
    (run / "candidates.jsonl").unlink()
    (run / "checkpoints/step-00000012.safetensors").write_bytes(b"damaged")
    train(load_config(config, EMA), run)
    assert "steps 12 to 20 is left out" in caplog.text
    row = candidates(run)[2]
    assert row["model"].startswith("average of 3") and "loss" not in row and not row["chosen"]


@pytest.mark.parametrize("lost", [None, "checkpoints/step-00000016", "best/step-00000016"])
def test_missing_weights_are_named(config, runs, tmp_path, caplog, lost):
    run = shutil.copytree(runs["ema"], tmp_path / "run")
    (run / "candidates.jsonl").unlink()
    if lost is not None:
        (run / f"{lost}.safetensors").unlink()
    train(load_config(config, EMA), run)
    assert ("averages leave out steps whose weights are missing: 16" in caplog.text) is bool(lost)
    assert ("averages leave out" in caplog.text) is bool(lost)


def test_record_names_the_best_model_where_an_average_has_put_it(config, runs, tmp_path):
    """The average is chosen here since the best model is damaged."""
    run = shutil.copytree(runs["schedule_free"], tmp_path / "run")
    shutil.rmtree(run / "best", ignore_errors=True)
    (run / "candidates.jsonl").unlink()
    (run / "model.safetensors").write_bytes(b"damaged")
    train(load_config(config, SCHEDULE_FREE), run)
    best, average = candidates(run)
    assert average["chosen"]
    assert best["files"] == ["best/step-00000020.safetensors"]


def test_without_validation_text_an_average_is_the_model(config, seq2seq: Command, tmp_path):
    options = ["data.valid=null", "training.average_checkpoints=3"]
    options += ["validation.patience=1", "validation.keep_best=3"]
    result = seq2seq(
        "train", config, "--run-dir", tmp_path, *(p for o in options for p in ("--set", o))
    )
    (row,) = candidates(tmp_path)
    assert row["model"] == "average of 3 checkpoints, steps 12 to 20"
    assert f"model.safetensors is the {row['model']}\n" in result.stderr
    without = "no effect without data.valid: validation.keep_best, validation.patience"
    assert without in result.stderr
    assert is_mean(tmp_path, weights(tmp_path / "model.safetensors"), row["files"])
    refused = seq2seq("average", tmp_path)
    assert "has no validation text to score the average on" in refused.stderr
    state = read_state(last_checkpoint(tmp_path))
    state.has_ema = True
    found = find_candidates(RunFolder(tmp_path), load_config(config, options), state)
    assert [candidate.name for candidate in found] == ["EMA, step 20", row["model"]]


def test_ema_may_be_added_later(config, tmp_path, caplog):
    """It starts from the weights of the checkpoint. If it is lost, that is damaged."""
    run, given = tmp_path / "run", load_config(config, EMA[:1])
    train(load_config(config), run, hooks=stop_at(5))
    caplog.set_level("INFO")
    train(given, run, allow_changed=["training.ema_decay"], hooks=stop_at(6))
    assert "the EMA of the weights starts at step 5" in caplog.text
    (last_checkpoint(run) / "ema.safetensors").unlink()
    with pytest.raises(UserError, match=r"ema.safetensors is missing"):
        train(given, run)


def test_an_ema_added_before_a_pending_validation_leaves_its_checkpoint_whole(config, tmp_path):
    """The validation is recorded in a checkpoint that has no EMA."""
    given = [load_config(config, ["training.keep_last=2", *more]) for more in ((), EMA[:1])]
    train(given[0], tmp_path, hooks=stop_at(8))
    before = last_checkpoint(tmp_path)
    assert read_state(before).awaits_validation
    train(given[1], tmp_path, allow_changed=["training.ema_decay"], hooks=stop_at(9))
    assert not read_state(before).awaits_validation
    shutil.rmtree(last_checkpoint(tmp_path))
    train(given[1], tmp_path, hooks=stop_at(10))
    assert not [*tmp_path.rglob("*.damaged*")]
    assert last_checkpoint(tmp_path).name.endswith("10")


@pytest.mark.slow
def test_full_disk_loses_no_weights_to_average(config, runs, tmp_path):
    """Nothing can be written between the 11th and the 14th update, when step 12 is due."""
    steps: list[int] = []

    def before_write(path: Path) -> None:
        if steps and 11 <= steps[-1] <= 14:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    hooks = Hooks(on_step=lambda state: steps.append(state.step), before_write=before_write)
    train(load_config(config, EMA), tmp_path / "run", hooks=hooks)
    must_be_equal(tmp_path / "run", runs["ema"])


def test_average_command_scores_and_installs(runs, seq2seq: Command, tmp_path):
    run = shutil.copytree(runs["ema"], tmp_path / "run")
    model, file = run / "model.safetensors", tmp_path / "average.safetensors"
    before = model.read_bytes()
    result = seq2seq("average", run, "--steps", "16,12,16", "--output", file).ok()
    assert model.read_bytes() == before
    files = [f"checkpoints/step-000000{step}.safetensors" for step in (12, 16)]
    assert is_mean(run, weights(file), files)
    of_file = json.loads(seq2seq("eval", run, "--model", file, "--json", "--loss-only").stdout)
    of_model = json.loads(seq2seq("eval", run, "--json", "--loss-only").stdout)
    assert f"steps 12 to 16  loss {of_file['loss']:.3f}" in result.stdout
    assert of_file["loss"] > of_model["loss"], "earlier weights are worse here"
    result = seq2seq("average", run, "--steps", "12,16")
    assert "stays: the average is not better" in result.stdout
    assert model.read_bytes() == before
    assert "is now the average" in seq2seq("average", run, "--steps", "12,16", "--force").stdout
    assert model.read_bytes() == file.read_bytes()
    result = seq2seq("average", run, "--last", 2)  # better than the one of before
    assert "is now the average of 2 checkpoints, steps 16 to 20" in result.stdout
    assert "average of the best 2" in seq2seq("average", run, "--best", 2).stdout
    assert "average of 3 checkpoints" in seq2seq("average", run).stdout


def test_average_command_works_where_the_text_is_not(runs, seq2seq: Command, tmp_path):
    run = shutil.copytree(runs["ema"], tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"]["valid"]["src"] = "gone.src"
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert "validation text (gone.src and " in seq2seq("average", run).stderr
    other = tmp_path / "x.safetensors"
    other.write_bytes(b"other weights")
    assert "has content: give --force" in seq2seq("average", run, "--output", other).error()
    assert other.read_bytes() == b"other weights"
    for options in (("--output", other, "--force"), ("--force",)):
        result = seq2seq("average", run, "--steps", "12,16", *options)
        assert (result.exit_code, "loss" in result.stdout) == (0, False), result.stderr
    assert (run / "model.safetensors").read_bytes() == other.read_bytes()


def test_average_command_refuses_what_is_not_there(runs, seq2seq: Command, tmp_path):
    run = runs["schedule_free"]
    for given, message in (
        (("--last", 9), "has not kept the weights to average, only steps 12, 16, 20;"),
        (("--best", 2), "only steps 20;"),
        (("--steps", "12,13"), "only steps 12, 16, 20;"),
        (("--steps", "12"), "give two steps or more"),
        (("--steps", "12,012"), "give two steps or more"),
        (("--last", 2, "--best", 2), "give only one of --last, --best and --steps"),
        (("--output", tmp_path / "x"), "ends in .safetensors"),
        (("--output", tmp_path / "no" / "x.safetensors"), "there is no folder"),
        (("--output", run / "model.safetensors", "--force"), "belongs to the run"),
    ):
        assert message in seq2seq("average", run, *given).error()
    result = seq2seq("translate", run, "--model", tmp_path / "no.safetensors", "1 2")
    assert "there is no file of weights" in result.stderr
    result = seq2seq("translate", run, "--model", "~/no.safetensors", "1 2")
    assert f"there is no file of weights {Path.home() / 'no.safetensors'}" in result.stderr


def test_optimizers_do_not_continue_each_other(config, runs, seq2seq: Command):
    given = ("--set", "training.max_steps=24", "--allow-changed", "training")
    message = seq2seq("train", config, "--run-dir", runs["schedule_free"], *given).error()
    assert "schedule_free_adamw cannot become adamw in a run" in message


def test_schedule_free_adamw_takes_no_schedule_and_no_ema(config, seq2seq: Command, tmp_path):
    settings = ("--set", "training.optimizer=schedule_free_adamw")
    result = seq2seq("check", config, *settings, "--set", "training.ema_decay=0.9")
    assert "inverse_sqrt cannot be combined with schedule_free_adamw" in result.stderr
    assert "schedule_free_adamw averages the weights itself" in result.stderr
    result = seq2seq(
        "check", config, "--set", "training.average_checkpoints=2",
        "--set", "training.save_every=null",
    )  # fmt: skip
    assert "averages the checkpoints of training.save_every, which is null" in result.stderr
