"""Strong and weak scaling of training, and a model of it for more machines than are here.

python benchmarks/scaling.py [--rounds 3] [--updates 40]

Each process has one thread. Strong: the same batch for one process and for two; weak: twice the
batch for two. The configurations take turns. Then the speed of summing gradients is measured
between two processes, and the last table computes what networks of other speeds would leave.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import distributed

ROOT = Path(__file__).parent.parent
MODELS = {
    "small": {"d_model": 256, "heads": 4, "layers": 3, "d_ff": 1024},
    "base": {"d_model": 512, "heads": 8, "layers": 6, "d_ff": 2048},
}
TOKENS = 2_048  # of a batch
VOCAB_SIZE = 1_100
MEGABYTES = (0.004, 1, 64)
NODES = (2, 4, 8, 16, 32, 64)
NETWORKS = {"10 Gbit/s": 10e9 / 8, "100 Gbit/s": 100e9 / 8}
EFFICIENCY = 0.7  # of the network, that a large message reaches
LATENCY = 50e-6  # seconds of a message between machines
GPU_FACTOR, GPU_TOKENS = 200, 25_000  # as many times as fast as a thread here; tokens of its batch
GPU = f"{GPU_FACTOR} times as fast, {GPU_TOKENS:,} tokens"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=40)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        config = write_config(Path(name))
        runs = {
            (model, kind, count): (model, TOKENS * (count if kind == "weak" else 1), count)
            for model in MODELS
            for kind, count in (("one process", 1), ("strong", 2), ("weak", 2))
        }
        found: dict[tuple[str, str, int], list[dict[str, Any]]] = {run: [] for run in runs}
        for _ in range(given.rounds):
            for run, (model, tokens, count) in runs.items():
                found[run].append(measured(config, model, tokens, count, given.updates))
    columns = ("model", "scaling", "processes", "tokens/s", "of ideal", "waiting", "communication")
    print(f"| {' | '.join(columns)} |\n|---|---|--:|--:|--:|--:|--:|")
    for (model, kind, count), speeds in found.items():
        alone = [speed["tokens_per_second"] for speed in found[model, "one process", 1]]
        ratios = [s["tokens_per_second"] / a / count for s, a in zip(speeds, alone, strict=True)]
        cells = [
            spread([speed["tokens_per_second"] for speed in speeds], ",.0f"),
            spread(ratios, ".0%"),
            *(
                spread([speed[f"ms_{part}"] / speed["ms_per_update"] for speed in speeds], ".1%")
                for part in ("waiting", "communication")
            ),
        ]
        print(f"| {model} | {kind} | {count} | {' | '.join(cells)} |")
    print("\n| MB | ms of an all-reduce | MB/s |\n|--:|--:|--:|")
    for megabytes in MEGABYTES:
        seconds = seconds_of_all_reduce(megabytes)
        print(f"| {megabytes:g} | {1e3 * seconds:.2f} | {megabytes / seconds:,.0f} |")
    print_model({model: found[model, "one process", 1] for model in MODELS})


def write_config(folder: Path) -> Path:
    text = ROOT / "data/quickstart"
    settings = {
        "data": {"train": {"src": str(text / "train.de"), "tgt": str(text / "train.en")}},
        "tokenizer": {"kind": "unigram", "vocab_size": VOCAB_SIZE},
        "training": {"max_steps": 1_000, "device": "cpu", "warmup_steps": 10},
    }
    path = folder / "scaling.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def measured(config: Path, model: str, tokens: int, count: int, updates: int) -> dict[str, Any]:
    options = {f"model.{name}": value for name, value in MODELS[model].items()}
    options |= {"training.tokens_per_batch": tokens, "training.processes": count}
    given = [part for name, value in options.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "seq2seq_cli", "bench", "train", str(config), *given]
    run = subprocess.run(
        [*command, "--json", "--updates", str(updates), "--warmup", "5"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    speed: dict[str, Any] = json.loads(run.stdout)
    return speed


def spread(values: list[float], form: str) -> str:
    middle = f"{statistics.median(values):{form}}"
    return f"{middle} ({min(values):{form}} to {max(values):{form}})"


def seconds_of_all_reduce(megabytes: float, repeats: int = 20) -> float:
    """Return the median seconds of an all-reduce of gloo between two processes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds"
        arguments = (f"{folder}/meeting", megabytes, repeats, out)
        torch.multiprocessing.spawn(_all_reduce, arguments, nprocs=2)
        return float(out.read_text())


def _all_reduce(rank: int, meeting: str, megabytes: float, repeats: int, out: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    numbers, seconds = torch.zeros(int(megabytes * 1e6 / 4)), []
    for _ in range(repeats):
        distributed.barrier()
        started = time.perf_counter()
        distributed.all_reduce(numbers)
        seconds.append(time.perf_counter() - started)
    if rank == 0:
        out.write_text(str(statistics.median(seconds)))
    distributed.destroy_process_group()


def print_model(alone: dict[str, list[dict[str, Any]]]) -> None:
    """Print the share of ideal weak scaling that a ring all-reduce after each update leaves.

    2 (n - 1) / n of the bytes of the gradients pass each machine, in 2 (n - 1) messages
    (Patarasuk and Yuan 2009).
    """
    print(
        f"\n| model | MB of gradients | ms of an update | network | {' | '.join(map(str, NODES))} |"
    )
    print(f"|---|--:|--:|---|{'--:|' * len(NODES)}")
    for model, speeds in alone.items():
        num_bytes = 4 * num_parameters(MODELS[model])
        here = statistics.median(speed["ms_per_update"] for speed in speeds) / 1e3
        speed = statistics.median(speed["tokens_per_second"] for speed in speeds)
        for kind, update in (("this processor", here), (GPU, GPU_TOKENS / (GPU_FACTOR * speed))):
            for network, bandwidth in NETWORKS.items():
                cells = []
                for nodes in NODES:
                    passing = 2 * (nodes - 1) / nodes * num_bytes / (EFFICIENCY * bandwidth)
                    cells.append(f"{update / (update + passing + 2 * (nodes - 1) * LATENCY):.0%}")
                row = [f"{model}, {kind}", f"{num_bytes / 1e6:.0f}", f"{1e3 * update:,.1f}"]
                print(f"| {' | '.join([*row, network, *cells])} |")


def num_parameters(model: dict[str, int]) -> int:
    """Nearly: of attention and feed-forward layers, and of one table of embeddings."""
    square, feed_forward = model["d_model"] ** 2, 2 * model["d_model"] * model["d_ff"]
    return model["layers"] * (12 * square + 2 * feed_forward) + VOCAB_SIZE * model["d_model"]


if __name__ == "__main__":
    main()
