"""Runs that go on: exactly, with changes that were allowed, from damage, and one at a time."""

import errno
import hashlib
import json
import logging
import os
import random
import re
import shutil
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml
from bare_runs import stop_at
from commands import Command, last_checkpoint, logged_points
from growing_files import growing
from number_task import number_pairs, numbers_config, write_config, write_pairs
from safetensors.torch import load_file
from seams import before_forward, signal_after
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from seq2seq_cli.commands.diff import differing_results
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.data.batches import IGNORE_INDEX, Batch
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.tokenizer import PAD_ID
from seq2seq_cli.training.checkpoints.checkpoint import SaveBudget, read_state
from seq2seq_cli.training.checkpoints.manifest import text_hashes
from seq2seq_cli.training.loop import train
from seq2seq_cli.training.losses.cross_entropy import BatchLoss
from seq2seq_cli.training.run import Hooks

STEPS = 24


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    """A validation every 8 updates, a checkpoint every 4, 28 updates an epoch."""
    folder = tmp_path_factory.mktemp("numbers")
    settings = numbers_config(
        folder, 1_000, max_steps=STEPS, warmup_steps=8, log_every=3, save_every=4, device="cpu",
        tokens_per_batch=166,
    )  # fmt: skip
    settings["model"] = {"d_model": 16, "heads": 2, "layers": 1, "d_ff": 16, "dropout": 0.0}
    settings["validation"] = {"every": 8, "unit": "steps", "metric": "loss", "decode": False}
    return write_config(folder, settings)


@pytest.fixture(scope="module")
def whole(config, seq2seq: Command) -> Path:
    """The run that nothing disturbed."""
    run = config.parent / "whole"
    assert seq2seq("train", config, "--run-dir", run).exit_code == 0
    return run


@pytest.mark.slow
def test_run_with_a_number_keeps_it_where_the_config_says_auto(config, seq2seq, tmp_path):
    """Runs that are older than the automatic length limit have numbers."""
    run = begun(config, tmp_path / "run", 5)
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert saved["decoding"]["max_len_factor"] == "auto"
    saved["decoding"] |= {"max_len_factor": 2.0, "max_len_extra": 20}
    (run / "config.yaml").write_text(yaml.safe_dump(saved))
    result = seq2seq("train", config, "--run-dir", run).ok()
    assert f"\ncontinuing {run} from step 5 (start 2)\n" in result.stderr
    kept = yaml.safe_load((run / "config.yaml").read_text())["decoding"]
    assert (kept["max_len_factor"], kept["max_len_extra"]) == (2.0, 20)


def option(name: str, value: object) -> tuple[str, str]:
    return ("--set", f"training.{name}={value}")


def begun(config: Path, run: Path, steps: int) -> Path:
    """A run that was left after so many updates; a new one is trained once for all tests."""
    if run.exists():
        train(load_config(config), run, hooks=stop_at(steps))
        return run
    shared = config.parent / f"{config.stem}-{steps}"
    if not shared.exists():
        train(load_config(config), shared, hooks=stop_at(steps))
    return shutil.copytree(shared, run)


def must_be_equal(run: Path, whole: Path) -> None:
    assert differing_results(run, whole) == []


def points_in_tensorboard(run: Path, name: str) -> list[int]:
    """Their steps."""
    events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    return [event.step for event in events.Scalars(name)]


def must_show_every_point_once(run: Path) -> None:
    assert points_in_tensorboard(run, "train/loss") == list(range(3, STEPS + 1, 3))
    assert points_in_tensorboard(run, "valid/loss") == [8, 16, 24]


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [16, STEPS])
def test_validation_prevented_by_a_stop_runs_first_on_resume(
    config, whole, seq2seq, tmp_path, stop_at
):
    """Its model is in a checkpoint already, which says so."""
    run = begun(config, tmp_path / "run", stop_at)
    assert read_state(last_checkpoint(run)).awaits_validation
    assert points_in_tensorboard(run, "valid/loss") == list(range(8, stop_at, 8))
    assert seq2seq("train", config, "--run-dir", run).exit_code == 0
    must_be_equal(run, whole)
    must_show_every_point_once(run)


@pytest.mark.slow
def test_validation_lost_in_a_crash_runs_again_on_resume(config, whole, seq2seq, tmp_path):
    """It is logged and its model is kept, but the checkpoint does not tell of it yet."""
    run = begun(config, tmp_path / "run", 16)
    checkpoint = shutil.copytree(last_checkpoint(run), tmp_path / "checkpoint")
    begun(config, run, 18)
    assert points_in_tensorboard(run, "valid/loss") == [8, 16]
    for folder in (run / "checkpoints").iterdir():
        shutil.rmtree(folder)
    shutil.copytree(checkpoint, run / "checkpoints/step-00000016")
    assert seq2seq("train", config, "--run-dir", run).exit_code == 0
    must_be_equal(run, whole)
    must_show_every_point_once(run)


