"""What starting processes that train costs: new interpreters beside forks of one with the imports.

python benchmarks/processes.py [--processes 1 2 4] [--rounds 5]

Each process makes the imports of training. Prints the median seconds from the first call until all
have made them, and their memory then (proportional set size), the server of the forks included.
Linux only.
"""

import argparse
import importlib
import multiprocessing
import statistics
import subprocess
import sys
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

from seq2seq_cli.processes import process_context
from seq2seq_cli.training.parallel.launcher import TRAINING_IMPORTS

METHODS = ("spawn", "forkserver")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", nargs=2, metavar=("METHOD", "COUNT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(*measured(given.measure[0], int(given.measure[1])))
        return
    print("| processes | method | seconds | MiB |\n|--:|---|--:|--:|")
    for count in given.processes:
        found: dict[str, list[tuple[float, float]]] = {method: [] for method in METHODS}
        for _ in range(given.rounds):
            for method in METHODS:
                command = [sys.executable, __file__, "--measure", method, str(count)]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                seconds, memory = map(float, output.split())
                found[method].append((seconds, memory))
        for method, pairs in found.items():
            seconds, memory = zip(*pairs, strict=True)
            row = f"| {count} | {method} | {spread(seconds, '.1f')} | {spread(memory, ',.0f')} |"
            print(row, flush=True)


def spread(values: tuple[float, ...], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def measured(method: str, count: int) -> tuple[float, float]:
    """Return seconds and MiB of so many processes that are started by this new one."""
    started = time.perf_counter()
    if method == "spawn":
        context = multiprocessing.get_context("spawn")
    else:
        context = process_context(*TRAINING_IMPORTS)
    ready, done = (context.Barrier(count + 1) for _ in range(2))
    workers = [context.Process(target=work, args=(ready, done)) for _ in range(count)]
    for worker in workers:
        worker.start()
    ready.wait()
    seconds = time.perf_counter() - started
    this = multiprocessing.current_process().pid
    memory = sum(memory_of(pid) for pid in descendants(this))
    done.wait()
    for worker in workers:
        worker.join()
    return round(seconds, 2), round(memory / 1024, 1)


def work(ready: Barrier, done: Barrier) -> None:
    for name in TRAINING_IMPORTS:
        importlib.import_module(name)
    ready.wait()
    done.wait()


def descendants(pid: int) -> list[int]:
    children = [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    return children + [below for child in children for below in descendants(child)]


def memory_of(pid: int) -> int:
    """Return the proportional set size in KB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1])


if __name__ == "__main__":
    main()
