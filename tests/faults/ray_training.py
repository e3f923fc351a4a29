"""Train with Ray Train while nodes are killed and others join, and end with the same weights.

    PYTHONPATH=tests python -m faults.ray_training [--kills 5] [--seed 1]

The recipe examples/cluster/train_ray.py trains with one to three workers. The first node of the
cluster has no place for workers, three others have one each. While they train, the raylet of one of
these is killed by SIGKILL, and after those that are left go on, a new node joins, of which the run
makes use. After the last kill the run must end with the weights of one process that nothing
disturbed (within rounding), with every logged update once.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from commands import ROOT
from faults.elastic import compare, make_config
from ray.cluster_utils import Cluster

STEPS_BETWEEN_KILLS = 1_500  # more than are made while Ray looks for new nodes
NODES = 3
SECONDS = 900.0  # in which something must happen
RECIPE = ROOT / "examples" / "cluster" / "train_ray.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryDirectory(prefix="seq2seq-ray-") as name:
        folder = Path(name)
        os.environ["SEQ2SEQ_CACHE"] = str(folder / "cache")
        steps = STEPS_BETWEEN_KILLS * (given.kills + 1)
        config, whole = make_config(folder, steps), folder / "whole"
        command = [sys.executable, "-m", "seq2seq_cli", "train", config, "--run-dir", whole]
        subprocess.run([*map(str, command)], check=True, capture_output=True)
        Training(config, folder / "run", chance).disturb(given.kills)
        difference = compare(folder / "run", whole, steps)
        print(f"the run ended well after {given.kills} kills; weights within {difference:.1e}")


class Training:
    """A run of the recipe on a cluster of its own."""

    def __init__(self, config: Path, run: Path, chance: random.Random) -> None:
        self.run, self.chance = run, chance
        self.log = run.with_suffix(".log")
        self.start_time = time.monotonic()
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        self.nodes = [self.cluster.add_node(num_cpus=1) for _ in range(NODES)]
        with self.log.open("wb") as log:
            self.program = subprocess.Popen(
                [sys.executable, RECIPE, config, run, "--workers", f"1:{NODES}"],
                stdout=log,
                stderr=log,
                env={**os.environ, "RAY_ADDRESS": self.cluster.address},
            )

    def disturb(self, kills: int) -> None:
        try:
            for number in range(1, kills + 1):
                self.wait(lambda: self.starts(NODES) > 0 and self.progress(20))
                time.sleep(self.chance.uniform(0, 5))
                starts = self.starts(NODES - 1)
                self.cluster.remove_node(
                    self.nodes.pop(self.chance.randrange(NODES)), allow_graceful=False
                )
                self.note(f"kill {number} at step {self.steps()}")
                self.wait(lambda starts=starts: self.starts(NODES - 1) > starts)
                self.wait(lambda: self.progress(5))
                self.note("those that are left go on")
                starts = self.starts(NODES)
                self.nodes.append(self.cluster.add_node(num_cpus=1))
                self.wait(lambda starts=starts: self.starts(NODES) > starts)
                self.note("all train again")
            assert self.program.wait(SECONDS) == 0, self.log.read_text()[-8_000:]
            self.note("the run has ended")
        finally:
            self.program.kill()
            self.cluster.shutdown()

    def starts(self, processes: int) -> int:
        """Return how often training has begun with that many processes."""
        log = self.run / "train.log"
        return log.read_text().count(f"cpu ({processes} process") if log.exists() else 0

    def progress(self, steps: int) -> bool:
        """Wait a moment; return whether so many updates were made since the last call."""
        before = self.steps()
        time.sleep(3)
        return self.steps() >= before + steps

    def steps(self) -> int:
        path = self.run / "metrics.jsonl"
        return path.read_bytes().count(b"train/loss") if path.exists() else 0

    def wait(self, is_reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not is_reached():
            ended = self.program.poll()
            assert ended is None, f"it ended with {ended}:\n{self.log.read_text()[-8_000:]}"
            assert time.monotonic() < deadline, f"no end:\n{self.log.read_text()[-8_000:]}"
            time.sleep(0.2)

    def note(self, text: str) -> None:
        print(f"{time.monotonic() - self.start_time:6.1f} s: {text}", flush=True)


if __name__ == "__main__":
    main()
