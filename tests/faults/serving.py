"""Serve while processes are killed, models replaced, and clients behave badly.

    PYTHONPATH=tests python -m faults.serving [--minutes 5] [--seed 1]

Clients ask for translations all the time, and each answer must be the right one. Meanwhile, at
random: a translating process is killed by SIGKILL, or the one that has loaded the models; the
model is replaced by another file; connections are opened and never used, some after half of a
request; clients leave before their answer, or never read it; bodies are not what they say, and
HTML and other texts are hostile. Nothing but what a request deserves may be answered, and the
memory of the server may not grow.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import statistics
import string
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from number_task import number_pairs, write_config
from served import Served, names_config, serving

from seq2seq_cli import Translator

Pair = tuple[str, str]

CLIENTS = 4
ALLOWED = {200, 400, 404, 405, 413, 415, 503}
IDLE_SOCKETS = 20  # those of its processes, and of event loops
FROM_SECOND = 20.0  # before, caches and buffers fill
MEGABYTES_OF_GROWTH = 25


class Chaos:
    """What happens to a server, and what has been seen."""

    def __init__(self, served: Served, run: Path, pairs: Sequence[Pair], seed: int) -> None:
        """`pairs`: sentences with the translations that the model has for them."""
        self.served = served
        self.run = run
        self.pairs = pairs
        self.seed = seed
        self.is_over = threading.Event()
        self.counts: Counter[str] = Counter()
        self.mistakes: list[str] = []
        self.memory: list[float] = []  # megabytes of the process that speaks HTTP
        self._open: list[socket.socket] = []

    def run_for(self, seconds: float) -> None:
        threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(CLIENTS)]
        threads += [threading.Thread(target=part) for part in (self._disturb, self._measure)]
        for thread in threads:
            thread.start()
        self.is_over.wait(seconds)
        self.is_over.set()
        for thread in threads:
            thread.join()

    def _ask(self, number: int) -> None:
        chance = random.Random(self.seed * 1_000 + number)
        kinds = (self._sentence, self._list, self._html, self._stream, self._paragraphs)
        while not self.is_over.is_set():
            kind = chance.choice(kinds)
            try:
                kind(chance)
            except Exception as error:
                self.mistakes.append(f"{kind.__name__}: {error!r}")
                return
            self.counts["right answers"] += 1

    def _translate(self, q: str | list[str], **fields: object) -> dict:
        return self.served.translate(q, **fields)

    def _sentence(self, chance: random.Random) -> None:
        source, target = chance.choice(self.pairs)
        expect(self._translate(source)["translatedText"], target)

    def _list(self, chance: random.Random) -> None:
        pairs = [chance.choice(self.pairs) for _ in range(chance.randint(1, 64))]
        answer = self._translate([source for source, _ in pairs])
        expect(answer["translatedText"], [target for _, target in pairs])

    def _html(self, chance: random.Random) -> None:
        (a, x), (b, y) = chance.choice(self.pairs), chance.choice(self.pairs)
        answer = self._translate(f"<p>{a}</p><i>&lt;</i><p>{b}</p>", format="html")
        expect(answer["translatedText"], f"<p>{x}</p><i>&lt;</i><p>{y}</p>")

    def _paragraphs(self, chance: random.Random) -> None:
        pairs = [chance.choice(self.pairs) for _ in range(chance.randint(2, 60))]
        answer = self._translate("\n\n".join(source for source, _ in pairs), alternatives=1)
        expect(answer["translatedText"], "\n\n".join(target for _, target in pairs))

    def _stream(self, chance: random.Random) -> None:
        source, target = chance.choice(self.pairs)
        fields = {"q": source, "source": "en", "target": "de", "stream": True}
        answer = self.served.ask("/translate", fields)
        expect(json.loads(answer.body.split(b"data: ")[-1])["translatedText"], target)

    def _disturb(self) -> None:
        chance = random.Random(self.seed)
        kinds: list[Callable[[random.Random], None]] = [
            *[self._kill_worker] * 3,
            self._kill_models,
            self._replace_model,
            self._half_open,
            *[self._leave] * 2,
            self._never_read,
            *[self._garbage] * 6,
        ]
        while not self.is_over.wait(chance.random() / 4):
            kind = chance.choice(kinds)
            kind(chance)
            self.counts[kind.__name__.strip("_").replace("_", " ")] += 1
            while len(self._open) > 1_000:
                self._open.pop(0).close()

    def _kill_worker(self, chance: random.Random) -> None:
        for pid in self.served.workers()[:1]:
            os.kill(pid, signal.SIGKILL)

    def _kill_models(self, chance: random.Random) -> None:
        if chance.random() < 0.2:
            for pid in self.served.model_processes()[:1]:
                os.kill(pid, signal.SIGKILL)

    def _replace_model(self, chance: random.Random) -> None:
        if chance.random() < 0.2:
            part = self.run / "model.part"
            shutil.copy(self.run / "model.safetensors", part)
            part.replace(self.run / "model.safetensors")

    def _connect(self) -> socket.socket:
        connection = socket.create_connection((self.served.host, self.served.port))
        self._open.append(connection)
        return connection

    def _half_open(self, chance: random.Random) -> None:
        for _ in range(200):
            connection = self._connect()
            if chance.random() < 0.5:
                connection.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Le")

    def _leave(self, chance: random.Random) -> None:
        text = "\n".join(chance.choice(self.pairs)[0] for _ in range(100))
        with socket.create_connection((self.served.host, self.served.port)) as connection:
            connection.sendall(post(json.dumps({"q": text, "source": "en", "target": "de"})))

    def _never_read(self, chance: random.Random) -> None:
        """Ask for an answer of megabytes, more than the buffers between hold."""
        text = "\n".join(chance.choice(self.pairs)[0] for _ in range(100))
        fields = {"q": [text] * 16, "source": "en", "target": "de", "alignments": True}
        connection = self._connect()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1_024)
        connection.sendall(post(json.dumps(fields | {"log_probs": True})))

    def wait_until_idle_connections_are_closed(self, seconds: float = 90) -> None:
        """The clients have not closed theirs."""
        deadline = time.monotonic() + seconds
        while (count := self._num_sockets()) > IDLE_SOCKETS:
            assert time.monotonic() < deadline, f"{count} sockets are still open"
            time.sleep(0.5)

    def _num_sockets(self) -> int:
        folder = Path(f"/proc/{self.served.process.pid}/fd")
        links = []
        for path in folder.iterdir():
            with contextlib.suppress(OSError):  # it has just been closed
                links.append(str(path.readlink()))
        return sum(link.startswith("socket:") for link in links)

    def _garbage(self, chance: random.Random) -> None:
        path = chance.choice(["/translate", "/detect", "/imme", "/v2/translate", "/x", "/health"])
        kind = chance.choice(
            ["application/json", "application/x-www-form-urlencoded", "text/plain", ""]
        )
        body = chance.choice([hostile_bytes, hostile_json, hostile_text])(chance)
        answer = self.served.ask(path, body, method="POST", headers={"Content-Type": kind})
        if answer.status not in ALLOWED:
            self.mistakes.append(f"{path} {kind} {body[:80]!r}: status {answer.status}")
        self.counts[f"status {answer.status}"] += 1

    def _measure(self) -> None:
        start = time.monotonic()
        while not self.is_over.wait(1):
            if time.monotonic() - start > FROM_SECOND:
                lines = Path(f"/proc/{self.served.process.pid}/status").read_text().splitlines()
                (resident,) = (line for line in lines if line.startswith("VmRSS"))
                self.memory.append(int(resident.split()[1]) / 1_024)


def known_pairs(run: Path) -> list[Pair]:
    """Return sentences that both greedy and beam search translate correctly."""
    pairs = [(names, digits) for digits, names in number_pairs(5_000, seed=9)]
    sources = [source for source, _ in pairs]
    found = [
        Translator.load(run, overrides=[f"decoding.beam_size={size}"]).translate(sources)
        for size in (1, 2)
    ]
    return [pair for pair, *each in zip(pairs, *found, strict=True) if {*each} == {pair[1]}]


def expect(found: object, wanted: object) -> None:
    assert found == wanted, f"{found!r} instead of {wanted!r}"


def post(body: str) -> bytes:
    head = f"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n{body}".encode()


def hostile_bytes(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randint(0, 3_000))


def hostile_json(chance: random.Random) -> bytes:
    """A request of which something is not as it should be."""
    fields: dict[str, object] = {"q": "one", "source": "en", "target": "de", "text": ["one"]}
    values = [None, 0, -1, 1e308, True, [], {}, "", "\ud800", "\x00", ["a", 1], [[[]]], "de" * 999]
    for _ in range(chance.randint(1, 3)):
        names = ["q", "source", "target", "format", "alternatives", "glossary", "stream", "text"]
        fields[chance.choice([*names, "alignments", "text_list", "target_lang"])] = chance.choice(
            values
        )
    return json.dumps(fields).encode("utf-8", "surrogatepass")


def hostile_text(chance: random.Random) -> bytes:
    """Texts that are hard to take apart, in a format that they may not have."""
    parts = ["<", ">", "<b>", "</i>", "<!--", "&amp", "&#xD800;", "<p", " one", ".", "\n", "\r"]
    parts += ["<code>", "</code>", "。", "`a`", "你", "[x]", "<sup>", "translate=no", "- "]
    parts += ["```", "[a](", "|-|", "-->", "00:00:01,000 --> ", "{\\an8}", "\u202e", "\u0000", "😀"]
    parts += [*string.printable]
    text = "".join(chance.choices(parts, k=chance.randint(1, 1_500)))[:4_900]
    name = chance.choice(["text", "html", "markdown", "subtitles"])
    return json.dumps({"q": text, "source": "en", "target": "de", "format": name}).encode()


def overload(served: Served, pairs: Sequence[Pair], seed: int) -> Counter[int]:
    """Ask for many times what the server can do; it must refuse, and be as before at once."""
    statuses: Counter[int] = Counter()

    def ask(number: int) -> None:
        chance = random.Random(seed * 10_000 + number)
        for _ in range(5):
            text = "\n".join(source for source, _ in chance.sample(pairs, 60))
            fields = {"q": text, "source": "en", "target": "de", "alternatives": 1}
            answer = served.ask("/translate", fields, timeout=120)
            statuses[answer.status] += 1
            assert answer.status != 503 or int(answer.headers["retry-after"]) > 0

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(served.translate("one two three")["translatedText"], "1 2 3")
    return statuses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="seq2seq-serving-") as name:
        folder = Path(name)
        os.environ |= {"SEQ2SEQ_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        run = folder / "run"
        config = write_config(folder, names_config(folder, src="de", tgt="en"))
        train = [sys.executable, "-m", "seq2seq_cli", "train", str(config), "--run-dir", str(run)]
        subprocess.run(train, check=True, capture_output=True)
        pairs = known_pairs(run)
        with serving(run, "--cache-megabytes", 1, "--queue-limit", 50_000) as served:
            chaos = Chaos(served, run, pairs, given.seed)
            chaos.run_for(60 * given.minutes)
            chaos.wait_until_idle_connections_are_closed()
            chaos.mistakes += [line for line in served.log if "Traceback" in line][:1]
        with serving(run, "--queue-limit", 2_000) as served:
            statuses = overload(served, pairs, given.seed)
    for what, count in sorted(chaos.counts.items()):
        print(f"{count:9,}  {what}")
    print(f"overload: {dict(statuses)}; at once afterwards the right answer")
    assert not chaos.mistakes, "\n".join(chaos.mistakes[:20])
    assert statuses.keys() == {200, 503}, statuses
    if chaos.memory:
        tenth = max(1, len(chaos.memory) // 10)
        first, last = (
            statistics.median(part) for part in (chaos.memory[:tenth], chaos.memory[-tenth:])
        )
        print(f"memory of the server: {first:.0f} MB at first, {last:.0f} MB at last")
        assert last - first < MEGABYTES_OF_GROWTH
    print("every answer was the one that the request deserved")


if __name__ == "__main__":
    main()
