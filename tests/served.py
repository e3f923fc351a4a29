"""A server in a process of its own, as people start it."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from number_task import FAST, numbers_config


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Served:
    """A running server."""

    process: subprocess.Popen[str]
    host: str
    port: int
    log: list[str] = field(default_factory=list, repr=False)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def ask(
        self,
        path: str,
        body: Any = None,
        *,
        method: str | None = None,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 60,
    ) -> Answer:
        """Send a request with a JSON body, a form, or none."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        data, kind = None, {}
        if form is not None:
            data, kind = urlencode(form), {"Content-Type": "application/x-www-form-urlencoded"}
        elif isinstance(body, bytes):
            data, kind = body, {"Content-Type": "application/json"}
        elif body is not None:
            data, kind = json.dumps(body), {"Content-Type": "application/json"}
        verb = method or ("GET" if data is None else "POST")
        connection.request(verb, path, data, {**kind, **(headers or {})})
        response = connection.getresponse()
        answer = Answer(response.status, dict(response.getheaders()), response.read())
        connection.close()
        return answer

    def translate(self, q: str | list[str], **fields: Any) -> Any:
        """Return the answer of /translate, from names ("en") to digits ("de")."""
        answer = self.ask("/translate", {"q": q, "source": "en", "target": "de", **fields})
        assert answer.status == 200, answer.body
        return answer.json

    def model_processes(self) -> list[int]:
        """Return the processes that have loaded the models: forks of children of the server."""
        return [child for each in children(self.process.pid) for child in children(each)]

    def workers(self) -> list[int]:
        """Return the processes that translate."""
        return [worker for models in self.model_processes() for worker in children(models)]

    def wait_for_log(self, pattern: str, timeout: float = 60) -> str:
        """Wait until the server has logged a line that matches."""
        deadline = threading.Event()
        timer = threading.Timer(timeout, deadline.set)
        timer.start()
        try:
            seen = 0
            while not deadline.is_set():
                for line in self.log[seen:]:
                    seen += 1
                    if re.search(pattern, line):
                        return line
                if self.process.poll() is not None:
                    break
                deadline.wait(0.02)
        finally:
            timer.cancel()
        raise AssertionError(f"no line like {pattern}: {self.log[-20:]}")


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    listed = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in listed for child in path.read_text().split()]


@contextmanager
def serving(
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    program: Sequence[object] = (sys.executable, "-m", "seq2seq_cli", "serve"),
    folder: Path | None = None,
) -> Iterator[Served]:
    """Start `seq2seq serve` on a free port; end it with SIGTERM, which must work."""
    command = [*map(str, program), "--port", "0", *map(str, arguments)]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    served = Served(process, "", 0)

    def read() -> None:
        for line in process.stderr:
            served.log.append(line.rstrip("\n"))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        line = served.wait_for_log(r"serving .* at http://")
        match = re.search(r"http://(\[?[^ ]+?\]?):(\d+)", line)
        served.host, served.port = match[1].strip("[]"), int(match[2])
        yield served
        if process.poll() is None:
            process.terminate()
            assert process.wait(timeout=30) == 0, served.log
    finally:
        process.kill()
        process.wait()
        reader.join(timeout=10)
        process.stderr.close()


def names_config(folder: Path, **languages: str) -> dict[str, Any]:
    """The number task the other way round, so that there are letters to translate."""
    config = numbers_config(folder, 1_500, **FAST)
    config["data"] |= {"direction": "reverse", "languages": languages}
    return config
