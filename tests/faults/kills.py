"""Train while everything goes wrong, and end where the undisturbed run ends, bit for bit.

    PYTHONPATH=tests python -m faults.kills [--kills 200] [--seed 1] [--fresh 0]

Runs are killed (at random moments, and in the middle of writing), asked to stop, left without
room on the disk, given damaged checkpoints and a clock that goes back; after every fault the same
command is given again. When a run is through, its weights, optimizer, state, best model, logs and
TensorBoard points must be those of the run that nothing disturbed; then the next one begins.

A process is a fork of this one, which has imported everything, so that hundreds fit into minutes;
with --fresh N so many more are new processes of the command itself.
"""

import argparse
import functools
import itertools
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import sentencepiece.sentencepiece_model_pb2  # noqa: F401 (once, and not in every fork)
import torch
from number_task import numbers_config, write_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.optim.optimizer import register_optimizer_step_post_hook

from seq2seq_cli.cli import app
from seq2seq_cli.commands.diff import differing_results
from seq2seq_cli.run_folder import RunFolder

STEPS = 24
FINISHED, REFUSED = 0, 2
Fault = Callable[[random.Random], None]  # prepares the process that will suffer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fresh", type=int, default=0)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="seq2seq-faults-") as name:
        folder = Path(name)
        os.environ["SEQ2SEQ_CACHE"] = str(folder / "cache")
        config = make_config(folder)
        whole = folder / "whole"
        started = time.monotonic()
        status, output = train(config, whole, lambda: None)
        assert status == FINISHED, output
        seconds = time.monotonic() - started
        suffered: Counter[str] = Counter()
        runs = 0
        while killed(suffered) < given.kills:
            runs += 1
            run = folder / f"run-{runs}"
            suffered += train_through_faults(config, run, seconds, chance)
            must_be_equal(run, whole)
            print(f"run {runs} is equal, after {killed(suffered)} kills", flush=True)
        if given.fresh:
            for number in itertools.count():
                if suffered[FRESH] >= given.fresh:
                    break
                run = folder / f"fresh-{number}"
                suffered[FRESH] += kill_fresh_processes(config, run, chance)
                must_be_equal(run, whole)
    for what, count in suffered.most_common():
        print(f"{count:5}  {what}")
    print(
        f"{killed(suffered)} kills in {runs} runs, seed {given.seed}: "
        "every run ended as the undisturbed one, bit for bit"
    )


def killed(suffered: Counter[str]) -> int:
    return sum(count for name, count in suffered.items() if "kill -9" in name)


def make_config(folder: Path) -> Path:
    """Checkpoints after every other update, logged points and validations out of step with them."""
    settings = numbers_config(
        folder, max_steps=STEPS, warmup_steps=8, log_every=3, save_every=2, device="cpu",
        processes=1, gradient_accumulation=2, tokens_per_batch=400,
    )  # fmt: skip
    settings["model"] |= {"d_model": 16, "heads": 2, "d_ff": 16, "dropout": 0.1}
    settings["validation"] = {
        "every": 7, "unit": "steps", "metric": "loss", "decode": False, "keep_best": 2,
    }  # fmt: skip
    return write_config(folder, settings)


def train_through_faults(
    config: Path, run: Path, seconds: float, chance: random.Random
) -> Counter[str]:
    """Give the command again and again until the run is finished; `seconds` is what it needs."""
    suffered: Counter[str] = Counter()
    while True:
        name = chance.choice(list(FAULTS))
        damage(run, chance) if name == DAMAGE and can_be_damaged(run) else None
        status, output = train(config, run, functools.partial(FAULTS[name], chance, seconds))
        suffered[name] += "kill -9" not in name or status == -signal.SIGKILL
        if status == FINISHED:
            return suffered
        expected = [128 + signal.SIGTERM, -signal.SIGKILL, -signal.SIGTERM]
        if name == FULL:  # nothing else may end the command
            expected.append(REFUSED)
        assert status in expected, f"status {status} after {name}, {suffered}\n{output}"


def train(config: Path, run: Path, prepare: Callable[[], None]) -> tuple[int, str]:
    """Give the command in a process of its own, after `prepare`.

    Returns the exit status, negative for a signal, and what it has written on the terminal.
    """
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        try:
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            sys.stdout = os.fdopen(1, "w")  # the one before may be of a file, and ask for its place
            prepare()
            app(["train", str(config), "--run-dir", str(run)], standalone_mode=True)
        except SystemExit as end:
            os._exit(int(end.code or 0))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(99)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        output = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), output


