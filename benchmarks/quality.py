"""Whether speed costs quality: the default against plain training, three seeds each.

python benchmarks/quality.py CONFIG [--plain WAY] [--seeds 3] [--jobs 2] [--set KEY=VALUE ...]

Prints the scores of the last validation of every run, and their means. "plain fp32" is what
`ablation.py` calls "no optimization, fp32"; "without kernels" trains with PyTorch's operations
instead of the fused ones in C.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ablation import everything_plain

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.machine import torch_environment
from seq2seq_cli.training.loop import train

PLAIN = ("plain fp32", "without kernels")
METRICS = ("valid/loss", "valid/bleu", "valid/exact_match")


def run_plain(config: str, overrides: list[str], run_dir: str) -> None:
    """In a process of its own."""
    everything_plain()
    train(load_config(Path(config), [*overrides, "training.precision=fp32"]), Path(run_dir))


def scores_of(way: str, config: str, overrides: list[str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = f"{folder}/run"
        if way == "plain fp32":
            command = [sys.executable, __file__, config, "--plain-run", run_dir]
        else:
            command = [sys.executable, "-m", "seq2seq_cli", "train", config, "--run-dir", run_dir]
        settings = [f"--set={override}" for override in overrides]
        environment = {**torch_environment(), "OMP_NUM_THREADS": "1"}
        if way == "without kernels":
            environment["SEQ2SEQ_CPU_ISA"] = "plain"
        subprocess.run(
            [*command, *settings], check=True, stdout=subprocess.DEVNULL, env=environment
        )
        points = map(json.loads, Path(run_dir, "metrics.jsonl").read_text().splitlines())
        return [point for point in points if "valid/loss" in point][-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("--plain", choices=PLAIN, default=PLAIN[0], help="what to compare with")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, each with one thread")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--plain-run", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.plain_run:
        run_plain(given.config, given.overrides, given.plain_run)
        return
    tasks = [(way, seed) for seed in range(1, given.seeds + 1) for way in ("default", given.plain)]

    def scores(task: tuple[str, int]) -> list[float]:
        way, seed = task
        point = scores_of(
            way, given.config, ["training.processes=1", f"training.seed={seed}", *given.overrides]
        )
        return [point[metric] for metric in METRICS]

    print("| way | seed | loss | BLEU | exact match % |\n|---|---|---|---|---|")
    found: dict[str, list[list[float]]] = {"default": [], given.plain: []}
    with ThreadPoolExecutor(given.jobs) as pool:
        for (way, seed), row in zip(tasks, pool.map(scores, tasks), strict=True):
            found[way].append(row)
            print(f"| {way} | {seed} | " + " | ".join(f"{x:.3f}" for x in row) + " |", flush=True)
    for way, rows in found.items():
        means = [statistics.mean(column) for column in zip(*rows, strict=True)]
        spread = [statistics.stdev(column) for column in zip(*rows, strict=True)]
        cells = (f"{m:.3f} ± {s:.3f}" for m, s in zip(means, spread, strict=True))
        print(f"| {way} | mean | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