def test_without_validation_text_epochs_save_no_checkpoint(config, seq2seq, tmp_path):
    """Of a text of one batch each epoch would, which is every update."""
    run = tmp_path / "run"
    given = ("--set", "data.valid=null", *option("tokens_per_batch", 100_000))
    given = (*given, *option("save_every", 4), *option("keep_last", 100), *option("max_steps", 9))
    given = (*given, "--set", "validation.unit=epochs", "--set", "validation.every=1")
    assert seq2seq("train", config, "--run-dir", run, *given).exit_code == 0
    state = read_state(last_checkpoint(run))
    assert (state.epoch, state.step) == (10, 9)
    assert list(RunFolder(run).all_checkpoints()) == [9, 8, 4, 0]
    last = load_file(last_checkpoint(run) / "weights.safetensors")
    assert all(t.equal(last[n]) for n, t in load_file(run / "model.safetensors").items())


def test_checkpoints_of_keep_every_are_always_written(config, seq2seq, tmp_path):
    """Also between those of `save_every` and of validations."""
    run = tmp_path / "run"
    given = (*option("save_every", "null"), *option("keep_every", 5), *option("keep_last", 1))
    assert seq2seq("train", config, "--run-dir", run, *given).exit_code == 0
    assert list(RunFolder(run).all_checkpoints()) == [24, 20, 15, 10, 5]


@pytest.mark.parametrize("update", [0.01, 0.04, 1.0, 10.0])
def test_checkpoints_before_validations_take_at_most_a_tenth_of_the_time(update):
    """Every update is validated: a checkpoint takes 0.2 s, and 0.07 s what it tells afterwards."""
    now, saving, num_updates, num_saved = [0.0], 0.0, 0, 0
    budget = SaveBudget(lambda: now[0])
    while now[0] < 1_000:
        now[0] += update
        num_updates += 1
        if budget.available:
            num_saved += 1
            for seconds in (0.2, 0.07):
                with budget.spent():
                    now[0] += seconds
                saving += seconds
    assert saving - 0.27 <= 0.1 * now[0]
    assert num_saved == num_updates if update > 2.7 else saving > 0.07 * now[0]


@pytest.mark.parametrize(
    "name",
    [
        "weights.safetensors",
        pytest.param("optimizer.safetensors", marks=pytest.mark.slow),
        pytest.param("state.json", marks=pytest.mark.slow),
    ],
)
def test_resume_skips_a_damaged_checkpoint(config, whole, seq2seq, tmp_path, name):
    original = begun(config, tmp_path / "original", 13)
    generator = random.Random(name)
    for number in range(2):
        run = shutil.copytree(original, tmp_path / str(number))
        path = last_checkpoint(run) / name
        content = bytearray(path.read_bytes())
        place = generator.randrange(len(content))
        if number:
            content[place] ^= 1 << generator.randrange(8)
        else:
            del content[place:]
        path.write_bytes(content)
        result = seq2seq("train", config, "--run-dir", run).ok()
        assert "looking for the checkpoint before it" in result.stderr
        must_be_equal(run, whole)


def test_a_state_of_another_step_is_damage(config, whole, seq2seq, tmp_path):
    run = begun(config, tmp_path / "run", 13)
    newest, *_, oldest = sorted((run / "checkpoints").iterdir(), reverse=True)
    (newest / "state.json").write_bytes((oldest / "state.json").read_bytes())
    assert "it is of step" in seq2seq("train", config, "--run-dir", run).ok().stderr
    must_be_equal(run, whole)


