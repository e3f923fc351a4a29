"""What a batch consists of: padding against variety, for the plan of an epoch and for others.

python benchmarks/batches.py CONFIG [CONFIG ...] [--plans longer keys ...] [--seeds 1 2]

Trains each config with each plan and seed, one process of one thread after the other, and prints a
row for each: what the last validation says, the share of padding, and CPU time. The plans:

* longer: the project's own (`data/batch_plan.py: plan_epoch`): pairs in random order, sorted by the
  longer side;
* keys: sorted by the longer side, then by how much longer it is than the other side, up and down in
  turn: the least padding, and the project's own plan until 2026-11-22;
* noiseN: sorted by the longer side plus up to N tokens of noise, drawn anew in each epoch;
* poolN: random pools of as many pairs as N batches hold, each sorted by the longer side;
* random: not sorted at all.
"""

import argparse
import json
import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

HEADER = """| config | plan | seed | epochs | loss | BLEU | exact | padding | tokens/s | CPU s |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"""

Order = Callable[..., np.ndarray]  # of the pairs, from source lengths, target lengths, generator


def by_keys(src: np.ndarray, tgt: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    longer, difference = np.maximum(src, tgt), src - tgt
    turning = np.where(longer % 2, difference, -difference)
    return np.lexsort((generator.permutation(len(src)), turning, longer))


def by_noisy_length(
    src: np.ndarray, tgt: np.ndarray, generator: np.random.Generator, *, noise: float
) -> np.ndarray:
    return np.argsort(np.maximum(src, tgt) + generator.uniform(0, noise, len(src)))


def in_random_order(src: np.ndarray, _: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return generator.permutation(len(src))


def plan_of(name: str) -> Callable[..., list[np.ndarray]] | None:
    """A function in place of `plan_epoch`; None for the project's own."""
    from seq2seq_cli.data import batch_plan

    kind, digits = re.fullmatch(r"([a-z]+)([\d.]*)", name).groups()
    if kind == "longer":
        return None
    number = float(digits or 0)
    orders: dict[str, Order] = {
        "keys": by_keys,
        "noise": partial(by_noisy_length, noise=number),
        "pool": partial(by_noisy_length, noise=0.5),
        "random": in_random_order,
    }

    def plan(src, tgt, tokens_per_batch, seed, epoch, pairs=None):
        generator = np.random.default_rng([seed, epoch])
        pairs = np.arange(len(src), dtype=np.int32) if pairs is None else pairs
        longer = np.maximum(src, tgt)
        size = len(pairs)
        if kind == "pool":
            size = max(1, int(number * tokens_per_batch / longer[pairs].mean()))
        shuffled, found = generator.permutation(pairs), []
        for start in range(0, len(pairs), size):
            pool = shuffled[start : start + size]
            order = pool[orders[kind](src[pool], tgt[pool], generator)]
            found += batch_plan.split_into_batches(order, longer[order], tokens_per_batch)
        return [found[i] for i in generator.permutation(len(found))]

    return plan


def train_with(plan: str, seed: int, config: str) -> str:
    """Train in this process, and return its row."""
    from seq2seq_cli.config.loader import load_config
    from seq2seq_cli.data import batch_plan
    from seq2seq_cli.training.loop import train

    batch_plan.plan_epoch = plan_of(plan) or batch_plan.plan_epoch
    options = [f"training.seed={seed}", "training.processes=1"]
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        train(load_config(Path(config), options), Path(folder) / "run")
        seconds = time.process_time() - started
        lines = (Path(folder) / "run/metrics.jsonl").read_text().splitlines()
    points = [json.loads(line) for line in lines]
    trained = [point for point in points if "train/loss" in point]
    last = [point for point in points if "valid/loss" in point][-1]
    padding, speed = (
        sum(point[f"train/{name}"] for point in trained) / len(trained)
        for name in ("padding", "tokens_per_second")
    )
    return (
        f"| {Path(config).stem} | {plan} | {seed} | {trained[-1]['train/epoch']} | "
        f"{last['valid/loss']:.4f} | {last['valid/bleu']:.2f} | {last['valid/exact_match']:.1f} | "
        f"{padding:.1%} | {speed:,.0f} | {seconds:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configs", nargs="+")
    parser.add_argument("--plans", nargs="+", default=["longer", "keys"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    print(HEADER)
    trainings = [(p, s, c) for c in given.configs for s in given.seeds for p in given.plans]
    for training in trainings:
        with multiprocessing.get_context("spawn").Pool(1) as one_process:
            print(one_process.apply(train_with, training), flush=True)


if __name__ == "__main__":
    main()
