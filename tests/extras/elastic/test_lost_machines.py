"""Machines that vanish are noticed, and nothing else is taken for that."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.lost_machines import can_make_namespaces, ip

# Trains on one of two machines; the file in place of the collective has the main one's address.
MACHINE = """
import json, os, sys, time
from pathlib import Path
from seq2seq_cli.extras.elastic.machines import watched_machines

def tell_others(address):
    if sys.argv[1] == "0":
        Path("part").write_text(json.dumps(address))
        Path("part").rename("address")
    while not Path("address").exists():
        time.sleep(0.01)
    return json.loads(Path("address").read_text())

with watched_machines(tell_others, os.getppid() if "agent" in sys.argv else None):
    print("training", flush=True)
    sys.stdin.readline()
print("ended", flush=True)
"""

# Agents that start a machine's process: one sees its end, the other hangs.
AGENT = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
HANGING_AGENT = "import subprocess, sys, time; p = subprocess.Popen(sys.argv[1:]); time.sleep(300)"


class Machine:
    def __init__(
        self,
        folder: Path,
        number: int,
        prefix: tuple[str, ...] = (),
        name: str = "127.0.0.1",
        agent: str | None = None,
    ) -> None:
        command = [sys.executable, "-c", MACHINE, str(number)]
        if agent is not None:
            command = [sys.executable, "-c", agent, *command, "agent"]
        variables = {"GROUP_WORLD_SIZE": "2", "GROUP_RANK": str(number), "LOCAL_RANK": "0"}
        variables |= {"MASTER_ADDR": name, "MASTER_PORT": "9"}
        self.process = subprocess.Popen(
            [*prefix, *command],
            cwd=folder, env=os.environ | variables, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout.readline() == "training\n"

    def end(self) -> None:
        output, errors = self.process.communicate("\n", timeout=60)
        assert (self.process.returncode, output, errors) == (0, "ended\n", "")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_process_that_ends_or_is_killed_ends_no_other(tmp_path, order):
    """Its agent notices. What strangers send to the port is ignored."""
    machines = [Machine(tmp_path, number) for number in (0, 1)]
    host, port, _ = json.loads((tmp_path / "address").read_text())
    with socket.create_connection((host, port)) as stranger:
        stranger.send(b"GET / HTTP/1.1\r\n\r\n")
        machines[order[0]].process.kill()
        machines[order[0]].process.communicate()
        machines[order[1]].end()
    (tmp_path / "address").unlink()
    machines = [Machine(tmp_path, number) for number in (0, 1)]
    for number in order:
        machines[number].end()


def test_strangers_take_no_place_of_a_machine(tmp_path):
    """They lack the secret, and as many may connect as like to."""
    main = Machine(tmp_path, 0)
    host, port, secret = json.loads((tmp_path / "address").read_text())
    for said in (b"", b"x", b"x" * len(secret)):
        with socket.create_connection((host, port)) as stranger:
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b""
    other = Machine(tmp_path, 1)
    main.end()
    other.end()


def test_machine_that_cannot_listen_says_so_and_trains(tmp_path):
    """Its name has no address."""
    main = Machine(tmp_path, 0, name="nowhere.invalid")
    output, errors = main.process.communicate("\n", timeout=60)
    assert (main.process.returncode, output) == (0, "ended\n")
    assert "this is not detected for half an hour or longer" in errors


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Two machines with a cable between them."""
    if not can_make_namespaces():
        pytest.skip("needs root, `ip` and network namespaces")
    names = [f"s2s-test{os.getpid()}-{number}" for number in (1, 2)]
    for name in names:
        ip("netns", "add", name)
    ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", names[1])
    for number, name in enumerate(names, 1):
        ip("-n", name, "address", "add", f"10.78.0.{number}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", name, "link", "set", device, "up")
    yield names
    for name in names:
        ip("netns", "del", name)


@pytest.mark.slow
def test_machines_without_a_cable_end(tmp_path, namespaces):
    """After a minute, and an agent that hangs is killed; a shorter break changes nothing."""
    prefixes = [("ip", "netns", "exec", name) for name in namespaces]
    machines = [
        Machine(tmp_path, number, prefix, "10.78.0.1", agent)
        for number, (prefix, agent) in enumerate(zip(prefixes, (AGENT, HANGING_AGENT), strict=True))
    ]
    for state, seconds in (("down", 25), ("up", 1), ("down", 120)):
        ip("-n", namespaces[0], "link", "set", "eth0", state)
        try:
            machines[0].process.wait(seconds)
        except subprocess.TimeoutExpired:
            assert seconds < 120
        else:
            assert seconds == 120
    for machine, other, statuses in zip(
        machines, ("10.78.0.2", "10.78.0.1"), ({1}, {-signal.SIGTERM, -signal.SIGKILL}), strict=True
    ):
        _, errors = machine.process.communicate(timeout=60)
        assert machine.process.returncode in statuses
        assert f"machine {other} has not answered for 60 seconds" in errors
