"""The length of a run: its limits, the learning-rate schedule up to them, and what is logged."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from bare_runs import stop_at
from commands import Command, last_checkpoint, logged_points
from number_task import number_pairs, numbers_config, write_config, write_pairs
from torch.nn.modules.module import register_module_forward_pre_hook

from seq2seq_cli.commands.diff import differing_results
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.training.loop import train
from seq2seq_cli.training.losses.cross_entropy import BatchLoss
from seq2seq_cli.training.plan import plan_again, plan_run, total_updates
from seq2seq_cli.training.run import Hooks, TrainingState


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    """A config of 28 updates per epoch; tests set the length of the run and its warm-up."""
    folder = tmp_path_factory.mktemp("numbers")
    settings = numbers_config(folder, 1_000, log_every=1, device="cpu", tokens_per_batch=166)
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
    found = logged_points(run)
    return {point["step"]: point[name] for point in found if name in point}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["linear", "inverse_sqrt"])
def test_auto_warmup_is_a_tenth_of_a_short_run(config, seq2seq: Command, tmp_path, schedule):
    """It also holds if max_epochs ends the run before the default of 1,000 updates."""
    run = tmp_path / "run"
    given = options(max_epochs=2, schedule=schedule, lr=1e-2)
    result = seq2seq("train", config, "--run-dir", run, *given).ok()
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
    assert "\nalready finished after 56 updates (training.max_epochs reached)" in again.stderr
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
        ended = seq2seq(*command).ok()
        assert "finished after 3 updates (training.max_steps reached)" in ended.stderr
        assert list(points(run, "valid/loss")) == [3]
        assert (run / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("command", "warmup_steps"), [("check", 57), ("train", 57), ("train", 1_000)]
)
def test_warmup_longer_than_the_run_is_rejected(
    config, seq2seq: Command, tmp_path, command, warmup_steps
):
    given = options(max_epochs=2, warmup_steps=warmup_steps, schedule="linear")
    where = ("--run-dir", tmp_path / "run") if command == "train" else ()
    message = seq2seq(command, config, *where, *given).error()
    ends = "training.max_epochs 2 ends the run after 56 updates, before the peak rate is reached"
    assert f"training.warmup_steps {warmup_steps:,}: {ends}" in message
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
    result = seq2seq(*train, *options(max_steps=40, max_hours=1e-9)).ok()
    assert "40 updates (max_steps) or as many as fit into 1e-09 hours" in result.stderr
    assert "stopped after 1 of 40 updates (training.max_hours reached" in result.stderr
    assert "to finish: the same command with --set training.max_hours=" in result.stderr
    assert "finished" not in result.stderr
    assert list(points(tmp_path / "run", "valid/loss")) == [1]
    assert (tmp_path / "run/model.safetensors").is_file()
    again = seq2seq(*train, *options(max_steps=40, max_hours=1e-9))
    assert "stopped after 1 of 40 updates (training.max_hours reached" in again.stderr
    assert list(points(tmp_path / "run", "train/loss")) == [1]
    result = seq2seq(*train, *options(max_steps=40, max_hours=24))
    assert "finished after 40 updates (training.max_steps reached)" in result.stderr
    assert list(points(tmp_path / "run", "train/loss")) == list(range(1, 41))


@pytest.mark.slow
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


PACES = [
    ("cosine", 3.0, 210),
    ("linear", 0.5, 120),
    ("cosine", 1.0, 210),
    ("linear", 1.0, 210),
    ("linear", 3.0, 210),
    ("cosine", 0.5, 120),
]


@dataclass
class FakeClock:
    """A clock for `Hooks` of which a training pass takes a second, and later `slower` seconds."""

    slower: float = 1.0
    slow_after: int = 10**9
    passes: int = 0
    now: float = 0.0

    def count(self, module: torch.nn.Module, _: object) -> None:
        if isinstance(module, BatchLoss):
            self.passes += 1
            self.now += self.slower if self.passes > self.slow_after else 1.0

    @contextmanager
    def running(self) -> Iterator[None]:
        with register_module_forward_pre_hook(self.count):
            yield

    def hooks(self, stop: int | None = None) -> Hooks:
        return replace(stop_at(stop), monotonic=lambda: self.now)


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "slower", "seconds"), PACES)
def test_schedule_ends_with_the_time_limit(config, tmp_path, schedule, slower, seconds):
    """Also if the machine becomes slower or faster; after warm-up the rate never rises."""
    given = options(max_hours=seconds / 3_600, schedule=schedule, lr=1e-2)[1::2]
    clock = FakeClock(slower, slow_after=seconds // 3)
    with clock.running():
        train(load_config(config, given), tmp_path / "run", hooks=clock.hooks())
    rates = points(tmp_path / "run", "train/lr")
    most = seconds / 3 * (1 + 2 / slower)
    assert 0.9 * most < len(rates) <= most
    after_warmup = [rate for step, rate in rates.items() if step > seconds / 6]
    assert after_warmup == sorted(after_warmup, reverse=True)
    assert max(rates.values()) == pytest.approx(1e-2, rel=0.01)
    assert rates[len(rates)] < 3e-4
    log = (tmp_path / "run/train.log").read_text()
    assert f"finished after {len(rates)} updates (training.max_hours reached)" in log
    assert f"step {len(rates)}/{len(rates)} " in log


@pytest.mark.slow
def test_run_with_a_time_limit_resumes_exactly(config, tmp_path):
    given = options(max_hours=30 / 3_600, schedule="cosine", lr=1e-2, processes=1)[1::2]
    for run, stops in ((tmp_path / "whole", [None]), (tmp_path / "resumed", [3, 5, 17, None])):
        clock = FakeClock()
        for stop in stops:
            with clock.running():
                train(load_config(config, given), run, hooks=clock.hooks(stop))
    assert len(points(tmp_path / "whole", "train/lr")) > 27
    assert not differing_results(tmp_path / "whole", tmp_path / "resumed")


class CountingClock:
    """A clock that goes on whenever it is looked at, in each process on its own."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.slow
