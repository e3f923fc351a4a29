"""Train on nodes of torchrun while they are killed, and end with the undisturbed weights.

    PYTHONPATH=tests python -m faults.elastic [--kills 50] [--seed 1] [--shard full]

A node is an agent of torchrun with a loopback address of its own. There are two with one process
each; with `--shard full`, whose processes divide model and optimizer among them, also two with two
and four with one. Agents that have died are started again after a moment, as a scheduler would. One
after the other, processes, agents and the agent that holds the rendezvous are killed at random
moments, and agents stopped, until each kind has suffered that many kills. Every run must end with
the weights and the optimizer's state of one process that nothing disturbed (within rounding, as the
number of processes changes), with every logged update once, and no process may be left.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import torch
from commands import free_port, logged_points
from number_task import numbers_config, write_config
from safetensors.torch import load_file
from torch import Tensor

from seq2seq_cli.extras.shard.optimizer_shards import read_whole

STEPS = 300
SECONDS = 600.0  # in which a run must end after its last kill
KINDS = ("process", "agent", "agent that holds the rendezvous", "SIGTERM to an agent")
SHAPES = {"none": [(2, 1)], "full": [(2, 1), (2, 2), (4, 1)]}  # nodes, and processes of each
PAUSE = {"none": 10.0, "full": 20.0}  # the longest between two kills, in seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shard", choices=SHAPES, default="none")
    given = parser.parse_args()
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="seq2seq-elastic-") as name:
        folder = Path(name)
        os.environ |= {"SEQ2SEQ_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        config = make_config(folder)
        whole = folder / "whole"
        command = [sys.executable, "-m", "seq2seq_cli", "train", config, "--run-dir", whole]
        subprocess.run([*map(str, command)], check=True, capture_output=True)
        shapes, number = SHAPES[given.shard], 0
        for kind in KINDS:
            suffered: Counter[str] = Counter()
            runs, farthest = 0, 0.0
            while suffered[kind] < given.kills:
                runs, number = runs + 1, number + 1
                shape = shapes[number % len(shapes)]
                run = folder / f"run-{number}"
                cluster = Cluster(config, run, chance, shape, given.shard)
                try:
                    suffered += cluster.train(kind, given.kills - suffered[kind])
                finally:
                    cluster.end()
                farthest = max(farthest, compare(run, whole))
                print(
                    f"{kind}: run {runs} of {shape[0]} nodes with {shape[1]} ended well; "
                    f"{dict(suffered)}",
                    flush=True,
                )
            print(
                f"{suffered[kind]} kills ({kind}) in {runs} runs: {dict(suffered)}; the "
                f"weights differ by at most {farthest:.1e}",
                flush=True,
            )


def make_config(folder: Path, steps: int = STEPS) -> Path:
    settings = numbers_config(
        folder, max_steps=steps, save_every=10, log_every=1, device="cpu", processes=1,
        precision="fp32", lr=2e-3, adam_epsilon=1e-3, ema_decay=0.99,
    )  # fmt: skip
    settings["model"]["activation"] = "gelu"  # at the bend of relu, rounding decides
    settings["validation"] = {"every": 50, "unit": "steps", "metric": "loss", "decode": False}
    return write_config(folder, settings)


class Cluster:
    """Some nodes, of which the first holds the rendezvous."""

    def __init__(
        self, config: Path, run: Path, chance: random.Random, shape: tuple[int, int], shard: str
    ) -> None:
        self.run = run
        self.chance = chance
        self.log = run.with_suffix(".log")
        self.num_nodes, processes = shape
        self.pause = PAUSE[shard]
        self.command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", f"1:{self.num_nodes}",
            f"--nproc-per-node={processes}", "--max-restarts", "1000", "--rdzv-id=elastic",
            "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
            "--monitor-interval=0.1",
        ]  # fmt: skip
        self.conf = "last_call_timeout=1,join_timeout=60,read_timeout=10,keep_alive_interval=1"
        self.work = ["-m", "seq2seq_cli", "train", str(config), "--run-dir", str(run)]
        self.work += ["--set", f"training.shard={shard}"]
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int) -> None:
        with self.log.open("ab") as log:
            self.nodes[number] = subprocess.Popen(
                [
                    *self.command,
                    f"--rdzv-conf={self.conf},is_host={int(number == 0)}",
                    f"--local-addr=127.0.0.{number + 1}",
                    *self.work,
                ],
                stdout=log,
                stderr=log,
                env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **os.environ},
            )

    def train(self, kind: str, most: int) -> Counter[str]:
        """Train to the end; kill as `kind` says, at most so often."""
        suffered: Counter[str] = Counter()
        back = dict.fromkeys(range(self.num_nodes), 0.0)  # when a node is to be started
        next_kill, deadline = time.monotonic() + self.chance.uniform(4, 12), 0.0
        while True:
            now = time.monotonic()
            for number, when in [*back.items()]:
                if now >= when:
                    self.start(number)
                    del back[number]
            for number, node in self.nodes.items():
                if number in back or node.poll() is None:
                    continue
                if node.returncode == 0:
                    return suffered
                suffered["nodes that came back"] += 1
                back[number] = now + self.chance.choice([0.0, 0.0, self.chance.uniform(0, 8)])
            if suffered[kind] < most and now >= next_kill:
                suffered[kind] += self.kill(kind, back)
                next_kill = now + self.chance.uniform(1, self.pause)
                deadline = now + SECONDS
            assert not deadline or now < deadline, f"no end:\n{self.log.read_text()[-5_000:]}"
            time.sleep(0.05)

    def kill(self, kind: str, absent: dict[int, float]) -> bool:
        """Return whether there was something to kill."""
        present = [number for number in self.nodes if number not in absent]
        if kind == KINDS[2]:
            present = [number for number in present if number == 0]
        if not present:
            return False
        agent = self.nodes[self.chance.choice(present)].pid
        victims = children(agent) if kind == "process" else [agent]
        if not victims:
            return False
        number = signal.SIGTERM if kind == KINDS[3] else signal.SIGKILL
        os.kill(self.chance.choice(victims), number)
        return True

    def end(self) -> None:
        """The run is finished: what is left of the other nodes need not come back."""
        for node in self.nodes.values():
            node.terminate()
        for node in self.nodes.values():
            node.wait(timeout=120)
        deadline = time.monotonic() + 120
        while left := processes_of(self.run):
            assert time.monotonic() < deadline, f"processes that do not end: {left}"
            time.sleep(0.5)


def children(process: int) -> list[int]:
    try:
        return [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]
    except OSError:
        return []


def processes_of(run: Path) -> list[int]:
    """The processes that train in a run folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(run).encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def compare(run: Path, whole: Path, num_steps: int = STEPS) -> float:
    """Check that the run ended as the other one; return the largest difference of two weights.

    Differences by rounding grow with the number of updates.
    """
    tolerance = 1e-5 * num_steps / STEPS
    for folder in (run, whole):
        points = logged_points(folder)
        steps = [point["step"] for point in points if "train/loss" in point]
        assert steps == [*range(1, num_steps + 1)], f"{folder}: {steps}"
    expected, found = (
        tensors_of(folder / f"checkpoints/step-{num_steps:08}") for folder in (whole, run)
    )
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=tolerance, atol=tolerance)
    weights = [name for name in found if name.startswith("weights ")]
    return max(float((found[name] - expected[name]).abs().max()) for name in weights)


def tensors_of(checkpoint: Path) -> dict[str, Tensor]:
    """Weights, their EMA, and the optimizer's state, which may be in one file or in several."""
    parts = {name: load_file(checkpoint / f"{name}.safetensors") for name in ("weights", "ema")}
    shards, whole = checkpoint / "optimizer", checkpoint / "optimizer.safetensors"
    parts["optimizer"] = read_whole(shards) if shards.is_dir() else load_file(whole)
    return {
        f"{part} {name}": value for part, found in parts.items() for name, value in found.items()
    }


if __name__ == "__main__":
    main()
