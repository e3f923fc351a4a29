"""Train while calls of the system fail, each on each file, and go on when they work again.

    PYTHONPATH=tests python -m faults.io_errors [--part 1/4] [--only REGEX ...]

A run is started, resumed and ended. A preloaded library lists every call on every file; then each
of them fails with each error that it may have, once and always. Whatever happens, the command must
name file and error, or not need what failed. It must remove nothing intact, take nothing for
damaged, and the same command, given again, must end with the bits of the undisturbed run.
"""

import argparse
import ctypes
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from compiling import COMPILER
from number_task import numbers_config, write_config

HERE = Path(__file__).parent
STEPS, MIDDLE = 4, 3
ALWAYS = 1 << 30
SYSTEM = (errno.EIO, errno.ESTALE)
ERRORS = {  # by operation
    "open": (*SYSTEM, errno.ENOENT, errno.EMFILE, errno.ENOMEM, errno.ENOSPC, errno.EACCES),
    "list": (*SYSTEM, errno.ENOENT, errno.EMFILE, errno.ENOMEM, errno.EACCES),
    "read": (*SYSTEM, errno.ENOMEM),
    "write": (*SYSTEM, errno.ENOSPC),
    "sync": (errno.EIO, errno.ENOSPC),
    "lock": SYSTEM,
    "stat": (*SYSTEM, errno.ENOENT, errno.ENOMEM, errno.EACCES),
    "mkdir": (errno.EIO, errno.ENOSPC, errno.EACCES),
    "rename": (errno.EIO, errno.ENOENT, errno.ENOSPC, errno.EACCES),
    "remove": (errno.EIO, errno.EACCES),
}


class Case(NamedTuple):
    phase: str
    operation: str
    path: str  # in the work folder; * stands for random and changing parts
    number: int  # of the call that fails, from 1 on; 0: all
    error: int

    def __str__(self) -> str:
        which = f"call {self.number}" if self.number else "every call"
        name = errno.errorcode[self.error]
        return f"{self.phase}: {name} at {which} of {self.operation} {self.path}"


class Outcome(NamedTuple):
    """How a case ended, and what is wrong with that."""

    status: int
    complaints: list[str]


class Place(NamedTuple):
    """The folders of the matrix."""

    root: Path

    @property
    def work(self) -> Path:
        """Run and cache, always at the same path."""
        return self.root / "work"

    @property
    def run(self) -> Path:
        return self.work / "run"

    def base(self, phase: str) -> Path:
        """Run and cache as they are when the command of this phase is given."""
        return self.root / f"base-{phase}"

    @property
    def whole(self) -> Path:
        return self.root / "whole"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", default="1/1", help="part K of N of the cases")
    parser.add_argument("--only", action="append", help="cases with this in their description")
    given = parser.parse_args()
    number, parts = map(int, given.part.split("/"))
    with tempfile.TemporaryDirectory(prefix="seq2seq-faults-") as name:
        if "io_faults" not in os.environ.get("LD_PRELOAD", ""):
            command = [sys.executable, "-m", "faults.io_errors", *sys.argv[1:]]
            sys.exit(subprocess.call(command, env=preloaded(Path(name))))
        place = Place(Path(name).resolve())
        config = prepare(place)
        wanted = given.only or [""]
        every = [c for c in cases(place, config) if any(re.search(part, str(c)) for part in wanted)]
        chosen = every[number - 1 :: parts]
        started, statuses, failed = time.monotonic(), Counter[int](), 0
        for case in chosen:
            status, complaints = outcome(place, config, case)
            statuses[status] += 1
            failed += bool(complaints)
            for complaint in complaints:
                print(f"{case}: {complaint}", flush=True)
    went_on, stopped = statuses[0], statuses[2]
    print(
        f"{len(chosen):,} of {len(every):,} cases in {time.monotonic() - started:,.0f} s: "
        f"{stopped:,} stopped with status 2, {went_on:,} went on, {failed:,} failed"
    )
    sys.exit(bool(failed))


def preloaded(folder: Path) -> dict[str, str]:
    """Compile the library; return the environment of a process that loads it first."""
    library = folder / "io_faults.so"
    assert COMPILER is not None
    command = [COMPILER, "-O1", "-shared", "-fPIC", HERE / "io_faults.c", "-o", library, "-ldl"]
    subprocess.run(command, check=True)
    # A command that reads pyproject.toml and the like runs in the folder of the tests.
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": os.pathsep.join(paths)}


def prepare(place: Place) -> Path:
    """Train the run that nothing disturbs, and what the phases start from; return the config."""
    import torch

    torch.set_num_threads(1)
    os.environ["SEQ2SEQ_CACHE"] = str(place.work / "cache")
    settings = numbers_config(
        place.root, 60, max_steps=STEPS, warmup_steps=2, log_every=1, save_every=2, device="cpu",
        processes=1, tokens_per_batch=200, average_checkpoints=2, ema_decay=0.9, keep_last=2,
    )  # fmt: skip
    settings["model"] |= {"d_model": 8, "heads": 2, "d_ff": 8}
    settings["validation"] = {
        "every": 2, "unit": "steps", "metric": "loss", "decode": False, "keep_best": 2,
    }  # fmt: skip
    config = write_config(place.root, settings)
    place.base("start").mkdir()
    for phase, step in (("resume", MIDDLE), ("end", STEPS)):
        train(place, config, stop=step)
        shutil.copytree(place.work, place.base(phase))
        shutil.rmtree(place.work)
    status, output = train(place, config)
    assert status == 0, output
    place.run.rename(place.whole)
    return config


