"""Data-parallel training matches a single process, and all processes end together."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import PIPE

import pytest
import torch
import yaml
from bare_runs import stop_at
from commands import ROOT, Command, last_checkpoint, logged_points
from launched import (
    DiesWhenSent,
    SignalsWhenSent,
    fail,
    fail_in_the_other,
    one_update,
    refuse,
    refuse_in_main,
)
from number_task import numbers_config, write_config
from safetensors.torch import load_file
from served import children
from torch import distributed

from seq2seq_cli.commands.diff import differing_results
from seq2seq_cli.config.loader import config_yaml, load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.errors import Interrupted, UserError
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.loop import train
from seq2seq_cli.training.parallel.launcher import choose_num_processes, launch
from seq2seq_cli.training.warm_start import expected_config

pytestmark = pytest.mark.usefixtures("imports_shared")


@pytest.fixture
def config(tmp_path) -> Path:
    return write_config(tmp_path, numbers_config(tmp_path, 3_000))


def test_three_processes_match_one(config, tmp_path):
    updates, weights = [], []
    for count in (1, 3):
        update = partial(one_update, load_config(config), tmp_path)
        updates.append(update() if count == 1 else launch(update, count))
        paths = [tmp_path / f"{count}-{rank}.safetensors" for rank in range(count)]
        found = [load_file(path) for path in paths]
        for other in found[1:]:
            assert all(torch.equal(found[0][name], other[name]) for name in other)
        weights.append(found[0])
    for update, found in zip(updates[1:], weights[1:], strict=True):
        assert update == pytest.approx(updates[0], rel=1e-5)
        for name, value in found.items():
            torch.testing.assert_close(value, weights[0][name], atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.slow
def test_process_that_dies_before_it_connects_ends_the_run(config):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(UserError, match=r"process [01] failed with status 7"):
        launch(DiesWhenSent(), 2)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


UNLESS_SPAWNED = pytest.mark.skipif(sys.platform != "linux", reason="spawn does not deliver it")


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=UNLESS_SPAWNED), signal.SIGTERM]
)
def test_signal_ends_processes_that_did_not_exist_yet(number):
    with pytest.raises(Interrupted) as stop:
        launch(SignalsWhenSent(number), 2)
    assert stop.value.exit_status == 128 + number


@pytest.mark.slow
def test_dead_process_is_noticed_outside_of_collectives(config):
    """`ORPHANS` has one that exits."""
    reason = r"was killed by signal 9 \(out of memory\?\)"
    with pytest.raises(UserError, match=f"^process 1 {reason}; the same command resumes"):
        launch(partial(fail_in_the_other, load_config(config), partial(signal.raise_signal, 9)), 2)


ORPHANS = """
import os, sys
from functools import partial
from pathlib import Path
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.errors import UserError
from seq2seq_cli.training.parallel.launcher import launch
from launched import fail_in_the_other, wait_forever

def announce():
    print(os.getpid(), flush=True)
    wait_forever()

if __name__ == "__main__":
    config = load_config(Path(sys.argv[1]))
    try:
        launch(partial(fail_in_the_other, config, partial(os._exit, 9)), 2)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
    launch(partial(fail_in_the_other, config, announce), 2)