@pytest.mark.usefixtures("imports_shared")
def test_processes_with_clocks_of_their_own_make_the_same_plan(config, tmp_path):
    """Otherwise their weights, or the numbers of their updates, would part."""
    given = options(max_hours=200 / 3_600, schedule="linear", lr=1e-2, processes=2)[1::2]
    train(load_config(config, given), tmp_path / "run", hooks=Hooks(monotonic=CountingClock()))
    assert "updates (training.max_hours reached" in (tmp_path / "run/train.log").read_text()
    rates = points(tmp_path / "run", "train/lr")
    assert 20 < len(rates) < 200
    assert rates[len(rates)] < 1e-3


@pytest.mark.slow
def test_time_limit_that_leaves_enough_time_changes_nothing(config, tmp_path):
    for run, limit in ((tmp_path / "without", {}), (tmp_path / "with", {"max_hours": 1.0})):
        given = options(max_steps=25, schedule="cosine", processes=1, **limit)[1::2]
        clock = FakeClock()
        with clock.running():
            train(load_config(config, given), run, hooks=clock.hooks())
    assert points(tmp_path / "without", "train/lr") == points(tmp_path / "with", "train/lr")
    assert not [
        d
        for d in differing_results(tmp_path / "without", tmp_path / "with")
        if d.kind != "progress"
    ]


@pytest.mark.slow
def test_run_that_is_cut_off_says_how_to_finish(config, seq2seq: Command, tmp_path):
    """The machine stops for an hour; with the limit that is named, the rate falls to 0."""
    run, given = tmp_path / "run", options(schedule="linear", lr=1e-2, processes=1, max_steps=120)
    limited = [*given, *options(max_hours=100 / 3_600)]
    clock = FakeClock(slower=3_600, slow_after=71)
    with clock.running():
        train(load_config(config, limited[1::2]), run, hooks=clock.hooks())
    log = (run / "train.log").read_text()
    cut = (
        r"stopped after 72 of 9\d updates \(training.max_hours reached before the learning rate "
        r"fell to 0\): .* to finish: the same command with --set training.max_hours="
    )
    (hours,) = re.findall(cut + r"([\d.]+)", log)
    assert 1 < float(hours) < 1.2
    train(load_config(config, [*given[1::2], f"training.max_hours={hours}"]), run)
    rates = points(run, "train/lr")
    assert (len(rates), rates[120]) == (120, pytest.approx(1e-2 / 112))


@pytest.mark.slow
def test_warmup_fits_into_the_time(config, tmp_path):
    given = options(max_hours=100 / 3_600, warmup_steps=500, lr=1e-2)[1::2]
    clock = FakeClock()
    with clock.running():
        train(load_config(config, given), tmp_path / "run", hooks=clock.hooks())
    rates = points(tmp_path / "run", "train/lr")
    log = (tmp_path / "run/train.log").read_text()
    assert "warm-up after 9 in place of 500" in log
    assert rates[9] == max(rates.values()) == 1e-2


def test_warmup_that_a_time_limit_has_shortened_outlives_the_limit(config):
    """It is over, so that the run may also end before the update at which it was to end."""
    limited, shorter = (
        load_config(config, options(**limits)[1::2])
        for limits in ({"max_steps": 99, "max_hours": 1, "warmup_steps": 40}, {"max_steps": 30})
    )
    run = SimpleNamespace(state=TrainingState(), config=limited, data=SimpleNamespace(batches=None))
    plan_run(run)
    run.state.step, run.state.plan = 15, run.state.plan._replace(warmup=9)
    training = shorter.training.resolved(warmup_steps=limited.training.warmup_steps)
    run.config = shorter.model_copy(update={"training": training})
    plan_run(run)
    assert (run.state.plan.total, run.state.plan.warmup) == (30, 9)
    assert run.config.training.warmup_steps == 9  # a config with more than max_steps is refused


def planned_run(config: Path, **limits: object) -> SimpleNamespace:
    given = load_config(config, options(**limits)[1::2])
    run = SimpleNamespace(state=TrainingState(), config=given, data=SimpleNamespace(batches=None))
    plan_run(run)
    return run