def later(seconds: float, action: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()


def kill_at_a_random_moment(chance: random.Random, seconds: float) -> None:
    later(chance.uniform(0, 0.6 * seconds), lambda: os.kill(os.getpid(), signal.SIGKILL))


def kill_in_the_middle_of_writing(chance: random.Random, seconds: float) -> None:
    """Before, during or after one of the calls that change the run folder."""
    left = chance.randrange(1, 150)

    def deadly(real: Callable[..., object], halve: bool) -> Callable[..., object]:
        def call(*arguments, **options):
            nonlocal left
            left -= 1
            if left == 0 and halve:
                target, data = arguments
                real(target, data[: len(data) // 2])
            elif left == 0 and chance.random() < 0.5:
                real(*arguments, **options)
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    for owner, name in (
        (os, "fsync"), (os, "rename"), (os, "replace"), (os, "mkdir"), (os, "unlink"),
        (os, "rmdir"), (os, "write"), (Path, "write_bytes"),
    ):  # fmt: skip
        setattr(owner, name, deadly(getattr(owner, name), name in ("write", "write_bytes")))


def ask_to_stop(chance: random.Random, seconds: float) -> None:
    later(chance.uniform(0, seconds), lambda: os.kill(os.getpid(), signal.SIGTERM))


def fill_the_disk_for_a_while(chance: random.Random, seconds: float) -> None:
    """No file may grow beyond a few bytes: writing fails in the middle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    begin = chance.uniform(0, seconds)
    room = chance.choice([0, 100, 5_000])
    later(begin, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard)))
    end = begin + chance.uniform(0, seconds / 2)
    later(end, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)))
    pause = seconds / STEPS / 4  # so that the disk is full for several updates
    register_optimizer_step_post_hook(lambda *_: time.sleep(pause))


def set_the_clock_back(chance: random.Random, seconds: float) -> None:
    real_time, shift = time.time, chance.uniform(60, 1e8)
    time.time = lambda: real_time() - shift
    kill_at_a_random_moment(chance, seconds)


def can_be_damaged(run: Path) -> bool:
    return len(RunFolder(run).all_checkpoints()) > 1


def damage(run: Path, chance: random.Random) -> None:
    """Cut a file of the last checkpoint, or turn one bit of it."""
    newest = next(iter(RunFolder(run).all_checkpoints().values()))
    path = chance.choice(sorted(newest.iterdir()))
    content = bytearray(path.read_bytes())
    place = chance.randrange(len(content))
    if chance.random() < 0.3:
        del content[place:]
    else:
        content[place] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


FRESH = "kill -9 of a new process"
DAMAGE, FULL = "last checkpoint damaged, then kill -9", "full disk for a while"
FAULTS: dict[str, Callable[[random.Random, float], None]] = {
    "kill -9 at a random moment": kill_at_a_random_moment,
    "kill -9 while writing": kill_in_the_middle_of_writing,
    "SIGTERM": ask_to_stop,
    FULL: fill_the_disk_for_a_while,
    DAMAGE: kill_at_a_random_moment,
    "clock set back, then kill -9": set_the_clock_back,
}


def kill_fresh_processes(config: Path, run: Path, chance: random.Random) -> int:
    """As a user's machine would, a new interpreter each time; until the run is finished."""
    command = [sys.executable, "-m", "seq2seq_cli", "train", str(config), "--run-dir", str(run)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # as in this process
    kills = 0
    while True:
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
        try:
            process.wait(chance.uniform(2, 6))
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
        if process.wait() == FINISHED:
            return kills


def must_be_equal(run: Path, whole: Path) -> None:
    found = differing_results(run, whole)
    assert not found, found
    for name in ("train/loss", "valid/loss"):
        ours, theirs = (points_of(folder, name) for folder in (run, whole))
        assert ours == theirs, (name, ours, theirs)
    names, expected = ({path.name for path in files_of(folder)} for folder in (run, whole))
    assert names == expected, names ^ expected


def points_of(run: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def files_of(run: Path) -> list[Path]:
    """All but events (a file for each start), checkpoints without room, and what was damaged."""
    left_out = re.compile(r".*tfevents.*|step-\d+|.*\.(damaged|later)\d*(\.safetensors)?")
    return [path for path in run.rglob("*") if not left_out.fullmatch(path.name)]


if __name__ == "__main__":
    main()
