"""Runs that go on: exactly, with changes that were allowed, from damage, and one at a time."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import Command, last_checkpoint
from number_task import number_pairs, numbers_config, write_config, write_pairs
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.data.batches import BatchSampler
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tools.run_diff import differing_results
from seq2seq_cli.training import checkpoint, loop, tensorboard
from seq2seq_cli.training.checkpoint import Allowance, read_state

STEPS = 24


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    """A validation every 8 updates, a checkpoint every 4, 28 updates an epoch."""
    folder = tmp_path_factory.mktemp("numbers")
    settings = numbers_config(
        folder, max_steps=STEPS, warmup_steps=8, log_every=3, save_every=4, device="cpu"
    )
    settings["validation"] = {"every": 8, "unit": "steps", "metric": "loss", "decode": False}
    return write_config(folder, settings)


@pytest.fixture(scope="module")
def whole(config, seq2seq: Command) -> Path:
    """The run that nothing disturbed."""
    run = config.parent / "whole"
    assert seq2seq("train", config, "--run-dir", run).exit_code == 0
    return run


def option(name: str, value: object) -> tuple[str, str]:
    return ("--set", f"training.{name}={value}")


def begun(config: Path, run: Path, steps: int) -> Path:
    """A run that was left after so many updates."""
    loop.train(load_config(config), run, until=steps)
    return run


def must_be_equal(run: Path, whole: Path) -> None:
    assert differing_results(run, whole) == []


def points_in_tensorboard(run: Path, name: str) -> list[int]:
    """Their steps."""
    events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    return [event.step for event in events.Scalars(name)]


def must_show_every_point_once(run: Path) -> None:
    assert points_in_tensorboard(run, "train/loss") == list(range(3, STEPS + 1, 3))
    assert points_in_tensorboard(run, "valid/loss") == [8, 16, 24]


@pytest.mark.parametrize("stop_at", [16, STEPS])
def test_a_validation_that_a_stop_prevented_is_made_first(
    config, whole, seq2seq, tmp_path, stop_at
):
    """Its model is in a checkpoint already, which says so."""
    run = begun(config, tmp_path / "run", stop_at)
    assert read_state(last_checkpoint(run)).awaits_validation
    assert points_in_tensorboard(run, "valid/loss") == list(range(8, stop_at, 8))
    assert seq2seq("train", config, "--run-dir", run).exit_code == 0
    must_be_equal(run, whole)
    must_show_every_point_once(run)


def test_a_validation_that_a_crash_made_void_is_made_again(config, whole, seq2seq, tmp_path):
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


def test_without_validation_text_no_epoch_leaves_a_checkpoint(config, seq2seq, tmp_path):
    """Of a text of one batch each epoch would, which is every update."""
    run = tmp_path / "run"
    given = ("--set", "data.valid=null", *option("tokens_per_batch", 100_000))
    given = (*given, *option("save_every", 10), *option("keep_last", 100))
    given = (*given, "--set", "validation.unit=epochs", "--set", "validation.every=1")
    assert seq2seq("train", config, "--run-dir", run, *given).exit_code == 0
    state = read_state(last_checkpoint(run))
    assert (state.epoch, state.step) == (STEPS + 1, STEPS)
    assert list(RunFolder(run).all_checkpoints()) == [24, 20, 10, 0]
    last = load_file(last_checkpoint(run) / "weights.safetensors")
    assert all(t.equal(last[n]) for n, t in load_file(run / "model.safetensors").items())


def test_checkpoints_that_are_wanted_for_good_are_written_whenever_they_are_due(
    config, seq2seq, tmp_path
):
    """Also between those of `save_every` and of validations."""
    run = tmp_path / "run"
    given = (*option("save_every", "null"), *option("keep_every", 5), *option("keep_last", 1))
    assert seq2seq("train", config, "--run-dir", run, *given).exit_code == 0
    assert list(RunFolder(run).all_checkpoints()) == [24, 20, 15, 10, 5]


@pytest.mark.parametrize("update", [0.01, 0.04, 1.0, 10.0])
def test_saving_before_validations_takes_at_most_a_tenth_of_the_time(update):
    """Every update is validated: a checkpoint takes 0.2 s, and 0.07 s what it tells afterwards."""
    now, saving, num_updates, num_saved = [0.0], 0.0, 0, 0
    allowance = Allowance(lambda: now[0])
    while now[0] < 1_000:
        now[0] += update
        num_updates += 1
        if allowance.suffices:
            num_saved += 1
            for seconds in (0.2, 0.07):
                with allowance.spent():
                    now[0] += seconds
                saving += seconds
    assert saving - 0.27 <= 0.1 * now[0]
    assert num_saved == num_updates if update > 2.7 else saving > 0.07 * now[0]


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    config, whole, seq2seq, tmp_path, name
):
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
        result = seq2seq("train", config, "--run-dir", run)
        assert result.exit_code == 0, result.stderr
        assert "looking for the checkpoint before it" in result.stderr
        must_be_equal(run, whole)


def test_a_damaged_checkpoint_does_not_take_the_place_of_a_whole_one(config, seq2seq, tmp_path):
    """It is not one of the two that are kept, when the run has gone on from the one before it."""
    run = begun(config, tmp_path / "run", 13)  # between the steps at which checkpoints are due
    (last_checkpoint(run) / "state.json").write_bytes(b"")
    loop.train(load_config(config), run, until=16)
    assert list(RunFolder(run).all_checkpoints()) == [16, 12]
    (last_checkpoint(run) / "state.json").write_bytes(b"")
    result = seq2seq("train", config, "--run-dir", run)
    assert result.exit_code == 0, result.stderr


def test_a_folder_in_use_is_locked_against_a_second_trainer(config, seq2seq, tmp_path):
    run = tmp_path / "run"
    with RunFolder(run).locked():
        result = seq2seq("train", config, "--run-dir", run)
        assert (result.exit_code, list(run.iterdir())) == (2, [])
        assert "another process is training in" in result.stderr
    assert not run.exists()  # it stayed empty
    assert seq2seq("train", config, "--run-dir", run, *option("max_steps", 8)).exit_code == 0


def test_checkpoints_and_models_are_kept_as_asked(config, seq2seq, tmp_path):
    run = tmp_path / "run"
    kept = (*option("keep_last", 3), *option("keep_every", 8), "--set", "validation.keep_best=2")
    assert seq2seq("train", config, "--run-dir", run, *kept).exit_code == 0
    assert list(RunFolder(run).all_checkpoints()) == [24, 20, 16, 8]
    assert list(RunFolder(run).all_best_models()) == [24, 16]
    best = load_file(run / "model.safetensors")
    assert all(best[n].equal(t) for n, t in load_file(RunFolder(run).best_model(24)).items())
    for which in ("best", "last", "8", "16"):
        assert seq2seq("translate", run, "--model", which, "1 2").exit_code == 0
    result = seq2seq("translate", run, "--model", "9", "1 2")
    assert result.exit_code == 2
    assert "valid: best, last, or a kept step: 8, 16, 20, 24" in result.stderr


def test_what_changed_must_be_allowed_and_some_things_cannot(config, seq2seq, tmp_path):
    run = begun(config, tmp_path / "run", 8)
    train = ("train", config, "--run-dir", run)
    changed = (*option("lr", 0.001), *option("seed", 7))
    refused = seq2seq(*train, *changed)
    assert refused.exit_code == 2
    assert "allow it with --allow-changed OPTION" in refused.stderr
    assert "training.lr: 0.005 in the run, 0.001 now" in refused.stderr
    refused = seq2seq(*train, *changed, "--allow-changed", "training")
    assert refused.exit_code == 2
    assert "training.lr" not in refused.stderr
    assert "training.seed: 1 in the run, 7 now; this cannot change in a run" in refused.stderr
    assert "no such option" in seq2seq(*train, "--allow-changed", "training.rl").stderr
    allowed = (*option("lr", 0.001), "--allow-changed", "training.lr")
    assert seq2seq(*train, *allowed).exit_code == 0
    rates = [
        json.loads(line).get("train/lr")
        for line in (run / "metrics.jsonl").read_text().splitlines()
    ]
    assert max(filter(None, rates[4:])) < 0.0011
    assert seq2seq(*train, *option("lr", 0.001)).exit_code == 0  # now it is the run's own


def test_with_other_tokens_per_batch_no_pair_is_lost_or_repeated(
    config, seq2seq, tmp_path, monkeypatch
):
    """In the middle of an epoch, twice."""
    seen: list[np.ndarray] = []
    real = BatchSampler.batches

    def noting(self, epoch, position, count, earlier=()):
        if epoch == 1:
            seen.extend(self.plan(epoch, earlier)[position : position + count])
        return real(self, epoch, position, count, earlier)

    monkeypatch.setattr(BatchSampler, "batches", noting)
    run = begun(config, tmp_path / "run", 7)
    for steps, tokens in ((11, 256), (80, 700)):
        given = (*option("max_steps", steps), *option("tokens_per_batch", tokens))
        assert seq2seq("train", config, "--run-dir", run, *given).exit_code == 2
        given = (*given, "--allow-changed", "training.tokens_per_batch")
        result = seq2seq("train", config, "--run-dir", run, *given)
        assert result.exit_code == 0
        assert "this epoch continues with the pairs not used yet" in result.stderr
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(3_000))


@pytest.mark.parametrize(
    "change",
    [
        ("training.tokens_per_batch", "256"),
        ("data.max_length", "5"),
        ("validation.metric", "accuracy"),
    ],
    ids=lambda change: change[0],
)
def test_a_change_holds_also_when_a_crash_follows_it(config, seq2seq, tmp_path, change):
    """The checkpoint is from before the change, though the config is from after it."""
    name, value = change
    allowed = ("--set", f"{name}={value}", "--allow-changed", name)
    ends = []
    for run in (tmp_path / "once", tmp_path / "twice"):
        begun(config, run, 7)
        if run.name == "twice":
            loop.train(load_config(config, [f"{name}={value}"]), run, allow_changed=[name], until=7)
        assert seq2seq("train", config, "--run-dir", run, *allowed).exit_code == 0
        ends.append(run)
    assert differing_results(*ends) == []


def test_fewer_updates_than_those_of_warm_up_leave_the_run_as_it_is(config, seq2seq, tmp_path):
    settings = yaml.safe_load(config.read_text())
    del settings["training"]["warmup_steps"]
    settings["training"]["max_steps"] = 200
    long = write_config(config.parent, settings, "long.yaml")
    run = begun(long, tmp_path / "run", 4)
    result = seq2seq("train", long, "--run-dir", run, *option("max_steps", 8))
    assert result.exit_code == 2
    assert "training.max_steps 8 ends the run after 8 updates, before the peak" in result.stderr
    assert seq2seq("train", long, "--run-dir", run, *option("max_steps", 21)).exit_code == 0


def test_a_model_without_its_config_is_not_trained_over(whole, config, seq2seq, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "config.yaml").unlink()
    result = seq2seq("train", config, "--run-dir", run)
    assert result.exit_code == 2
    assert "contains a model but no config.yaml" in result.stderr
    assert len(RunFolder(run).all_checkpoints()) == 2


def test_an_end_by_epochs_stays_the_end_after_a_change(config, seq2seq, tmp_path):
    run = begun(config, tmp_path / "run", 9)
    given = (
        *option("max_steps", 1_000),
        *option("max_epochs", 1),
        *option("tokens_per_batch", 256),
    )
    given = (*given, "--allow-changed", "training.tokens_per_batch")
    assert seq2seq("train", config, "--run-dir", run, *given).exit_code == 0
    state = json.loads((last_checkpoint(run) / "state.json").read_text())
    assert (state["epoch"], state["position"]) == (2, 0)


def test_other_text_begins_a_new_epoch_when_it_is_allowed(seq2seq, tmp_path):
    settings = numbers_config(tmp_path, max_steps=10, warmup_steps=4, device="cpu")
    settings["validation"] |= {"every": 4, "decode": False}
    config, run = write_config(tmp_path, settings), tmp_path / "run"
    assert seq2seq("train", config, "--run-dir", run).exit_code == 0
    write_pairs(tmp_path, "train", number_pairs(3_000, seed=5))
    more = ("train", config, "--run-dir", run, *option("max_steps", 12))
    assert "go on with --allow-changed data.train" in seq2seq(*more).stderr
    result = seq2seq(*more, "--allow-changed", "data.train")
    assert result.exit_code == 0
    assert "the training data changed; a new epoch starts" in result.stderr
    state = json.loads((last_checkpoint(run) / "state.json").read_text())
    assert (state["step"], state["epoch"], state["position"]) == (12, 2, 2)
    assert seq2seq(*more).exit_code == 0  # now it is the run's own


def test_a_run_can_start_from_another_ones_model(config, whole, seq2seq, tmp_path):
    """Digits that the other never saw are new; what is frozen stays as it was there."""
    pairs = [(f"{a} 11", f"{b} eleven") for a, b in number_pairs(400, seed=3)]
    settings = yaml.safe_load(config.read_text())
    settings["data"] = {"train": write_pairs(tmp_path, "train", pairs)}
    settings["tokenizer"]["reuse"] = None
    settings["training"] |= {"max_steps": 5, "warmup_steps": 0, "freeze": ["encoder"]}
    config, run = write_config(tmp_path, settings), tmp_path / "run"
    result = seq2seq("train", config, "--run-dir", run, "--from", whole, *option("keep_last", 9))
    assert result.exit_code == 0, result.stderr
    assert "not with its vocabulary, as the config has tokenizer.reuse: null" in result.stderr
    assert "source vocabulary: the embeddings of 14 of 15 tokens are copied from" in result.stderr
    assert "1 new tokens are initialised randomly" in result.stderr
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
    assert seq2seq(*again, "--from", whole).exit_code == 0
    result = seq2seq(*again, "--from", tmp_path / "other")
    assert result.exit_code == 2
    assert "did not start from" in result.stderr


def _pieces(run: Path) -> list[str]:
    from seq2seq_cli.text.tokenizer import Tokenizer

    return Tokenizer.load(run / "src.model").pieces()


def test_its_vocabulary_comes_with_it_unless_another_is_asked_for(config, whole, seq2seq, tmp_path):
    """Also if the run goes on, with and without --from, and by configs that leave it out."""
    settings = yaml.safe_load(config.read_text())
    settings["data"]["train"] = write_pairs(tmp_path, "train", number_pairs(300, seed=3))
    settings["tokenizer"] = {"shared": False}
    settings["training"]["max_steps"] = 8
    config, run = write_config(tmp_path, settings), tmp_path / "run"
    train = ("train", config, "--run-dir", run)
    result = seq2seq(*train, "--from", whole)
    assert result.exit_code == 0, result.stderr
    assert f"--from {whole}: with its vocabulary" in result.stderr
    assert "learning the vocabulary" not in result.stderr
    for name in ("src.model", "tgt.model"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    saved = yaml.safe_load((run / "config.yaml").read_text())["tokenizer"]
    assert (saved["kind"], saved["reuse"]) == ("word", str(whole))
    assert seq2seq(*train, *option("max_steps", 9), "--from", whole).exit_code == 0
    assert seq2seq(*train, *option("max_steps", 10)).exit_code == 0
    result = seq2seq(*train, *option("max_steps", 11), "--set", "tokenizer.reuse=null")
    assert result.exit_code == 2
    assert "tokenizer.reuse: " in result.stderr
    other = ("--run-dir", tmp_path / "other", "--set", "tokenizer.kind=char", "--from", whole)
    result = seq2seq("train", config, *other)
    assert "not with its vocabulary, as the config has tokenizer.kind: char" in result.stderr
    assert "learning the vocabulary (char)" in result.stderr


def test_a_start_that_is_no_run_is_said_before_the_text_is_read(config, seq2seq, tmp_path):
    result = seq2seq("train", config, "--run-dir", tmp_path / "run", "--from", tmp_path / "no")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [f"error: there is no run folder {tmp_path / 'no'}"]


def test_the_same_text_elsewhere_is_no_change(config, whole, seq2seq, tmp_path, monkeypatch):
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
    result = seq2seq("train", elsewhere.name, "--run-dir", "run")
    assert result.exit_code == 0, result.stderr
    assert "a new epoch" not in result.stderr
    must_be_equal(run, whole)
    assert yaml.safe_load(Path("run/config.yaml").read_text())["data"]["train"] == {
        "src": "train.v2.src",
        "tgt": "train.v2.tgt",
        "pairs": None,
    }
    with Path("train.v2.src").open("a") as file:
        file.write("1\n")
    with Path("train.v2.tgt").open("a") as file:
        file.write("one\n")
    longer = ("train", elsewhere.name, "--run-dir", "run", *option("max_steps", 30))
    assert "the text of data.train changed" in seq2seq(*longer).stderr


def test_another_shape_is_no_start(config, whole, seq2seq, tmp_path):
    other = ("--set", "model.d_ff=32", "--from", whole)
    result = seq2seq("train", config, "--run-dir", tmp_path / "run", *other)
    assert result.exit_code == 2
    assert "its model.d_ff is 64, this config's 32; they must be the same" in result.stderr


def test_a_vocabulary_can_be_reused(config, whole, seq2seq, tmp_path):
    run = tmp_path / "run"
    reuse = ("--set", f"tokenizer.reuse={whole}", *option("max_steps", 8))
    assert seq2seq("train", config, "--run-dir", run, *reuse).exit_code == 0
    for name in ("src.model", "tgt.model"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    missing = ("--set", f"tokenizer.reuse={tmp_path / 'nothing'}")
    assert seq2seq("train", config, "--run-dir", tmp_path / "b", *missing).exit_code == 2


def test_freezing_everything_is_refused(config, seq2seq, tmp_path):
    everything = option("freeze", "[embeddings, encoder, decoder, projection]")
    result = seq2seq("train", config, "--run-dir", tmp_path / "run", *everything)
    assert result.exit_code == 2
    assert "leaves no parameters to train" in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_full_disk_ends_and_loses_nothing(config, whole, seq2seq, tmp_path, monkeypatch):
    """Nothing can be written from the 5th to the 17th update: two best models."""
    state = {"full": False}

    def failing(real):
        def write(*arguments, **options):
            if state["full"]:
                raise OSError(28, "No space left on device")
            return real(*arguments, **options)

        return write

    real_advance = loop.advance

    def advance(place, *rest):
        real_advance(place, *rest)
        state["full"] = 5 <= place.step <= 17

    monkeypatch.setattr(loop, "advance", advance)
    monkeypatch.setattr(checkpoint, "save_tensors", failing(checkpoint.save_tensors))
    monkeypatch.setattr(checkpoint, "save_checkpoint", failing(checkpoint.save_checkpoint))
    monkeypatch.setattr(tensorboard, "_append", failing(tensorboard._append))
    run = tmp_path / "run"
    result = seq2seq("train", config, "--run-dir", run)
    assert result.exit_code == 0
    assert "cannot write the checkpoint of step 8" in result.stderr
    assert "the last checkpoint is that of step 4" in result.stderr
    must_be_equal(run, whole)
    events = EventAccumulator(str(run)).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(3, STEPS + 1, 3))


def test_a_disk_without_room_for_another_checkpoint_loses_the_oldest(
    config, whole, seq2seq, tmp_path, monkeypatch
):
    """There is room for two, though three shall be kept."""
    real, run = checkpoint.save_checkpoint, tmp_path / "run"

    def save(*arguments):
        if len(RunFolder(run).all_checkpoints()) >= 2:
            raise OSError(28, "No space left on device")
        real(*arguments)

    monkeypatch.setattr(checkpoint, "save_checkpoint", save)
    result = seq2seq("train", config, "--run-dir", run, *option("keep_last", 3))
    assert result.exit_code == 0
    assert "cannot write" not in result.stderr
    assert list(RunFolder(run).all_checkpoints()) == [24, 20]
    must_be_equal(run, whole)


def test_room_is_never_made_by_taking_the_checkpoint_that_the_run_goes_on_from(
    config, whole, seq2seq, tmp_path, monkeypatch
):
    """The last one is damaged, and the disk is full when the next one is due."""
    run = begun(config, tmp_path / "run", 10)
    (last_checkpoint(run) / "state.json").write_text("damaged")
    real, kept = checkpoint.save_checkpoint, []

    def save(*arguments):
        kept.append(list(RunFolder(run).all_checkpoints()))
        if len(kept) == 1:
            raise OSError(28, "No space left on device")
        real(*arguments)

    monkeypatch.setattr(checkpoint, "save_checkpoint", save)
    assert seq2seq("train", config, "--run-dir", run).exit_code == 0
    assert kept[:2] == [[8], [8]]
    must_be_equal(run, whole)


def test_a_clock_that_goes_back_hides_no_point(config, whole, seq2seq, tmp_path, monkeypatch):
    run = begun(config, tmp_path / "run", 10)
    monkeypatch.setattr(tensorboard.time, "time", lambda: 1_000.0)
    assert seq2seq("train", config, "--run-dir", run).exit_code == 0
    must_be_equal(run, whole)
    events = EventAccumulator(str(run)).Reload()
    assert [event.step for event in events.Scalars("valid/loss")] == [8, 16, 24]


def test_verify_resume_proves_it_and_would_find_a_difference(config, whole, seq2seq, tmp_path):
    result = seq2seq("verify-resume", config, "--steps", 7, "--interruptions", 1)
    assert result.exit_code == 0, result.stdout + result.stderr
    assert "resuming is exact here" in result.stdout
    other = tmp_path / "other"
    assert seq2seq("train", config, "--run-dir", other, *option("seed", 2)).exit_code == 0
    found = {(d.kind, d.name) for d in differing_results(other, whole)}
    assert {("weights", "last model"), ("weights", "best model"), ("weights", "optimizer")} < found
    assert ("metrics", "train/loss at step 3") in found
    assert seq2seq("verify-resume", config, "--steps", STEPS + 1).exit_code == 2
