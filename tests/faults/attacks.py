"""Attack a server with requests that take much work or memory; others must be served meanwhile.

    PYTHONPATH=tests python -m faults.attacks [--run RUN]

Each attack has a server of its own. Clients send requests whose texts or glossaries take much work
and leave, or one sends headers without end. Meanwhile another client asks for a translation of
2,400 characters, again and again, and at last SIGTERM must end the server. Prints the
processor time and the memory of the process that speaks HTTP, the slowest answer of the other
client, and how long the server takes to end after SIGTERM, and after a second one.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from number_task import write_config
from served import Served, names_config, serving

ATTACKERS = 6
SECONDS_UNTIL_THEY_LEAVE = 5
SECONDS = 30
HEADER_BYTES = 600_000_000
SECONDS_TO_END = 75  # those that a request may take, and some


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="a run folder (default: one is trained)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="seq2seq-attacks-") as name:
        folder = Path(name)
        os.environ |= {"SEQ2SEQ_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        run = given.run or trained(folder)
        complaints = [each for attack in ATTACKS for each in report(run, attack)]
    assert not complaints, "\n".join(complaints)


def trained(folder: Path) -> Path:
    config = write_config(folder, names_config(folder, src="de", tgt="en"))
    run = folder / "run"
    train = [sys.executable, "-m", "seq2seq_cli", "train", str(config), "--run-dir", str(run)]
    subprocess.run(train, check=True, capture_output=True)
    return run


def report(run: Path, attack: str) -> list[str]:
    """Print what an attack does to a server, and return what it must not do."""
    with serving(run, "--processes", 2) as served:
        ordinary = Ordinary(served)
        ordinary.ask()  # so that its translation is cached
        before = processor_seconds(served.process.pid)
        threads = [
            threading.Thread(target=ATTACKS[attack], args=(served, ordinary.pair))
            for _ in range(ATTACKERS if attack != "headers" else 1)
        ]
        for thread in threads:
            thread.start()
        ordinary.ask_for(SECONDS)
        for thread in threads:
            thread.join()
        seconds = processor_seconds(served.process.pid) - before
        megabytes = peak_megabytes(served.process.pid)
        end = f"ends {seconds_to_end(served, SECONDS_TO_END)} after SIGTERM"
        if served.process.poll() is None:
            end += f", {seconds_to_end(served, 20)} after another one"
        served.process.kill()
        served.process.wait()
    print(
        f"{attack}: {seconds:.1f} s of processor time, {megabytes:.0f} MB; "
        f"{ordinary.report()}; {end}",
        flush=True,
    )
    complaints = [f"{attack}: other clients got {ordinary.statuses}"]
    complaints = complaints if ordinary.statuses != {200} else []
    return complaints + [f"{attack}: it {end}"] * ("never" in end)


class Ordinary:
    """A client that asks for the translation of an ordinary text."""

    def __init__(self, served: Served) -> None:
        self._served = served
        first = next(each for each in served.ask("/languages").json if each["targets"])
        self.pair = {"source": first["code"], "target": first["targets"][0]}
        self.seconds: list[float] = []
        self.statuses: set[int] = set()

    def ask(self) -> None:
        text = "one two three. four five!\n" * 100
        start = time.monotonic()
        fields = {"q": text[:2_400], **self.pair}
        self.statuses.add(self._served.ask("/translate", fields, timeout=100).status)
        self.seconds.append(time.monotonic() - start)

    def ask_for(self, seconds: float) -> None:
        is_over = threading.Event()
        timer = threading.Timer(seconds, is_over.set)
        timer.start()
        self.seconds.clear()
        while not is_over.wait(0.2):
            self.ask()
        timer.join()

    def report(self) -> str:
        statuses = ", ".join(map(str, sorted(self.statuses)))
        times = sorted(self.seconds)
        return f"status {statuses} after {times[len(times) // 2]:.2f} s, at most {times[-1]:.2f} s"


def markup(served: Served, pair: dict[str, str]) -> None:
    text = "<sup>a" * 277 + "<" * 3_330
    leave(served, {"q": [text] * 64, "format": "html", **pair})


def glossary(served: Served, pair: dict[str, str]) -> None:
    terms = {f"{'a ' * 97}a{number:03}": "a" for number in range(200)}
    leave(served, {"q": ["a " * 2_500] * 64, "glossary": terms, **pair})


def leave(served: Served, fields: dict[str, object]) -> None:
    """Ask for a translation and close the connection after some seconds."""
    body = json.dumps(fields)
    head = f"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection((served.host, served.port)) as connection:
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
        connection.settimeout(SECONDS_UNTIL_THEY_LEAVE)
        try:
            connection.recv(1)
        except TimeoutError:
            return


def headers(served: Served, pair: dict[str, str]) -> None:
    """Send a head of hundreds of megabytes."""
    lines = b"".join(b"X%d: %b\r\n" % (number, b"a" * 1_000) for number in range(1_000))
    with socket.create_connection((served.host, served.port)) as connection:
        try:
            connection.sendall(b"GET / HTTP/1.1\r\n")
            for _ in range(HEADER_BYTES // len(lines)):
                connection.sendall(lines)
            connection.sendall(b"\r\n")
            connection.recv(100)
        except OSError:  # it has refused them
            return


ATTACKS: dict[str, Callable[[Served, dict[str, str]], None]] = {
    "markup": markup,
    "glossary": glossary,
    "headers": headers,
}


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1_024


def seconds_to_end(served: Served, limit: float) -> str:
    """Send SIGTERM and return how long the server takes to end."""
    start = time.monotonic()
    served.process.send_signal(signal.SIGTERM)
    try:
        served.process.wait(limit)
    except subprocess.TimeoutExpired:
        return "never"
    return f"{time.monotonic() - start:.1f} s"


if __name__ == "__main__":
    main()
