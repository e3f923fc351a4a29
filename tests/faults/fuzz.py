"""A fuzzer: gives damaged configs, texts, tokenizers and run folders to the commands.

    PYTHONPATH=tests python -m faults.fuzz --minutes 30 --seed 1
    PYTHONPATH=tests python -m faults.fuzz --seed 1 --only 4711      (one case again)

Every case is a process of its own with a limit of time and memory. A case passes if the command
succeeds and nothing is lost, or if it ends with exit status 2 and a short message; and if it leaves
what it was given as it was.
"""

import argparse
import hashlib
import itertools
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import NamedTuple

import sacrebleu  # noqa: F401 (these are imported once, and not in every case)
import torch
from faults.cases import CASES, Case
from faults.victims import KINDS, call, make_run

from seq2seq_cli.commands import score  # noqa: F401
from seq2seq_cli.decoding.lines import stream  # noqa: F401
from seq2seq_cli.training import loop  # noqa: F401
from seq2seq_cli.training.logging import summary  # noqa: F401

SECONDS = 60  # of a processor's time for one case; they take some hundredths
PATIENCE = 600  # seconds, should one wait for something that never comes
MEMORY = 4 << 30  # bytes that a case may take beyond what the fuzzer has
MESSAGE_LINES, MESSAGE_LENGTH = 40, 20_000


class Outcome(NamedTuple):
    """`success`, `refused`, or what went wrong with details."""

    kind: str
    details: str = ""


def judged(case: Case, folder: Path) -> Outcome:
    """Run the case's command and classify its outcome."""
    before = contents_of(folder, case.may_change)
    try:
        result = call(*case.arguments, stdin=case.stdin)
    except BaseException:
        return Outcome("traceback", traceback.format_exc(limit=-8))
    if "Traceback (most recent call last)" in result.stderr:
        return Outcome("traceback", result.stderr)
    changed = [
        name
        for name, hashed in contents_of(folder, case.may_change).items()
        if before.get(name) != hashed
    ]
    if changed or before.keys() - contents_of(folder, case.may_change).keys():
        return Outcome("changed input", f"{changed}")
    if left := [path.name for path in folder.rglob("*.part*")]:
        return Outcome("half-written", f"{left}")
    if result.exit_code == 0:
        lost = case.loss(result)
        return Outcome("loss", lost) if lost else Outcome("success")
    message = result.stderr.partition("error: ")[2] or result.stderr.partition("Error")[2]
    if result.exit_code != 2 or not message:
        return Outcome("status", f"{result.exit_code}: {result.stderr[-2_000:]}")
    if len(message.splitlines()) > MESSAGE_LINES or len(message) > MESSAGE_LENGTH:
        return Outcome("long message", message[:2_000])
    if "Usage: " in result.stderr:  # the mistake is this script's
        return Outcome("usage", message)
    return Outcome("refused", message)


def contents_of(folder: Path, left_out: tuple[str, ...]) -> dict[str, str]:
    """Hashes of the files by name."""
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
        and not (name := str(path.relative_to(folder))).startswith((*left_out, "cache"))
    }


def one_case(seed: int, number: int, victims: Path, folder: Path, answer: Connection) -> None:
    """Create the case, run it in a process of its own, and return its name and outcome."""
    random = Random(f"{seed}/{number}")
    names = list(CASES)
    name = random.choices(names, [CASES[name][0] for name in names])[0]
    kind = random.choice(KINDS)
    shutil.copytree(victims / kind, folder)
    config = folder / "numbers.yaml"
    for path in (config, folder / "run" / "config.yaml"):
        path.write_text(path.read_text().replace(str(victims / kind), str(folder)))
    os.environ["SEQ2SEQ_CACHE"] = str(folder / "cache")
    os.chdir(folder)
    native = os.open(folder.with_suffix(".native"), os.O_CREAT | os.O_WRONLY)
    os.dup2(native, 1)  # what libraries print themselves
    os.dup2(native, 2)
    case = CASES[name][1](random, folder)
    answer.send((name, case.arguments))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    answer.send(judged(case, folder))
    answer.close()
    os._exit(0)


def watched(
    seed: int, number: int, victims: Path, folder: Path
) -> tuple[str, list[object], Outcome]:
    """Run one case with a time limit."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=one_case, args=(seed, number, victims, folder, sender))
    process.start()
    sender.close()
    name, arguments = "unknown", []
    try:
        name, arguments = receiver.recv()
        if receiver.poll(PATIENCE):
            return name, arguments, receiver.recv()
        return name, arguments, Outcome("hang", f"still waiting after {PATIENCE} s")
    except EOFError:
        process.join()
        said = folder.with_suffix(".native").read_text(errors="replace")[-2_000:]
        if process.exitcode == -signal.SIGXCPU:
            return name, arguments, Outcome("hang", f"more than {SECONDS} s")
        return name, arguments, Outcome("crash", f"exit code {process.exitcode}; {said}")
    finally:
        process.kill()
        process.join()


def fuzz(seed: int, numbers: Iterator[int], seconds: float, kept: Path) -> Counter[tuple[str, str]]:
    """Run cases until the time is up; print and keep those that fail."""
    counts: Counter[tuple[str, str]] = Counter()
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        for kind in KINDS:  # in other processes: this one must have no threads when it is copied
            process = multiprocessing.get_context("fork").Process(
                target=make_run, args=(folder / kind, kind)
            )
            process.start()
            process.join()
        for number in numbers:
            if time.monotonic() > end:
                break
            place = folder / "case"
            what, arguments, outcome = watched(seed, number, folder, place)
            counts[what, outcome.kind] += 1
            if outcome.kind not in ("success", "refused"):
                target = kept / f"{seed}-{number}"
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(place, target)
                shown = " ".join(map(str, arguments))[:500]
                print(
                    f"case {number} ({what}): {outcome.kind}\n  {shown}\n{outcome.details}",
                    flush=True,
                )
            shutil.rmtree(place, ignore_errors=True)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--cases", type=int, help="at most so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", type=int, help="number of the one case to run")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="for what fails")
    given = parser.parse_args()
    torch.set_num_threads(1)
    numbers = itertools.count(given.first) if given.only is None else iter([given.only])
    counts = fuzz(
        given.seed, itertools.islice(numbers, given.cases), 60 * given.minutes, given.keep
    )
    print(f"seed {given.seed}, {sum(counts.values()):,} cases")
    for (what, outcome), count in sorted(counts.items()):
        print(f"{what:<12} {outcome:<16} {count:>7,}")
    sys.exit(any(outcome not in ("success", "refused") for _, outcome in counts))


if __name__ == "__main__":
    main()
