"""Train on two nodes of torchrun while they are killed, and end with the undisturbed weights.

    PYTHONPATH=tests python -m faults.elastic [--kills 50] [--seed 1]

A node is an agent of torchrun with one process and a loopback address of its own. Agents that have
died are started again after a moment, as a scheduler would. One after the other, processes, agents
and the agent that holds the rendezvous are killed at random moments, until each kind has suffered
that many kills. Every run must end with the weights of one process that nothing disturbed (within
rounding, as the number of processes changes), with every logged update once.
"""

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from number_task import numbers_config, write_config
from safetensors.torch import load_file

STEPS = 300
SECONDS = 600.0  # in which a run must end after its last kill
KINDS = ("process", "agent", "agent that holds the rendezvous", "SIGTERM to an agent")
MEMBERSHIP = re.compile(r"(\d+) processes train together")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="seq2seq-elastic-") as name:
        folder = Path(name)
        os.environ |= {"SEQ2SEQ_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        config = make_config(folder)
        whole = folder / "whole"
        command = [sys.executable, "-m", "seq2seq_cli", "train", config, "--run-dir", whole]
        subprocess.run([*map(str, command)], check=True, capture_output=True)
        for kind in KINDS:
            suffered: Counter[str] = Counter()
            runs, farthest = 0, 0.0
            while suffered[kind] < given.kills:
                runs += 1
                run = folder / f"run-{len(list(folder.glob('run-*')))}"
                cluster = Cluster(config, run, chance)
                try:
                    suffered += cluster.train(kind, given.kills - suffered[kind])
                finally:
                    cluster.end()
                farthest = max(farthest, compare(run, whole))
                print(f"{kind}: run {runs} ended well; {dict(suffered)}", flush=True)
            print(
                f"{suffered[kind]} kills ({kind}) in {runs} runs: {dict(suffered)}; the "
                f"weights differ by at most {farthest:.1e}",
                flush=True,
            )


def make_config(folder: Path) -> Path:
    settings = numbers_config(
        folder, max_steps=STEPS, save_every=10, log_every=1, device="cpu", processes=1,
        precision="fp32", lr=2e-3, adam_epsilon=1e-3,
    )  # fmt: skip
    settings["model"]["activation"] = "gelu"  # at the bend of relu, rounding decides
    settings["validation"] = {"every": 50, "unit": "steps", "metric": "loss", "decode": False}
    return write_config(folder, settings)


class Cluster:
    """Two nodes, of which the first holds the rendezvous."""

    def __init__(self, config: Path, run: Path, chance: random.Random) -> None:
        self.run = run
        self.chance = chance
        self.log = run.with_suffix(".log")
        port = free_port()
        self.command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node=1",
            "--max-restarts", "1000", "--rdzv-id=elastic", "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{port}", "--monitor-interval=0.1",
        ]  # fmt: skip
        self.conf = "last_call_timeout=1,join_timeout=60,read_timeout=10,keep_alive_interval=1"
        self.work = ["-m", "seq2seq_cli", "train", str(config), "--run-dir", str(run)]
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
        back = dict.fromkeys((0, 1), 0.0)  # when a node is to be started
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
                next_kill = now + self.chance.uniform(1, 10)
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
        for victim in victims:
            os.kill(victim, signal.SIGTERM if kind == KINDS[3] else signal.SIGKILL)
        return bool(victims)

    def end(self) -> None:
        """The run is finished: what is left of the other node need not come back."""
        for node in self.nodes.values():
            node.terminate()
        for node in self.nodes.values():
            node.wait(timeout=120)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def children(process: int) -> list[int]:
    try:
        return [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]
    except OSError:
        return []


def compare(run: Path, whole: Path) -> float:
    """Check that the run ended as the other one; return the largest difference of two weights."""
    for folder in (run, whole):
        points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        steps = [point["step"] for point in points if "train/loss" in point]
        assert steps == [*range(1, STEPS + 1)], f"{folder}: {steps}"
    expected, weights = (
        load_file(folder / f"checkpoints/step-{STEPS:08}/weights.safetensors")
        for folder in (whole, run)
    )
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-5, atol=1e-5)
    return max(float((weights[name] - expected[name]).abs().max()) for name in weights)


if __name__ == "__main__":
    main()