def train(
    place: Place, config: Path, faults: tuple[object, ...] = (), stop: int | None = None
) -> tuple[int, str]:
    """Give the command in a fork, in which calls fail; return status and output."""
    from bare_runs import stop_at
    from faults.kills import train as train_in_fork

    from seq2seq_cli.config.loader import load_config
    from seq2seq_cli.training import loop

    def begin() -> None:
        signal.alarm(60)  # a command that hangs
        if stop is not None:
            loop.train(load_config(config), place.run, hooks=stop_at(stop))
            os._exit(0)
        if faults:
            ctypes.CDLL(None).io_faults(*faults)

    return train_in_fork(config, place.run, begin)


def cases(place: Place, config: Path) -> Iterator[Case]:
    """Every call of an undisturbed command on every file of run, cache and text."""
    for phase in ("start", "resume", "end"):
        set_up(place, phase)
        log = place.root / "calls"
        with log.open("wb") as file:
            faults = (f"{place.root}/*".encode(), b"", 0, 0, 0, file.fileno())
            status, output = train(place, config, faults)
        assert status == 0, output
        calls = [line.split(" ", 1) for line in log.read_text().splitlines()]
        counts = Counter((call, pattern_of(path, place)) for call, path in calls)
        for (operation, pattern), count in sorted(counts.items()):
            for error in ERRORS[operation]:
                yield Case(phase, operation, pattern, 0, error)
            if count > 1:  # one of them
                yield Case(phase, operation, pattern, (count + 1) // 2, ERRORS[operation][0])


def pattern_of(path: str, place: Place) -> str:
    """Return a path with * for what is random, or changes with the time."""
    path = path.removeprefix(f"{place.root}/")
    path = re.sub(r"\.[0-9a-f]{8}\.(part|new)", r".*.\1", path)
    path = re.sub(r"\.part-\w+", ".part-*", path)
    path = re.sub(r"tfevents\.[1-9]\d*", "tfevents.[1-9]*", path)
    return re.sub(r"\d{10}\.hparams", "*.hparams", path)


def set_up(place: Place, phase: str) -> None:
    shutil.rmtree(place.work, ignore_errors=True)
    shutil.copytree(place.base(phase), place.work)


def outcome(place: Place, config: Path, case: Case) -> Outcome:
    """Give the command of a case while calls fail, and then once more."""
    from seq2seq_cli.commands.diff import differing_results

    set_up(place, case.phase)
    before = kept(place)
    number = (case.number, case.number) if case.number else (1, ALWAYS)
    faults = (f"{place.root}/{case.path}".encode(), case.operation.encode(), *number, case.error)
    status, output = train(place, config, (*faults, -1))
    complaints = []
    if status not in (0, 2):
        complaints.append(f"status {status}\n{output}")
    elif "Traceback" in output:
        complaints.append(f"a traceback\n{output}")
    elif status == 2 and not names_cause(case, output):
        complaints.append(f"the cause is not named:\n{output}")
    if re.search("looking for the checkpoint before it|is left out", output):
        complaints.append(f"something is taken for damaged\n{output}")
    after = kept(place)
    complaints += [f"{name} is gone" for name in sorted(before - after)]
    if aside := [path.name for path in place.run.rglob("*") if is_aside(path)]:
        complaints.append(f"{', '.join(aside)} was set aside")
    status_again, output_again = train(place, config)
    if status_again:
        complaints.append(f"status {status_again} without the fault\n{output_again}")
    elif differing := differing_results(place.run, place.whole):
        complaints.append(f"then: {differing}\n{output}\nwithout the fault:\n{output_again}")
    elif differing := names_of(place.whole) - names_of(place.run):
        complaints.append(f"then missing: {differing}\n{output}")
    elif [name for name in names_of(place.run) if name.endswith(".part")]:
        complaints.append(f"half-written files are left\n{output}")
    return Outcome(status, complaints)


def names_of(run: Path) -> set[str]:
    """Return the files of a finished run that do not depend on where it was resumed.

    Logs are not written as long as calls fail, and which older checkpoints there are depends on
    where it stopped.
    """
    names = {str(path.relative_to(run)) for path in run.rglob("*")}
    last = f"checkpoints/step-{STEPS:08}/"
    return {
        name
        for name in names
        if "tfevents" not in name
        and name != "train.log"
        and ("checkpoints" not in name or name.startswith(last) or name.endswith(".part"))
    }


def kept(place: Place) -> set[str]:
    """Return what no fault may remove: a last checkpoint, a best model, the ids in the cache."""
    from seq2seq_cli.run_folder import RunFolder

    run = RunFolder(place.run)
    found = {"model.safetensors"} if run.model.exists() else set()
    if run.last_checkpoint is not None:
        found |= {f"last checkpoint: {path.name}" for path in run.last_checkpoint.iterdir()}
        found.add("a checkpoint")
    ids = (place.work / "cache").glob("*/*.ids")
    return found | {f"{path.parent.name}/{path.name} {path.stat().st_ino}" for path in ids}


def is_aside(path: Path) -> bool:
    return ".damaged" in path.name or ".later" in path.name


def names_cause(case: Case, output: str) -> bool:
    """Return True if a message has the error in words and the file, or the folder it is in."""
    file = case.path.partition("*")[0].rstrip(".").split("/")
    is_named = any(name and name in output for name in (file[-1], *file[-2:-1]))
    words = [os.strerror(case.error)]
    if case.error == errno.ENOENT:  # which is what it looks like when a file is not there
        words += ["missing", "there is no", "has no", "but no", "another process"]
        words.append(os.strerror(errno.EEXIST))
    return is_named and any(word in output for word in words)


if __name__ == "__main__":
    main()
