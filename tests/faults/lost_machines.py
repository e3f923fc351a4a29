"""Train on several machines of which one vanishes without a word, and end with the same weights.

    PYTHONPATH=tests python -m faults.lost_machines [--losses 3] [--seed 1]

A machine is a network namespace of Linux with an agent of torchrun and one process; a bridge
connects them. The program needs root and `ip` (Debian's iproute2). While a run of three machines
trains, the cable of one is pulled, so that no connection is closed and no answer comes. It is

* "power": its processes end, too, and it starts again later;
* "cable": its processes live on, and the cable is plugged in again after a while;
* "power of the first": as "power", of the machine that the others meet at, where a scheduler
  starts the command again on all.

Each kind happens so many times. Each run must end with the weights of one process that nothing
disturbed (within rounding), with every logged update once, and without anybody's help but that
agents which ended are started again, as a scheduler would.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from faults.elastic import compare, make_config

MACHINES = 3
STEPS = 700
SECONDS = 600.0  # in which a run must end after its last change
KINDS = ("power", "cable", "power of the first")
NETWORK = f"s2s{os.getpid()}"  # the names of all namespaces begin with it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--losses", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    given = parser.parse_args()
    if not can_make_namespaces():
        print("skipped: needs root, `ip` and network namespaces")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and remove the namespaces
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="seq2seq-lost-") as name:
        folder = Path(name)
        os.environ |= {"SEQ2SEQ_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        config, whole = make_config(folder, STEPS), folder / "whole"
        command = [sys.executable, "-m", "seq2seq_cli", "train", config, "--run-dir", whole]
        subprocess.run([*map(str, command)], check=True, capture_output=True)
        for kind in given.kinds:
            for number in range(1, given.losses + 1):
                run = folder / f"{kind} {number}".replace(" ", "-")
                network = Network(config, run, chance)
                try:
                    network.train(kind)
                finally:
                    network.end()
                difference = compare(run, whole, STEPS)
                print(
                    f"{kind}: run {number} ended well; weights differ by at most {difference:.1e}",
                    flush=True,
                )


def can_make_namespaces() -> bool:
    if os.geteuid() != 0 or not shutil.which("ip"):
        return False
    name = f"{NETWORK}-probe"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode != 0:
        return False
    ip("netns", "del", name)
    return True


def ip(*given: str) -> None:
    subprocess.run(["ip", *given], check=True)


class Network:
    """Machines 1 to 3, of which the first holds the rendezvous, at a switch."""

    def __init__(self, config: Path, run: Path, chance: random.Random) -> None:
        self.run, self.chance = run, chance
        self.work = ["-m", "seq2seq_cli", "train", str(config), "--run-dir", str(run)]
        self.log = run.with_suffix(".log")
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self.start_time = time.monotonic()
        self.switch = f"{NETWORK}-switch"
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "switch", "type", "bridge")
        ip("-n", self.switch, "link", "set", "switch", "up")
        for number in range(1, MACHINES + 1):
            self.connect(number)

    def connect(self, number: int) -> None:
        name, port = f"{NETWORK}-{number}", f"port{number}"
        ip("netns", "add", name)
        ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", port, "netns", self.switch)
        ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", name, "link", "set", device, "up")
        ip("-n", self.switch, "link", "set", port, "master", "switch", "up")

    def start(self, number: int) -> None:
        """Start the agent of a machine, as a scheduler does."""
        conf = f"is_host={int(number == 1)},last_call_timeout=2,read_timeout=120"
        with self.log.open("ab") as log:
            self.agents[number] = subprocess.Popen(
                [
                    "ip", "netns", "exec", f"{NETWORK}-{number}",
                    sys.executable, "-m", "torch.distributed.run", f"--nnodes=1:{MACHINES}",
                    "--nproc-per-node=1", "--max-restarts=100", "--rdzv-id=lost",
                    "--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.1:29400",
                    f"--rdzv-conf={conf}", f"--local-addr=10.77.0.{number}", *self.work,
                ],
                stdout=log, stderr=log,
                env={
                    **os.environ,
                    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
                    "GLOO_SOCKET_IFNAME": "eth0",
                },
            )  # fmt: skip

    def train(self, kind: str) -> None:
        lost = 1 if kind == KINDS[2] else self.chance.randint(2, MACHINES)
        for number in range(1, MACHINES + 1):
            self.start(number)
        self.wait(lambda: self.steps() >= 20, absent=())
        time.sleep(self.chance.uniform(0, 3))
        self.note(f"{kind}: machine {lost} is lost")
        self.plug(lost, is_in=False)
        if kind != "cable":
            kill_all_in(f"{NETWORK}-{lost}")
            self.agents.pop(lost).wait()
        before = self.steps()
        if kind == KINDS[2]:
            self.wait(lambda: not self.running(), absent=(1, 2, 3))
            self.note("the others have ended")
        else:
            self.wait(lambda: self.steps() > before + 10, absent=(lost,))
            self.note("the others go on")
        self.plug(lost, is_in=True)
        self.note("it comes back")
        for number in range(1, MACHINES + 1):
            if number not in self.running():
                self.start(number)
        self.wait(lambda: self.starts_of_all() == 2, absent=())
        self.note("all train again")
        self.wait(lambda: 0 in [agent.poll() for agent in self.agents.values()], absent=())
        self.note("the run has ended")

    def plug(self, number: int, *, is_in: bool) -> None:
        ip("-n", self.switch, "link", "set", f"port{number}", "up" if is_in else "down")

    def running(self) -> list[int]:
        return [number for number, agent in self.agents.items() if agent.poll() is None]

    def wait(self, is_reached, absent) -> None:
        """Wait; meanwhile start agents that have ended again, but on machines that are absent."""
        deadline = time.monotonic() + SECONDS
        while not is_reached():
            for number, agent in [*self.agents.items()]:
                if number not in absent and agent.poll():
                    self.note(f"the agent of machine {number} has ended with {agent.returncode}")
                    self.start(number)
            assert time.monotonic() < deadline, f"no end:\n{self.log.read_text()[-8_000:]}"
            time.sleep(0.1)

    def steps(self) -> int:
        """Return the number of updates that are logged."""
        with suppress(OSError):
            return (self.run / "metrics.jsonl").read_bytes().count(b"train/loss")
        return 0

    def starts_of_all(self) -> int:
        """Return how often training has begun on all machines."""
        return self.log.read_text().count(f"cpu ({MACHINES} processes)")

    def note(self, text: str) -> None:
        print(f"{time.monotonic() - self.start_time:6.1f} s: {text}", flush=True)

    def end(self) -> None:
        for number in range(1, MACHINES + 1):
            kill_all_in(f"{NETWORK}-{number}")
        for agent in self.agents.values():
            agent.wait()
        for number in range(1, MACHINES + 1):
            ip("netns", "del", f"{NETWORK}-{number}")
        ip("netns", "del", self.switch)


def kill_all_in(namespace: str) -> None:
    """Kill what runs in a namespace, as the loss of power does."""
    while found := subprocess.run(
        ["ip", "netns", "pids", namespace], check=True, capture_output=True, text=True
    ).stdout.split():
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
