"""Loads `seq2seq serve` and LibreTranslate with the same model and sentences, side by side.

    python benchmarks/serving.py RUN TEXT [--argosmodel X.argosmodel --libretranslate PROGRAM]
        [--before CHECKOUT RUN]

Needs wrk (Debian has it). Each line of TEXT is a request of its own, in JSON, all different until
the text is through. The servers are loaded one after the other, again and again; every figure is
the median of the rounds, with the least and the greatest. Without options only ours is measured.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

CLIENTS = (1, 16, 64, 256)
SCRIPT = """
local lines = {}
for line in io.lines("%s") do lines[#lines + 1] = line end
local i, statuses = 0, {}
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init(args) math.randomseed(os.time()); i = math.random(#lines); counts = "" end
function request()
  i = i %% #lines + 1
  return wrk.format("POST", "/translate", {["Content-Type"] = "application/json"}, lines[i])
end
function response(status)
  statuses[status] = (statuses[status] or 0) + 1
  counts = ""
  for status, count in pairs(statuses) do counts = counts .. status .. ":" .. count .. " " end
end
function done(summary, latency, requests)
  local all = ""
  for _, thread in ipairs(threads) do all = all .. thread:get("counts") end
  io.write(string.format("RESULT %%d %%d %%f %%f %%s\\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), all))
end
"""


class Load(NamedTuple):
    per_second: float  # requests with status 200
    p50: float  # milliseconds
    p99: float
    statuses: dict[int, int]


class Server(NamedTuple):
    name: str
    command: list[str]
    environment: dict[str, str]
    port: int


def load(server: Server, script: Path, clients: int, seconds: int) -> Load:
    command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "60s", "-s", str(script)]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{server.port}"], capture_output=True, text=True, check=True
    )
    match = re.search(r"RESULT (\d+) (\d+) ([\d.]+) ([\d.]+) (.*)", done.stdout)
    assert match is not None, done.stdout + done.stderr
    statuses: dict[int, int] = {}
    for status, count in re.findall(r"(\d+):(\d+)", match[5]):
        statuses[int(status)] = statuses.get(int(status), 0) + int(count)
    duration = int(match[2]) / 1e6
    p50, p99 = float(match[3]) / 1e3, float(match[4]) / 1e3
    return Load(statuses.get(200, 0) / duration, p50, p99, statuses)


@contextlib.contextmanager
def started(server: Server, sentence: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server, wait until it translates, and end it."""
    process = subprocess.Popen(
        server.command,
        env={**os.environ, **server.environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError):
                answer(server.port, sentence)
                break
            assert process.poll() is None, f"{server.name} has ended"
            assert time.monotonic() < deadline, f"{server.name} does not answer"
            time.sleep(0.01)
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
        process.kill()
        process.wait()


def servers(given: argparse.Namespace, folder: Path) -> list[Server]:
    ours = [sys.executable, "-m", "seq2seq_cli", "serve", "--cache-megabytes", "0"]
    versions: list[tuple[str, Path, dict[str, str]]] = [("seq2seq serve", given.run, {})]
    if given.before:
        checkout, run = given.before
        environment = {"PYTHONPATH": checkout, "PYTHONSAFEPATH": "1"}
        versions.append(("the earlier commit", Path(run), environment))
    found: list[Server] = []
    for name, run, environment in versions:
        for search, beam_size in (("greedy", 1), ("beam 4", 4)):
            port = 5110 + len(found)
            options = ["--port", str(port), "--set", f"decoding.beam_size={beam_size}"]
            command = [*ours, str(run), *options]
            found.append(Server(f"{name}, {search}", command, environment, port))
    if given.libretranslate:
        packages = folder / "packages"
        shutil.unpack_archive(given.argosmodel, packages, "zip")
        environment = {"ARGOS_PACKAGES_DIR": str(packages), "XDG_DATA_HOME": str(folder / "data")}
        command = [given.libretranslate, "--host", "127.0.0.1", "--port", "5103"]
        command += ["--disable-web-ui", "--threads", str(given.threads)]
        greedy = environment | {"ARGOS_BEAM_SIZE": "1"}
        found.append(Server("LibreTranslate, greedy", command, greedy, 5103))
        found.append(Server("LibreTranslate, beam 4 (its default)", command, environment, 5103))
    return found


def overload(server: Server, script: Path, sentence: str) -> None:
    """Print what far more requests than the server can do are answered, and what comes after."""
    small = server._replace(command=[*server.command, "--queue-limit", "64"])
    with started(small, sentence):
        before = load(small, script, 16, 10)
        burst = load(small, script, 2_000, 15)
        after = load(small, script, 16, 10)
    print(f"2,000 clients and --queue-limit 64: statuses {burst.statuses}")
    for name, each in (("before", before), ("after", after)):
        times = f"p50 {each.p50:.1f} ms, p99 {each.p99:.1f} ms"
        print(f"16 clients {name}: {each.per_second:.0f} sentences/s, {times}")


def answer(port: int, body: str) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/translate", body.encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=60).read()


def start_again(server: Server, bodies: Sequence[str], starts: int = 5) -> None:
    """Print how soon a server answers, and the memory of its processes after 200 requests each."""
    seconds = []
    for _ in range(starts):
        begin = time.perf_counter()
        with started(server, bodies[0]) as process:
            seconds.append(time.perf_counter() - begin)
            if len(seconds) < starts:
                continue
            for name, options in (("text", {}), ("HTML", {"format": "html"})):
                for body in bodies[:200]:
                    answer(server.port, json.dumps(json.loads(body) | options))
                used = ", ".join(f"{proportional_mb(pid):.0f}" for pid in family(process.pid))
                print(f"MB of the processes after 200 requests of {name}: {used}")
    median = statistics.median(seconds)
    print(f"first answer after {median:.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")


def family(pid: int) -> list[int]:
    """Return a process and all that it started."""
    of_threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    children = map(int, " ".join(of_threads).split())
    return [pid, *(one for child in children for one in family(child))]


def proportional_mb(pid: int) -> float:
    """Return the memory of a process; what several share is divided among them."""
    match = re.search(r"^Pss: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
    assert match is not None
    return int(match[1]) / 1024


def row(name: str, clients: int, rounds: Sequence[Load]) -> str:
    def figure(values: Sequence[float]) -> str:
        middle = statistics.median(values)
        digits = 0 if middle >= 100 else 1
        low, high = (f"{value:,.{digits}f}" for value in (min(values), max(values)))
        return f"{middle:,.{digits}f} ({low} to {high})"

    columns = [figure([getattr(each, n) for each in rounds]) for n in ("per_second", "p50", "p99")]
    errors = sum(n for each in rounds for status, n in each.statuses.items() if status != 200)
    return f"| {name} | {clients} | {' | '.join(columns)} | {errors} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--source", default="de")
    parser.add_argument("--target", default="en")
    parser.add_argument("--libretranslate", help="the program, in an environment of its own")
    parser.add_argument("--argosmodel", help="the run, exported with --format argos")
    parser.add_argument(
        "--threads", type=int, default=4, help="of LibreTranslate; 4 is its default"
    )
    parser.add_argument(
        "--before",
        nargs=2,
        metavar=("CHECKOUT", "RUN"),
        help="an earlier checkout, and a run that it has trained",
    )
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = given.text.read_text(encoding="utf-8").splitlines()
        fields = {"source": given.source, "target": given.target}
        bodies = [json.dumps({"q": line} | fields, ensure_ascii=False) for line in lines]
        (folder / "bodies").write_text("".join(f"{body}\n" for body in bodies), encoding="utf-8")
        script = folder / "load.lua"
        script.write_text(SCRIPT % (folder / "bodies"))
        found: dict[tuple[str, int], list[Load]] = {}
        known = servers(given, folder)
        for _ in range(given.rounds):
            for server in known:
                with started(server, bodies[0]):
                    load(server, script, 16, 3)  # warm
                    for clients in CLIENTS:
                        measured = load(server, script, clients, given.seconds)
                        found.setdefault((server.name, clients), []).append(measured)
        print("| server | clients | sentences/s | p50, ms | p99, ms | errors |")
        print("|---|--:|--:|--:|--:|--:|")
        for clients in CLIENTS:
            for server in known:
                print(row(server.name, clients, found[server.name, clients]))
        overload(known[0], script, bodies[0])
        start_again(known[0], bodies)


if __name__ == "__main__":
    main()