def files_in(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_checkpoint_of_another_version_stops_and_changes_nothing(config, seq2seq, tmp_path):
    run = begun(config, tmp_path / "run", 13)
    path = last_checkpoint(run) / "state.json"
    values = json.loads(path.read_text())
    values["format"] += 1
    del values["sha256"]
    text = json.dumps(values, sort_keys=True)
    values["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(values))
    before = files_in(run)
    message = seq2seq("train", config, "--run-dir", run).error()
    assert f"{path} was written by another version of this program" in message
    assert files_in(run) == before


def test_damage_costs_no_other_checkpoint_and_no_best_model(config, seq2seq, tmp_path):
    """The run goes on before its best model, which a worse one would replace."""
    run, kept = tmp_path / "run", ("training.keep_every=4", "validation.keep_best=2")
    train(load_config(config, kept), run, hooks=stop_at(17))
    for step in (16, 17):
        (RunFolder(run).checkpoint(step) / "weights.safetensors").write_bytes(b"damaged")
    before = files_in(run)
    given = [word for option in kept for word in ("--set", option)]
    result = seq2seq("train", config, "--run-dir", run, *given, *option("max_steps", 13)).ok()
    after = files_in(run)
    assert list(RunFolder(run).all_checkpoints()) == [13, 12, 8, 4]
    for path, content in before.items():
        step = path.parent.name
        if step in ("step-00000016", "step-00000017"):
            assert after[path.parent.with_name(f"{step}.damaged") / path.name] == content
    for path in (run / "model.safetensors", RunFolder(run).best_model(16)):
        assert after[path.with_name(f"{path.stem}.later.safetensors")] == before[path]
    which = ("--model", run / "model.later.safetensors")
    assert seq2seq("translate", run, *which, "1 2").exit_code == 0
    assert "step-00000016 was renamed to step-00000016.damaged" in result.stderr


def test_damaged_checkpoint_does_not_count_for_keep_last(config, seq2seq, tmp_path):
    """It is not one of the two that are kept, when the run has gone on from the one before it."""
    run = begun(config, tmp_path / "run", 13)  # between the steps at which checkpoints are due
    (last_checkpoint(run) / "state.json").write_bytes(b"")
    train(load_config(config), run, hooks=stop_at(16))
    assert list(RunFolder(run).all_checkpoints()) == [16, 12]
    (last_checkpoint(run) / "state.json").write_bytes(b"")
    seq2seq("train", config, "--run-dir", run).ok()


def test_run_folder_is_locked_during_training(config, seq2seq, tmp_path):
    run = tmp_path / "run"
    with RunFolder(run).locked():
        result = seq2seq("train", config, "--run-dir", run)
        assert (result.exit_code, list(run.iterdir())) == (2, [run / "lock"])
        assert f"training in {run} or averaging its checkpoints: wait" in result.stderr
    assert not run.exists()  # it stayed empty
    assert seq2seq("train", config, "--run-dir", run, *option("max_steps", 8)).exit_code == 0


def test_a_trainer_that_is_ending_is_waited_for(tmp_path, caplog):
    run, is_waiting = RunFolder(tmp_path / "run"), threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            is_waiting.set()

    def train_next() -> bool:
        with run.locked(patience=60):
            return run.lock.exists()

    run.path.mkdir()
    handler, logger = Handler(), logging.getLogger("seq2seq_cli.run_folder")
    logger.addHandler(handler)
    with caplog.at_level(logging.INFO, "seq2seq_cli.run_folder"), ThreadPoolExecutor(1) as pool:
        with run.locked():
            following = pool.submit(train_next)
            assert is_waiting.wait(60)
        assert following.result()
    logger.removeHandler(handler)
    assert not run.path.exists()  # it stayed empty


@pytest.mark.parametrize("name", ["data.max_length=300", "decoding.beam_size=2"])
def test_best_score_is_reset_where_validation_means_something_else(config, seq2seq, tmp_path, name):
    run = begun(config, tmp_path / "run", 12)
    given = ("--set", name, "--allow-changed", name.partition("=")[0])
    result = seq2seq("train", config, "--run-dir", run, *given, *option("max_steps", 16)).ok()
    assert "validation changed; the best score so far is reset" in result.stderr


def test_best_score_stays_under_the_former_name_of_the_metric(config, seq2seq, tmp_path):
    settings = yaml.safe_load(config.read_text())
    settings["validation"] |= {"metric": "exact_match_error", "decode": True, "every": 4}
    config, run = write_config(tmp_path, settings), tmp_path / "run"
    train(load_config(config), run, hooks=stop_at(8))
    found, path = load_config(run / "config.yaml"), last_checkpoint(run) / "state.json"
    assert found.valid_text is not None
    parts = (
        *(text_hashes(found)["valid"], found.data.on_bad_line, "wer", True, "13a", False),
        found.decoding.model_dump(mode="json", exclude={"tokens_per_batch", "tag"}),
        json.loads((run / "statistics.json").read_text()),
        *found.valid_text.options,
    )
    state = json.loads(path.read_text())
    del state["sha256"]
    state["scored_by"] = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    content = json.dumps(state, sort_keys=True).encode()
    path.write_text(json.dumps({**state, "sha256": hashlib.sha256(content).hexdigest()}))
    result = seq2seq("train", config, "--run-dir", run, *option("max_steps", 12)).ok()
    assert "from step 8" in result.stderr
    assert "the best score so far is reset" not in result.stderr


def test_training_may_run_in_a_thread(config, tmp_path):
    """Python allows no signal handlers there, and so there are none."""
    run = tmp_path / "run"
    with ThreadPoolExecutor(1) as pool:
        pool.submit(train, load_config(config), run, hooks=stop_at(8)).result()
    assert next(iter(RunFolder(run).all_checkpoints())) == 8


def test_partial_files_of_a_killed_training_are_removed_and_no_others(tmp_path):
    """`translate` may be writing into the folder."""
    run = RunFolder(tmp_path / "run")
    mine = [run.config, run.checkpoints / "step-00000008" / "state.json", run.best_model(8)]
    parts = [path.with_name(f"{path.name}.part") for path in mine]
    others = [run.path / "part-3.part", run.path / "out" / "x.part"]
    for path in (*parts, *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    run.config.touch()
    with run.locked():
        assert [path for path in (*parts, *others) if path.exists()] == others


def test_keep_last_keep_every_and_keep_best(config, seq2seq, tmp_path):
    run = tmp_path / "run"
    kept = (*option("keep_last", 3), *option("keep_every", 8), "--set", "validation.keep_best=2")
    assert seq2seq("train", config, "--run-dir", run, *kept).exit_code == 0
    assert list(RunFolder(run).all_checkpoints()) == [24, 20, 16, 8]
    assert list(RunFolder(run).all_best_models()) == [24, 16]
    best = load_file(run / "model.safetensors")
    assert all(best[n].equal(t) for n, t in load_file(RunFolder(run).best_model(24)).items())
    for which in ("best", "last", "8", "16"):
        assert seq2seq("translate", run, "--model", which, "1 2").exit_code == 0
    of_checkpoint = RunFolder(run).checkpoint(24) / "weights.safetensors"
    assert RunFolder(run).weights("24") == of_checkpoint  # which differ with an EMA
    message = seq2seq("translate", run, "--model", "9", "1 2").error()
    assert "a .safetensors file, or a kept step: 8, 16, 20, 24" in message


def test_changed_options_need_allow_changed_unless_fixed(config, seq2seq, tmp_path):
    run = begun(config, tmp_path / "run", 8)
    train = ("train", config, "--run-dir", run)
    changed = (*option("lr", 0.001), *option("seed", 7))
    message = seq2seq(*train, *changed).error()
    assert "allow it with train --allow-changed OPTION" in message
    assert "training.lr: 0.005 in the run, 0.001 now" in message
    message = seq2seq(*train, *changed, "--allow-changed", "training").error()
    assert "training.lr" not in message
    assert "training.seed: 1 in the run, 7 now; this cannot change in a run" in message
    assert "no such option" in seq2seq(*train, "--allow-changed", "training.rl").stderr
    allowed = (*option("lr", 0.001), "--allow-changed", "training.lr")
    assert seq2seq(*train, *allowed).exit_code == 0
    rates = [point.get("train/lr") for point in logged_points(run)]
    assert max(filter(None, rates[4:])) < 0.0011
    assert seq2seq(*train, *option("lr", 0.001)).exit_code == 0  # now it is the run's own


@pytest.mark.slow
def test_changed_tokens_per_batch_loses_and_repeats_no_pair(config, seq2seq, tmp_path):
    """In the middle of an epoch, twice."""
    base = ("--set", "training.max_epochs=1", *option("max_steps", 100))
    expected, pairs, run = Counter(), Counter(), tmp_path / "run"
    with before_forward(BatchLoss, lambda _, batch: expected.update(pairs_in(batch))):
        assert seq2seq("train", config, "--run-dir", tmp_path / "whole", *base).exit_code == 0
    with before_forward(BatchLoss, lambda _, batch: pairs.update(pairs_in(batch))):
        with signal_after(7):
            assert seq2seq("train", config, "--run-dir", run, *base).exit_code == 130
        for stop_at_step, tokens in ((11, 83), (None, 230)):
            given = (*base, *option("tokens_per_batch", tokens))
            assert seq2seq("train", config, "--run-dir", run, *given).exit_code == 2
            given = (*given, "--allow-changed", "training.tokens_per_batch")
            with signal_after(stop_at_step) if stop_at_step else nullcontext():
                result = seq2seq("train", config, "--run-dir", run, *given)
            assert result.exit_code == (130 if stop_at_step else 0)
            assert "this epoch continues with the pairs not used yet" in result.stderr
    assert pairs == expected
    assert expected.total() == 1_000


def pairs_in(batch: Batch) -> list[tuple[bytes, bytes]]:
    """The pairs of a batch as bytes, without padding."""
    rows = zip(batch.src_BS, batch.labels_BT, strict=True)
    return [
        (src[src != PAD_ID].numpy().tobytes(), tgt[tgt != IGNORE_INDEX].numpy().tobytes())
        for src, tgt in rows
    ]


@pytest.mark.parametrize(
    "change",
    [
        ("training.tokens_per_batch", "83"),
        pytest.param(("data.max_length", "5"), marks=pytest.mark.slow),
        pytest.param(("validation.metric", "accuracy"), marks=pytest.mark.slow),
    ],
    ids=lambda change: change[0],
)
def test_changed_option_survives_a_crash(config, seq2seq, tmp_path, change):
    """The checkpoint is from before the change, though the config is from after it."""
    name, value = change
    allowed = ("--set", f"{name}={value}", "--allow-changed", name)
    ends = []
    for run in (tmp_path / "once", tmp_path / "twice"):
        begun(config, run, 7)
        if run.name == "twice":
            changed = load_config(config, [f"{name}={value}"])
            train(changed, run, allow_changed=[name], hooks=stop_at(7))
        assert seq2seq("train", config, "--run-dir", run, *allowed).exit_code == 0
        ends.append(run)
    assert differing_results(*ends) == []


def test_max_steps_below_warmup_steps_leaves_the_run_unchanged(config, seq2seq, tmp_path):
    settings = yaml.safe_load(config.read_text())
    del settings["training"]["warmup_steps"]
    settings["training"]["max_steps"] = 200
    long = write_config(config.parent, settings, "long.yaml")
    run = begun(long, tmp_path / "run", 4)
    message = seq2seq("train", long, "--run-dir", run, *option("max_steps", 8)).error()
    assert "training.max_steps 8 ends the run after 8 updates, before the peak" in message
    assert seq2seq("train", long, "--run-dir", run, *option("max_steps", 21)).exit_code == 0


def test_model_without_config_is_not_overwritten(whole, config, seq2seq, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "config.yaml").unlink()
    message = seq2seq("train", config, "--run-dir", run).error()
    assert "contains a model but no config.yaml" in message
    assert len(RunFolder(run).all_checkpoints()) == 2


@pytest.mark.slow
def test_max_epochs_holds_after_a_change_of_tokens_per_batch(config, seq2seq, tmp_path):
    run = begun(config, tmp_path / "run", 9)
    given = (
        *option("max_steps", 1_000),
        *option("max_epochs", 1),
        *option("tokens_per_batch", 83),
    )
    given = (*given, "--allow-changed", "training.tokens_per_batch")
    result = seq2seq("train", config, "--run-dir", run, *given).ok()
    assert "(max_epochs), 1.0 epochs of" in result.stderr
    state = json.loads((last_checkpoint(run) / "state.json").read_text())
    assert (state["epoch"], state["position"]) == (2, 0)


def test_changed_training_text_starts_a_new_epoch(seq2seq, tmp_path):
    settings = numbers_config(tmp_path, 3_000, max_steps=10, warmup_steps=4, device="cpu")
    settings["validation"] |= {"every": 4, "decode": False}
    config, run = write_config(tmp_path, settings), tmp_path / "run"
    assert seq2seq("train", config, "--run-dir", run).exit_code == 0
    best = json.loads((last_checkpoint(run) / "state.json").read_text())["best_models"]
    write_pairs(tmp_path, "train", number_pairs(3_000, seed=5))
    more = ("train", config, "--run-dir", run, *option("max_steps", 12))
    assert "allow it with train --allow-changed data.train" in seq2seq(*more).stderr
    result = seq2seq(*more, "--allow-changed", "data.train").ok()
    assert "the training data changed; a new epoch starts" in result.stderr
    assert "the best score so far is reset" not in result.stderr
    state = json.loads((last_checkpoint(run) / "state.json").read_text())
    assert (state["step"], state["epoch"], state["position"]) == (12, 2, 2)
    best.append([12, *[logged_points(run)[-1]["valid/loss"]] * 2])
    assert state["best_models"] == [min(best, key=lambda model: model[2])]
    assert seq2seq(*more).exit_code == 0  # now it is the run's own


def test_text_that_changes_while_a_run_starts_is_refused(seq2seq, tmp_path):
    """The manifest would have the hash of the text before or after what was read."""
    settings = numbers_config(tmp_path, 60, max_steps=1, warmup_steps=0)
    valid = tmp_path / "valid.tsv"
    valid.write_text("1 2\tone two\n")
    settings["data"]["valid"] = {"pairs": str(valid)}
    train = ("train", write_config(tmp_path, settings), "--run-dir", tmp_path / "run")
    with growing(valid, "3\tthree", 1):  # when it is hashed
        assert "the text of data.valid changed while being read" in seq2seq(*train).error()
    assert not (tmp_path / "run").exists()
    seq2seq(*train).ok()


def test_fine_tuning_starts_from_the_best_weights(config, whole, seq2seq, tmp_path):
    """Digits that the other never saw are new; what is frozen stays as it was there."""
    pairs = [(f"{a} 11", f"{b} eleven") for a, b in number_pairs(400, seed=3)]
    settings = yaml.safe_load(config.read_text())
    settings["data"] = {"train": write_pairs(tmp_path, "train", pairs)}
    settings["tokenizer"]["reuse"] = None
    settings["training"] |= {"max_steps": 5, "warmup_steps": 0, "freeze": ["encoder"]}
    config, run = write_config(tmp_path, settings), tmp_path / "run"
    result = seq2seq(
        "train", config, "--run-dir", run, "--from", whole, *option("keep_last", 9)
    ).ok()
    assert (
        "learning a new vocabulary, because the config sets tokenizer.reuse: null" in result.stderr
    )
    assert "source vocabulary: the embeddings of 14 of 15 tokens are copied from" in result.stderr
    assert "1 new tokens are initialized randomly" in result.stderr
    assert "; projection tied; frozen: encoder)" in result.stderr
    assert "without --from" not in result.stderr
    alone = seq2seq("check", config).ok()
    assert "; projection tied; frozen: encoder)" in alone.stdout
    assert "training.freeze without --from keeps random weights: encoder" in alone.stderr
    theirs = load_file(whole / "model.safetensors")
    first = load_file(RunFolder(run).checkpoint(0) / "weights.safetensors")
    last = load_file(last_checkpoint(run) / "weights.safetensors")
    for name, tensor in theirs.items():
        if "embedding" not in name:
            assert first[name].equal(tensor)
            assert last[name].equal(tensor) == name.startswith("encoder"), name
    new, old = ([line.split("\t")[0] for line in _pieces(folder)] for folder in (run, whole))
    for piece in old:
        assert first["src_embedding.weight"][new.index(piece)].equal(
            theirs["src_embedding.weight"][old.index(piece)]
        )
    again = ("train", config, "--run-dir", run, *option("max_steps", 6))
    another_spelling = tmp_path / os.pardir / os.path.relpath(whole, tmp_path.parent)
    assert seq2seq(*again, "--from", another_spelling).exit_code == 0
    assert "did not start from" in seq2seq(*again, "--from", tmp_path / "other").error()


def _pieces(run: Path) -> list[str]:
    from seq2seq_cli.tokenizers.tokenizer import Tokenizer

    return Tokenizer.load(run / "src.model").pieces()


def test_fine_tuning_validates_after_every_epoch(whole, seq2seq, tmp_path):
    """Also if that takes longer than the epoch, so that early stopping has something to compare."""
    data = {
        name: write_pairs(tmp_path, name, number_pairs(20, seed=3)) for name in ("train", "valid")
    }
    training = {"device": "cpu", "processes": 1}
    config = write_config(tmp_path, {"data": data, "training": training})
    seq2seq("train", config, "--run-dir", tmp_path / "run", "--from", whole).ok()
    points = logged_points(tmp_path / "run")
    assert [point["step"] for point in points if "valid/loss" in point] == [1, 2, 3, 4, 5]


def test_fine_tuning_takes_the_vocabulary_unless_told_otherwise(config, whole, seq2seq, tmp_path):
    """Also if the run goes on, with and without --from, and by configs that leave it out."""
    settings = yaml.safe_load(config.read_text())
    settings["data"]["train"] = write_pairs(tmp_path, "train", number_pairs(300, seed=3))
    settings["tokenizer"] = {"shared": False}
    settings["training"]["max_steps"] = 8
    config, run = write_config(tmp_path, settings), tmp_path / "run"
    train = ("train", config, "--run-dir", run)
    result = seq2seq(*train, "--from", whole).ok()
    assert f"--from {whole}: reusing its vocabulary" in result.stderr
    assert "learning the vocabulary" not in result.stderr
    for name in ("src.model", "tgt.model"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    saved = yaml.safe_load((run / "config.yaml").read_text())["tokenizer"]
    assert (saved["kind"], saved["reuse"]) == ("word", str(whole))
    assert seq2seq(*train, *option("max_steps", 9), "--from", whole).exit_code == 0
    assert seq2seq(*train, *option("max_steps", 10)).exit_code == 0
    message = seq2seq(*train, *option("max_steps", 11), "--set", "tokenizer.reuse=null").error()
    assert "tokenizer.reuse: " in message
    other = ("--run-dir", tmp_path / "other", "--set", "tokenizer.kind=char", "--from", whole)
    result = seq2seq("train", config, *other)
    assert (
        "learning a new vocabulary, because the config sets tokenizer.kind: char" in result.stderr
    )
    assert "learning the vocabulary (char)" in result.stderr


def test_fine_tuning_from_a_missing_run_fails_before_reading_text(config, seq2seq, tmp_path):
    result = seq2seq("train", config, "--run-dir", tmp_path / "run", "--from", tmp_path / "no")
    assert result.error().splitlines() == [f"error: there is no run folder {tmp_path / 'no'}"]


def test_same_text_under_another_path_is_no_change(config, whole, seq2seq, tmp_path, monkeypatch):
    """By other names, and relative to another folder."""
    settings = yaml.safe_load(config.read_text())
    for name in ("train", "valid"):
        for side in ("src", "tgt"):
            moved = tmp_path / f"{name}.v2.{side}"
            shutil.copy(settings["data"][name][side], moved)
            settings["data"][name][side] = moved.name
    run = begun(config, tmp_path / "run", 13)
    elsewhere = write_config(tmp_path, settings)
    monkeypatch.chdir(tmp_path)
    result = seq2seq("train", elsewhere.name, "--run-dir", "run").ok()
    assert "a new epoch" not in result.stderr
    must_be_equal(run, whole)
    assert yaml.safe_load(Path("run/config.yaml").read_text())["data"]["train"] == {
        "src": "train.v2.src",
        "tgt": "train.v2.tgt",
        "pairs": None,
        "fields": None,
        "features": None,
        "tag": None,
        "weight": 1.0,
    }
    with Path("train.v2.src").open("a") as file:
        file.write("1\n")
    with Path("train.v2.tgt").open("a") as file:
        file.write("one\n")
    longer = ("train", elsewhere.name, "--run-dir", "run", *option("max_steps", 30))
    assert "the text of data.train changed" in seq2seq(*longer).stderr


def test_folder_of_text_may_move(seq2seq, tmp_path):
    """What was in it is known by the hash alone; a file of another form is another text."""
    settings = numbers_config(tmp_path, 60, max_steps=2, warmup_steps=1, device="cpu")
    folder = tmp_path / "text"
    folder.mkdir()
    for number, pairs in enumerate((number_pairs(40, seed=1), number_pairs(40, seed=2))):
        rows = "".join(f"{src}\t{tgt}\n" for src, tgt in pairs)
        (folder / f"{number}.tsv").write_text(rows)
    for given, moved, form in (
        (folder, tmp_path / "moved", ""),
        (tmp_path / "moved" / "*.tsv", tmp_path / "again", "/*.tsv"),
    ):
        settings["data"]["train"] = {"pairs": str(given)}
        run = tmp_path / f"run{len(form)}"
        command = ("train", write_config(tmp_path, settings), "--run-dir", run)
        seq2seq(*command).ok()
        before = folder if given == folder else tmp_path / "moved"
        before.rename(moved)
        if given == folder:
            before.mkdir()  # an empty one
        more = (*command, *option("max_steps", 3), "--set", f"data.train.pairs={moved}{form}")
        assert "a new epoch" not in seq2seq(*more).ok().stderr
    only, again = tmp_path / "a.tsv", tmp_path / "a.jsonl"
    only.write_bytes((tmp_path / "again" / "0.tsv").read_bytes())
    settings["data"]["train"] = {"pairs": str(only)}
    command = ("train", write_config(tmp_path, settings), "--run-dir", tmp_path / "last")
    seq2seq(*command).ok()
    only.rename(again)
    more = (*command, *option("max_steps", 3), "--set", f"data.train.pairs={again}")
    assert "data.train.pairs" in seq2seq(*more).error()


def test_text_that_changes_in_the_last_epoch_is_trained_on(seq2seq, tmp_path):
    settings = numbers_config(tmp_path, 3_000, max_epochs=1, warmup_steps=4, device="cpu")
    settings["training"].pop("max_steps", None)
    settings["data"]["valid"] = None
    config, run = write_config(tmp_path, settings), tmp_path / "run"
    train(load_config(config), run, hooks=stop_at(10))
    write_pairs(tmp_path, "train", number_pairs(3_000, seed=5))
    seq2seq("train", config, "--run-dir", run, "--allow-changed", "data.train").ok()
    state = json.loads((last_checkpoint(run) / "state.json").read_text())
    whole = tmp_path / "whole"
    seq2seq("train", config, "--run-dir", whole).ok()
    updates = json.loads((last_checkpoint(whole) / "state.json").read_text())["step"]
    assert (state["step"], state["epoch"], state["position"]) == (10 + updates, 2, 0)


def test_log_larger_than_those_that_are_read_at_once_is_continued(config, tmp_path):
    run = begun(config, tmp_path / "run", 13)
    before = (run / "metrics.jsonl").read_bytes()
    os.truncate(run / "metrics.jsonl", 257 << 20)  # a line that is not complete
    train(load_config(config), run, hooks=stop_at(15))
    after = (run / "metrics.jsonl").read_bytes()
    assert after.startswith(before) and len(after) < 1 << 20


def test_fine_tuning_from_another_architecture_is_rejected(config, whole, seq2seq, tmp_path):
    train = ("train", config, "--run-dir", tmp_path / "run", "--from", whole, "--set")
    message = seq2seq(*train, "model.d_ff=32").error()
    assert "its model.d_ff is 16, this config's 32; they must be the same" in message
    # One matrix cannot hold the embeddings of both sides.
    assert "are different matrices there" in seq2seq(*train, "tokenizer.shared=true").error()
    seq2seq(*train, "tokenizer.shared=true", "--set", "model.tie_embeddings=false").ok()


def test_vocabulary_can_be_reused(config, whole, seq2seq, tmp_path):
    run = tmp_path / "run"
    reuse = ("--set", f"tokenizer.reuse={whole}", *option("max_steps", 8))
    assert seq2seq("train", config, "--run-dir", run, *reuse).exit_code == 0
    for name in ("src.model", "tgt.model"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    missing = ("--set", f"tokenizer.reuse={tmp_path / 'nothing'}")
    assert seq2seq("train", config, "--run-dir", tmp_path / "b", *missing).exit_code == 2
    moved = shutil.copytree(whole, tmp_path / "moved")
    again = ("train", config, "--run-dir", run, *option("max_steps", 9))
    away = whole.rename(tmp_path / "away")
    try:
        seq2seq(*again, "--set", f"tokenizer.reuse={moved}").ok()
    finally:
        away.rename(whole)
    other = shutil.copytree(whole, tmp_path / "other")
    (other / "src.model").write_bytes((whole / "tgt.model").read_bytes())
    message = seq2seq(*again, "--set", f"tokenizer.reuse={other}").error()
    assert re.search("tokenizer.reuse: .*; this cannot change in a run", message)


def test_freezing_all_parameters_is_rejected(config, seq2seq, tmp_path):
    everything = option("freeze", "[embeddings, encoder, decoder, projection]")
    message = seq2seq("train", config, "--run-dir", tmp_path / "run", *everything).error()
    assert "leaves no parameters to train" in message
    assert not (tmp_path / "run").exists()


def disk_full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_neither_stops_training_nor_loses_anything(config, whole, tmp_path, caplog):
    """Nothing can be written from the 5th to the 17th update: two best models."""
    steps = []
    hooks = Hooks(
        on_step=lambda state: steps.append(state.step),
        before_write=lambda path: disk_full() if steps and 5 <= steps[-1] <= 17 else None,
    )
    train(load_config(config), tmp_path / "run", hooks=hooks)
    assert "cannot write the checkpoint of step 8" in caplog.text
    assert "the last checkpoint is of step 4" in caplog.text
    must_be_equal(tmp_path / "run", whole)
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(3, STEPS + 1, 3))


def test_full_disk_removes_the_oldest_checkpoint(config, whole, tmp_path, caplog):
    """There is room for two, though three are to be kept."""
    run = RunFolder(tmp_path / "run")

    def before_write(path: Path) -> None:
        if path.parent == run.checkpoints and not path.exists() and len(run.all_checkpoints()) >= 2:
            disk_full()

    given = load_config(config, ["training.keep_last=3"])
    train(given, run.path, hooks=Hooks(before_write=before_write))
    assert "cannot write" not in caplog.text
    assert list(run.all_checkpoints()) == [24, 20]
    must_be_equal(run.path, whole)


def test_full_disk_never_removes_the_checkpoint_resumed_from(config, whole, tmp_path):
    """The last one is damaged, and the disk is full when the next one is due."""
    run, kept = RunFolder(begun(config, tmp_path / "run", 10)), []
    (last_checkpoint(run.path) / "state.json").write_text("damaged")

    def before_write(path: Path) -> None:
        if path.parent == run.checkpoints and not path.exists():
            kept.append(list(run.all_checkpoints()))
            if len(kept) == 1:
                disk_full()

    train(load_config(config), run.path, hooks=Hooks(before_write=before_write))
    assert kept[:2] == [[8], [8]]
    must_be_equal(run.path, whole)


def test_clock_set_back_hides_no_point_in_tensorboard(config, whole, tmp_path):
    run = begun(config, tmp_path / "run", 10)
    train(load_config(config), run, hooks=Hooks(wall_time=lambda: 1_000.0))
    must_be_equal(run, whole)
    events = EventAccumulator(str(run)).Reload()
    assert [event.step for event in events.Scalars("valid/loss")] == [8, 16, 24]


@pytest.mark.slow
def test_verify_resume_compares_whole_runs(config, whole, seq2seq, tmp_path):
    result = seq2seq("verify-resume", config, "--steps", 7, "--interruptions", 1).ok()
    assert "resuming is exact here" in result.stdout
    other = tmp_path / "other"
    assert seq2seq("train", config, "--run-dir", other, *option("seed", 2)).exit_code == 0
    found = {(d.kind, d.name) for d in differing_results(other, whole)}
    assert {("weights", "last model"), ("weights", "best model"), ("weights", "optimizer")} < found
    assert ("metrics", "train/loss at step 3") in found


@pytest.mark.slow
def test_verify_resume_compares_all_of_a_short_run(config, seq2seq):
    short = ("verify-resume", config, *option("max_steps", 9))
    result = seq2seq(*short, "--interruptions", 2).ok()
    assert result.stdout.startswith("9 updates without interruption, and interrupted after 3, 6\n")
    message = seq2seq(*short, "--interruptions", 9).error()
    assert "--interruptions 9 needs more updates than 9" in message
