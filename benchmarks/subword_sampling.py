"""What subword sampling costs: tokens per second of training with and without it, in turn.

python benchmarks/subword_sampling.py CONFIG FOLDER [--strength 0.1] [--rounds 3] [--set KEY=VALUE]

On an otherwise idle machine. Every run is `seq2seq train` with 256 updates and no validation, of
which the first 128 are left out. FOLDER receives the runs. Prints speeds and ratios.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from seq2seq_cli.machine import torch_environment

AT_ONCE = 128  # sentences of so many batches are sampled together, so a point spans a whole pool
OPTIONS = {
    "max_steps": 2 * AT_ONCE,
    "warmup_steps": 1,
    "log_every": AT_ONCE,
    "save_every": "null",
}


def tokens_per_second(config: Path, run: Path, overrides: list[str]) -> float:
    sets = [f"training.{name}={value}" for name, value in OPTIONS.items()]
    sets += ["validation.every=1000000", "validation.unit=steps", *overrides]
    command = [sys.executable, "-m", "seq2seq_cli", "train", str(config), "--run-dir", str(run)]
    command += [part for override in sets for part in ("--set", override)]
    subprocess.run(command, check=True, env=torch_environment(), stderr=subprocess.DEVNULL)
    points = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    _, measured = (point["train/tokens_per_second"] for point in points if "train/loss" in point)
    return float(measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--strength", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", dest="overrides")
    given = parser.parse_args()
    ratios = []
    for number in range(1, given.rounds + 1):
        speeds = []
        for name, strength in (("plain", "null"), ("sampled", given.strength)):
            overrides = [*given.overrides, f"training.subword_sampling={strength}"]
            run = given.folder / f"{name}-{number}"
            speeds.append(tokens_per_second(given.config, run, overrides))
        ratios.append(speeds[1] / speeds[0])
        plain, sampled = speeds
        print(f"plain {plain:,.0f}, sampled {sampled:,.0f} tokens/s: {ratios[-1]:.3f}", flush=True)
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    print(f"ratio {middle:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