"""


@pytest.mark.slow
def test_child_process_does_not_outlive_the_main_process(config, tmp_path):
    """Nor does one that fails print anything but the reason."""
    script = tmp_path / "orphan.py"
    script.write_text(ORPHANS)
    command = [sys.executable, script, config]
    path = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    environment = os.environ | {"PYTHONPATH": path}
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, env=environment) as first:
        assert first.stdout is not None and first.stderr is not None
        line = first.stdout.readline()
        printed = first.stderr.readline()
        assert line, printed
        first.kill()
        ended, _, _ = select.select([first.stdout], [], [], 30)  # when nobody can write to it
        if not ended:
            os.kill(int(line), signal.SIGKILL)
    assert ended
    assert re.fullmatch("error: process 1 failed with status 9; the same .*\n", printed)


def test_user_error_of_one_process_is_reported(config):
    with pytest.raises(UserError, match="process 1: the ids are gone"):
        launch(partial(refuse, load_config(config)), 2)


@pytest.mark.slow
def test_error_of_the_system_names_its_file(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        launch((tmp_path / "gone").read_bytes, 2)
    assert error.value.filename == str(tmp_path / "gone")


@pytest.mark.slow
def test_exception_of_the_main_process_is_reported_with_its_traceback(config):
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*in fail\n.*a bug of the main process"):
        launch(partial(fail, load_config(config)), 2)


@pytest.mark.slow
def test_user_error_of_the_main_process_ends_the_others(config):
    with pytest.raises(UserError, match=r"^the ids are gone$"):
        launch(partial(refuse_in_main, load_config(config)), 2)


def test_auto_processes_depend_on_cores_and_workload(config, tmp_path):
    few, many = tmp_path / "few", tmp_path / "many"
    few.write_text("one line\n")
    many.write_text("one line\n" * 100_000)

    def chosen(cores: int, *overrides: str) -> int:
        return choose_num_processes(
            load_config(config, ["training.device=cpu", *overrides]), cores, 1 << 40
        )

    assert chosen(2, "training.tokens_per_batch=4096") == 2
    assert chosen(8, "training.tokens_per_batch=4096") == 8
    assert chosen(8, "training.tokens_per_batch=1024") == 2
    assert chosen(8, "training.tokens_per_batch=1023") == 1
    assert chosen(8, "training.tokens_per_batch=auto") == 1, "a small text gets small batches"
    large = f"data.train={{src: {many}, tgt: {few}}}"
    assert chosen(8, "training.tokens_per_batch=auto", large) == 8
    assert chosen(2, f"data.train={{src: {few}, tgt: {few}}}") == 1
    assert chosen(8, "training.tokens_per_batch=4096", "model.d_model=2048") == 1
    assert chosen(1, "training.processes=3") == 3
    assert chosen(12, "training.tokens_per_batch=4096") == 6, "of two threads, and not 8 of one"
    enough = load_config(config, ["training.device=cpu", "training.tokens_per_batch=4096"])
    assert [choose_num_processes(enough, 4, gib << 30) for gib in (0, 1, 2, 3, 4)] == [
        1,
        1,
        2,
        2,
        4,
    ]


def test_auto_processes_depend_on_the_model_that_a_run_starts_from(config, tmp_path):
    large = load_config(config, ["model.d_model=1024", "model.heads=8", "model.layers=6"])
    run = RunFolder(tmp_path / "large")
    run.path.mkdir()
    run.config.write_text(config_yaml(large))
    own = yaml.safe_load(config.read_text())
    own.pop("model")
    own["training"] |= {"device": "cpu", "tokens_per_batch": 4096}
    config.write_text(yaml.safe_dump(own))
    asked = load_config(config)
    assert choose_num_processes(asked, 2, 1 << 40) == 2
    for known in ((None, run.path), (run, None), (run, tmp_path / "missing")):
        assert choose_num_processes(expected_config(asked, *known), 2, 1 << 40) == 1
    odd = load_config(config, ["model.d_model=12"])  # which 8 heads do not divide
    assert expected_config(odd, run, None).model == odd.model


SHORT = [
    f"--set={option}"
    for option in (
        "training.max_steps=40",
        "training.warmup_steps=10",
        "training.log_every=5",
        "validation.every=20",
        "model.dropout=0.1",
        "training.ema_decay=0.9",
    )
]


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*map(str, arguments), *SHORT],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


TRAIN = (sys.executable, "-m", "seq2seq_cli", "train")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2")


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(last_checkpoint(folder) / "weights.safetensors")


TWO = "--set=training.processes=2"


@pytest.fixture(scope="module")
def whole(tmp_path_factory, seq2seq: Command) -> Path:
    """A run of two processes, beside its config."""
    folder = tmp_path_factory.mktemp("whole")
    config = write_config(folder, numbers_config(folder))
    assert seq2seq("train", config, "--run-dir", folder / "run", TWO, *SHORT).exit_code == 0
    assert len(logged_points(folder / "run")) == 40 // 5 + 2
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "sends"),
    [(signal.SIGINT, (os.killpg, os.kill)), (signal.SIGTERM, (os.killpg,))],
)
def test_two_processes_stop_and_resume_as_one_run(whole, seq2seq, tmp_path, number, sends):
    """All processes get the signal, as from a batch system, then the command alone."""
    config, parts = whole.parent / "numbers.yaml", tmp_path / "parts"
    for send in sends:
        process = start(*TRAIN, config, "--run-dir", parts, TWO, "--set=training.log_every=1")
        wait_for_a_line(parts / "metrics.jsonl", process)
        send(process.pid, number)
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == 128 + number, stderr
        assert stderr.count("stopping after this update") == (number == signal.SIGINT)
        assert "stopped and saved at step" in stderr
    assert seq2seq("train", config, "--run-dir", parts, TWO, *SHORT).exit_code == 0
    found, expected = weights_of(parts), weights_of(whole)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.slow
def test_members_of_an_ensemble_stop_and_resume(config, seq2seq, tmp_path):
    run, one = tmp_path / "run", "--set=training.processes=1"
    process = start(*TRAIN, config, "--run-dir", run, "--ensemble", 3, "--set=training.log_every=1")
    for member in "12":
        wait_for_a_line(run / "members" / member / "metrics.jsonl", process)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert stderr.count("stopping after this update") == 1
    ensemble = ("train", config, "--run-dir", run, "--ensemble", 3, one, *SHORT)
    assert seq2seq(*ensemble).exit_code == 0
    third = ("--run-dir", tmp_path / "third", "--set=training.seed=3", one, *SHORT)
    assert seq2seq("train", config, *third).exit_code == 0
    found, expected = weights_of(run / "members/3"), weights_of(tmp_path / "third")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_saves_although_nobody_reads_the_messages(whole, tmp_path, processes):
    """As with `2>&1 | tee log`, where Ctrl-C ends tee, too."""
    config, run = whole.parent / "numbers.yaml", tmp_path / "run"
    process = start(*TRAIN, config, "--run-dir", run, f"--set=training.processes={processes}")
    wait_for_a_line(run / "metrics.jsonl", process)
    process.stderr.close()
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=120) == 130
    assert 5 <= int(last_checkpoint(run).name.removeprefix("step-")) < 40


def training_points(run: Path) -> list[dict]:
    return [point for point in logged_points(run) if "train/loss" in point]


@pytest.mark.slow
def test_points_say_how_processes_share_the_time(whole):
    for point in training_points(whole):
        assert (point["train/processes"], point["train/starts"]) == (2, 1)
        waiting, communication = point["train/waiting"], point["train/communication"]
        assert waiting >= 0 and communication > 0 and waiting + communication < 1
        speeds = [point[f"train/processes/{rank}/tokens_per_second"] for rank in (0, 1)]
        assert all(speed > 0 for speed in speeds)
        assert "train/processes/2/tokens_per_second" not in point


@pytest.mark.slow
def test_torchrun_starts_again_when_a_process_was_killed(whole, tmp_path):
    """The run goes on from its last checkpoint, and its points tell of the new start."""
    config, run = whole.parent / "numbers.yaml", tmp_path / "run"
    options = ("--set=training.save_every=10", "--set=training.log_every=1")
    torchrun = (*TORCHRUN, "--max-restarts=1")
    process = start(*torchrun, "-m", "seq2seq_cli", "train", config, "--run-dir", run, *options)
    wait_for_a_line(run / "metrics.jsonl", process)
    os.kill(children(process.pid)[1], signal.SIGKILL)
    _, stderr = process.communicate(timeout=120)
    assert (process.returncode, stderr.count("finished after 40 updates")) == (0, 1), stderr
    assert re.search(rf"continuing {run} from step \d+ \(start 2\)\n", stderr)
    assert training_points(run)[-1]["train/starts"] == 2
    found, expected = weights_of(run), weights_of(whole)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.slow
def test_process_of_an_agent_that_has_ended_ends(config):
    """It is the child of another program from its first moment on."""
    agent = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "RANK": "1"}
    agent |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    given = ("env", *(f"{name}={value}" for name, value in agent.items()), *TRAIN, config)
    process = start("sh", "-c", '"$@"; exit $?', "sh", *given)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 2
    assert stderr == "error: the torchrun that started this process has ended\n"


@pytest.mark.slow
def test_torchrun_trains_the_same_run(whole, tmp_path):
    config, run = whole.parent / "numbers.yaml", tmp_path / "run"
    process = start(*TORCHRUN, "-m", "seq2seq_cli", "train", config, "--run-dir", run)
    _, stderr = process.communicate(timeout=120)
    assert (process.returncode, stderr.count("finished after 40 updates")) == (0, 1)
    assert differing_results(run, whole) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "is_same_text", "own", "expected"),
    [
        ("../run", True, 'set -- "$@" --set=training.shard=full', "finished after 40 updates"),
        ("../run", True, 'export PYTHONPATH="$0/edited"', "another version of the program"),
        ("../run", False, ":", "all machines must find the same text at the same paths"),
        ("run", True, ":", "all machines must find the same folder at this path"),
    ],
    ids=["other options", "other program", "other text", "other run"],
)
def test_machines_train_the_same_run(tmp_path, run, is_same_text, own, expected):
    """Each process is in a folder of its own, as on another machine; the second differs."""
    edited = shutil.copytree(ROOT / "seq2seq_cli", tmp_path / "edited" / "seq2seq_cli")
    with (edited / "model/layers.py").open("a") as file:
        file.write("# edited\n")
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        config = numbers_config(tmp_path / str(number), 300 if is_same_text else 300 + number)
        text = {"src": "train.src", "tgt": "train.tgt"}
        settings = config | {"data": {"train": text}, "validation": {}}
        write_config(tmp_path, settings)
    shell = f'cd "$0/$RANK"; [ $RANK = 0 ] || {own}; exec "$@"'
    command = (*TRAIN, "../numbers.yaml", "--run-dir", run)
    process = start(*TORCHRUN, "--no-python", "sh", "-c", shell, tmp_path, *command)
    _, stderr = process.communicate(timeout=120)
    assert (process.returncode == 0) == ("finished" in expected), stderr
    assert expected in stderr


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    (server,) = (
        child
        for child in children(process.pid)
        if b"forkserver" in Path(f"/proc/{child}/cmdline").read_bytes()
    )
    return children(server)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_sigterm_to_one_process_saves_and_stops_all(config, tmp_path, rank):
    options = (TWO, "--set=training.log_every=1")
    process = start(*TRAIN, config, "--run-dir", tmp_path / "run", *options)
    wait_for_a_line(tmp_path / "run/metrics.jsonl", process)
    os.kill(workers_of(process)[rank], signal.SIGTERM)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 143, stderr
    assert "stopped and saved at step" in stderr


@pytest.mark.slow
def test_repeated_signals_end_a_process_that_hangs(config, tmp_path):
    """The other waits for it within PyTorch, where Python handles no signals."""
    options = (TWO, "--set=training.log_every=1")
    process = start(*TRAIN, config, "--run-dir", tmp_path / "run", *options)
    wait_for_a_line(tmp_path / "run/metrics.jsonl", process)
    os.kill(workers_of(process)[1], signal.SIGSTOP)
    for _ in range(20):
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=3)
            break
    else:
        process.kill()
    assert process.returncode == 143
    assert process.communicate()[1].endswith("interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "schedule_free_adamw", "muon"])
def test_three_processes_stop_and_resume_with_another_batch_size(config, tmp_path, optimizer):
    """Sums of three depend on their order, and all must know of a change of the first one's."""
    base = ["training.processes=3", "training.max_steps=12", "training.warmup_steps=2"]
    base += [f"training.optimizer={optimizer}", "training.schedule=constant"]
    base += ["training.max_epochs=1", "validation.decode=false"]
    allowed = ["training.tokens_per_batch"]
    for name, stops in (("whole", ()), ("parts", (5, 9))):
        train(load_config(config, base), tmp_path / name, hooks=stop_at(4))
        changed = load_config(config, [*base, "training.tokens_per_batch=256"])
        for stop in (*stops, None):
            train(changed, tmp_path / name, allow_changed=allowed, hooks=stop_at(stop))
    assert differing_results(tmp_path / "whole", tmp_path / "parts") == []


def wait_for_a_line(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait for one more line than there is."""
    size = path.stat().st_size if path.exists() else 0
    while (path.stat().st_size if path.exists() else 0) <= size and process.poll() is None:
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()[1]


def train_in_own_group(rank: int, config: Config, run: Path, meeting: Path) -> None:
    """As in a program of a user's, who has a process group of their own."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    train(config, run)
    assert distributed.is_initialized(), "it is the caller's"
    distributed.destroy_process_group()


@pytest.mark.slow
def test_process_group_of_the_caller_trains_the_same_run(whole, tmp_path):
    overrides = [option.removeprefix("--set=") for option in SHORT]
    config = load_config(whole.parent / "numbers.yaml", overrides)
    run_dir = tmp_path / "run"
    arguments = (config, run_dir, tmp_path / "meeting")
    torch.multiprocessing.spawn(train_in_own_group, arguments, nprocs=2)
    assert json.loads((run_dir / "manifest.json").read_text())["processes"] == 2
    assert differing_results(run_dir, whole) == []
