"""What subword sampling costs: tokens per second of training with and without it, in turn.

python benchmarks/subword_sampling.py CONFIG FOLDER [--strength 0.1] [--rounds 3] [--set KEY=VALUE]

On an otherwise idle machine. Every run is `seq2seq train` with 256 updates and no validation, of
which the first 128 are left out. Both runs of a round start together, and each is stopped for ten
seconds while the other one works, so that a machine that becomes slower does so for both. FOLDER
receives the runs. Prints speeds and ratios.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from seq2seq_cli.machine import torch_environment

AT_ONCE = 128  # sentences of so many batches are sampled together, so a point spans a whole pool
SECONDS_IN_TURN = 10
OPTIONS = {
    "max_steps": 2 * AT_ONCE,
    "warmup_steps": 1,
    "log_every": AT_ONCE,
    "save_every": "null",
}


class Run:
    """A training that works only when it is asked to, in processes of its own."""

    def __init__(self, config: Path, run_dir: Path, overrides: list[str]) -> None:
        sets = [f"training.{name}={value}" for name, value in OPTIONS.items()]
        sets += ["validation.every=1000000", "validation.unit=steps", *overrides]
        command = [sys.executable, "-m", "seq2seq_cli", "train", str(config)]
        command += ["--run-dir", str(run_dir)]
        command += [part for override in sets for part in ("--set", override)]
        self._process = subprocess.Popen(
            command, env=torch_environment(), stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._metrics = run_dir / "metrics.jsonl"
        self._seconds = 0.0
        self._seconds_at: list[float] = []  # when each point was logged
        self._signal(signal.SIGSTOP)

    def work(self) -> None:
        """Let it go on for ten seconds, or to the second point, which is its end."""
        self._signal(signal.SIGCONT)
        started = time.perf_counter()
        while time.perf_counter() - started < SECONDS_IN_TURN and not self.is_measured:
            time.sleep(0.02)
            assert not self._process.poll(), "the training failed"
            if len(self._points()) > len(self._seconds_at):
                self._seconds_at.append(self._seconds + time.perf_counter() - started)
        self._seconds += time.perf_counter() - started
        self._signal(signal.SIGKILL if self.is_measured else signal.SIGSTOP)

    @property
    def is_measured(self) -> bool:
        return len(self._seconds_at) == 2

    def tokens_per_second(self) -> float:
        """Return target tokens over the seconds of work between the points."""
        first, second = self._seconds_at
        return self._points()[1]["train/tokens"] / (second - first)

    def _points(self) -> list[dict[str, float]]:
        if not self._metrics.exists():
            return []
        points = map(json.loads, self._metrics.read_text().splitlines())
        return [point for point in points if "train/loss" in point]

    def _signal(self, number: int) -> None:
        os.killpg(self._process.pid, number)


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
        runs = []
        for name, strength in (("plain", "null"), ("sampled", given.strength)):
            overrides = [*given.overrides, f"training.subword_sampling={strength}"]
            runs.append(Run(given.config, given.folder / f"{name}-{number}", overrides))
        while not all(run.is_measured for run in runs):
            for run in runs:
                if not run.is_measured:
                    run.work()
        speeds = [run.tokens_per_second() for run in runs]
        ratios.append(speeds[1] / speeds[0])
        plain, sampled = speeds
        print(f"plain {plain:,.0f}, sampled {sampled:,.0f} tokens/s: {ratios[-1]:.3f}", flush=True)
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    print(f"ratio {middle:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