def test_warmup_that_a_time_limit_has_shortened_stays_when_the_limit_is_gone(config):
    """At every further start."""
    run = planned_run(config, max_steps=99, max_hours=1, warmup_steps=40)
    run.state.step, run.state.plan = 15, run.state.plan._replace(warmup=9)
    run.config = load_config(config, options(max_steps=99, warmup_steps=40)[1::2])
    for _ in range(3):
        plan_run(run)
        assert (run.state.plan.warmup, run.config.training.warmup_steps) == (9, 40)


def test_warmup_beyond_the_epochs_stays_in_the_config(config):
    """The command with which a run was begun continues it again and again."""
    run = planned_run(config, max_steps=99, max_hours=1, warmup_steps=40)
    run.state.step, run.state.plan = 15, run.state.plan._replace(warmup=9)
    run.config = load_config(config, options(max_epochs=1, warmup_steps=40)[1::2])
    run.data.batches = SimpleNamespace(num_left=lambda *_: 20, num_batches=lambda _: [])
    for _ in range(3):
        plan_run(run)
        plan = run.state.plan
        assert (plan.total, plan.warmup, run.config.training.warmup_steps) == (35, 9, 40)


def test_slow_first_updates_do_not_shorten_the_warmup_for_good(config):
    """And the rate does not come near its peak before."""
    for delay, warmup in ((30.0, 46), (100.0, 14)):
        run = planned_run(config, max_steps=10_000, max_hours=1, warmup_steps=1_000)
        state = run.state
        for step in range(1, 200):
            state.step = step
            for name in ("updating", "seconds"):
                setattr(state, name, getattr(state, name) + (delay if step == 3 else 0.1))
            plan_again(run)
            if step == 5:
                assert state.plan.warmup == warmup
        assert (state.plan.total, state.plan.warmup) == (10_000, 1_000)


def test_a_pause_in_warmup_does_not_end_it(config):
    run = planned_run(config, max_steps=10_000, max_hours=10, warmup_steps=4_000)
    for step in range(1, 1_500):
        run.state.step = step
        for name in ("updating", "seconds"):
            taken = 20_000 if step == 1_100 else 3
            setattr(run.state, name, getattr(run.state, name) + taken)
        plan_again(run)
    plan = run.state.plan
    assert 1_100 < plan.step < 1_500 < plan.warmup < 4_000  # the pause was seen


def test_a_run_has_no_more_updates_than_a_checkpoint_can_count(config):
    run = planned_run(config, max_steps=99)
    run.config = load_config(config, options(max_epochs=10**9)[1::2])
    run.data.batches = SimpleNamespace(
        num_left=lambda *_: 28, num_batches=lambda epochs: [(28, len(epochs))]
    )
    assert total_updates(run) == 2**31 - 1


@pytest.mark.parametrize("step", [3, 15])
def test_another_warmup_changes_a_plan_for_a_time_limit(config, step):
    """Also after the end of the warm-up before, and only once."""
    asked = [options(max_steps=99, max_hours=1, warmup_steps=n)[1::2] for n in (10, 40)]
    given = [load_config(config, each) for each in asked]
    text = SimpleNamespace(batches=None)
    run = SimpleNamespace(state=TrainingState(), config=given[0], data=text)
    plan_run(run)
    run.state.step, run.config = step, given[1]
    plan_run(run)
    plan = run.state.plan
    assert (plan.total, plan.warmup) == (99, 40)
    run.state.plan = plan._replace(warmup=20)  # as too little time would
    plan_run(run)
    assert run.state.plan.warmup == 20


@pytest.mark.parametrize(("num_valid", "epochs"), [(3, 1), (300, 84)])
def test_validations_take_at_most_a_tenth_of_the_time_by_default(
    seq2seq: Command, tmp_path, num_valid, epochs
):
    """By the sizes of the texts alone, so that a resumed run validates at the same steps."""
    settings = numbers_config(tmp_path, 100, device="cpu", max_steps=500)
    settings["model"] = {"d_model": 16, "heads": 2, "layers": 1, "d_ff": 16}
    del settings["validation"]
    write_pairs(tmp_path, "valid", number_pairs(num_valid, seed=1))
    config = write_config(tmp_path, settings)
    report = json.loads(seq2seq("check", config, "--json").stdout)
    assert report["run"]["validation"]["every"] == pytest.approx(epochs, abs=epochs // 5)
    time, validation = report["time"], report["run"]["validation"]
    interval = validation["every"] * report["run"]["training"]["updates_per_epoch"]
    assert time["validations"] == -(-500 // interval)
    most = time["seconds_per_epoch"] * validation["every"] / 10
    assert time["seconds_of_validations"] <= time["validations"] * most


def test_check_names_the_limit_that_ends_the_run(config, seq2seq: Command):
    result = seq2seq("check", config, "--json", *options(max_epochs=2))
    training = json.loads(result.stdout)["run"]["training"]
    assert (training["updates"], training["limited_by"]) == (56, "max_epochs")
    assert training["warmup_updates"] == 5
    page = seq2seq("check", config, *options(max_epochs=2, max_steps=30)).stdout
    assert re.search(r"^training +30 updates \(max_steps\)", page, re.MULTILINE)
