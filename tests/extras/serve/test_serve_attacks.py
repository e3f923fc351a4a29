"""seq2seq serve against clients that mean ill: they are refused, and others are served."""

import json
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest
from served import Answer, Served, serving

FORM = b"q=one&source=en&target=de"
HEAD = b"POST /translate HTTP/1.1\r\nHost: localhost\r\n"
FORM_HEAD = HEAD + b"Content-Type: application/x-www-form-urlencoded\r\n"


def answer_to(server: Served, data: bytes) -> bytes:
    """Return all that the server says to some bytes until it closes the connection."""
    with socket.create_connection((server.host, server.port), timeout=60) as connection:
        connection.sendall(data)
        with connection.makefile("rb") as answer:
            return answer.read()


def first_line(server: Served, data: bytes) -> bytes:
    with socket.create_connection((server.host, server.port), timeout=60) as connection:
        connection.sendall(data)
        with connection.makefile("rb") as answer:
            return answer.readline()


def chunked(*parts: bytes, trailers: bytes = b"") -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b"")[:-1])
    return b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailers + b"\r\n"


# Headers


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: %b\r\n" % (n, b"a" * 1_000) for n in range(100)),
        b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 102,
        b"GET / HTTP/1.1\r\n" + b"X" * 100_000,
        b"GET /" + b"a" * 100_000,
    ],
    ids=["value", "lines", "number", "name", "path"],
)
def test_headers_beyond_a_limit_are_refused_as_they_arrive(server: Served, head: bytes):
    """The head never ends."""
    answer = answer_to(server, head)
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")


def test_headers_within_the_limit_are_read(server: Served):
    lines = b"".join(b"X%d: %b\r\n" % (n, b"a" * 600) for n in range(96))
    head = FORM_HEAD + b"Connection: close\r\n" + lines
    body = b"Content-Length: %d\r\n\r\n%b" % (len(FORM), FORM)
    assert answer_to(server, head + body).endswith(b'{"translatedText":"1"}')


def test_trailers_are_no_headers_and_have_a_limit(server: Served):
    close = b"Connection: close\r\n"
    body = chunked(b"q=one&", b"source=en&target=de", trailers=b"X: y\r\n")
    assert answer_to(server, FORM_HEAD + close + body).endswith(b'{"translatedText":"1"}')
    kind = b"Content-Type: application/x-www-form-urlencoded\r\n"
    assert b" 415 " in answer_to(server, HEAD + close + chunked(FORM, trailers=kind))
    many = b"".join(b"X%d: %b\r\n" % (n, b"a" * 1_000) for n in range(200))
    for endless in (
        chunked(FORM, trailers=many)[:-2],
        chunked(FORM, trailers=b"X: " + b"a" * 200_000)[:-2],
        b"Transfer-Encoding: chunked\r\n\r\n5;" + b"a" * 200_000,
    ):
        assert answer_to(server, FORM_HEAD + endless).startswith(b"HTTP/1.1 431 ")


# Bodies


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_an_offer_to_switch_protocols_is_ignored(server: Served, protocol: bytes):
    """Java's HttpClient makes one with every request."""
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %b\r\n" % protocol
    body = b"Content-Length: %d\r\n\r\n%b" % (len(FORM), FORM)
    close = b"Connection: close\r\n"
    two = FORM_HEAD + upgrade + body + FORM_HEAD + close + body
    assert answer_to(server, two).count(b'{"translatedText":"1"}') == 2
    assert b" 200 " in answer_to(server, FORM_HEAD + upgrade + close + chunked(FORM))
    assert b" 400 " in answer_to(server, b"CONNECT /translate HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert "WebSocket" not in "".join(server.log)


def test_a_body_that_is_too_large_is_refused_before_it_comes(server: Served):
    head = FORM_HEAD + b"Content-Length: 6000000\r\n\r\n"
    assert first_line(server, head).startswith(b"HTTP/1.1 413 ")
    waits = FORM_HEAD + b"Expect: 100-continue\r\nContent-Length: 6000000\r\n\r\n"
    assert first_line(server, waits).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 40000000\r\n\r\n" + b"a" * 40_000_000,
        chunked(*[b"a" * 1_000] * 6_000),
    ],
    ids=["whole", "chunked"],
)
def test_who_sends_too_much_can_read_the_answer(server: Served, body: bytes, close: bytes):
    answer = answer_to(server, FORM_HEAD + close + body)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b'{"error":"Request body exceeds 5185536 bytes"}')


@pytest.mark.parametrize("charset", ["undefined", "punycode", "no-such", "utf-16", "zip"])
def test_a_form_in_another_encoding_is_refused(server: Served, charset: str):
    boundary = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'
        for name, text in (("q", "one"), ("source", "en"), ("target", "de"))
    )
    kind = f"multipart/form-data; boundary=x; charset={charset}"
    body = f"{boundary}--x--\r\n".encode()
    assert_not_utf_8(server.ask("/translate", body, headers={"Content-Type": kind}))


@pytest.mark.parametrize("text", ["über".encode("latin-1"), b"%FCber"])
def test_text_in_another_encoding_is_refused(server: Served, text: bytes):
    kind = {"Content-Type": "application/x-www-form-urlencoded; charset=iso-8859-1"}
    fields = b"q=%b&source=en&target=de" % text
    assert_not_utf_8(server.ask("/translate", fields, headers=kind))
    assert_not_utf_8(server.ask("/translate?q=%FCber", FORM))


def assert_not_utf_8(answer: Answer):
    assert answer.status == 400
    assert answer.json == {"error": "Invalid request: forms and queries must be in UTF-8"}


# Requests that are none, or two


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x1b[2J / HTTP/1.1\r\n\r\n",
        FORM_HEAD + b"Content-Length: -1\r\n\r\n" + FORM,
        FORM_HEAD + b"Content-Length: 1e3\r\n\r\n" + FORM,
        FORM_HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n" + FORM,
        FORM_HEAD + b"Content-Length: 25\r\nContent-Length: 26\r\n\r\n" + FORM,
        FORM_HEAD + b"Content-Length: 25\r\nTransfer-Encoding: chunked\r\n\r\n" + FORM,
        FORM_HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + FORM,
        FORM_HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + FORM,
        FORM_HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + FORM,
        FORM_HEAD + b"Content-Length : 25\r\n\r\n" + FORM,
        FORM_HEAD + b"X: a\x00b\r\n\r\n",
        FORM_HEAD + b" folded: x\r\nContent Length: 25\r\n\r\n",
        pytest.param(b"GET\r\n\r\n" + b"a" * 40_000_000, id="much"),
    ],
)
def test_what_is_no_request_is_refused_once(server: Served, data: bytes):
    """A part of one request is never taken for another one."""
    answer = answer_to(server, data)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/page/..%2f..%2fserver.py",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/page.html%00.js",
        "/translate/../metrics",
        "/..\\..\\server.py",
        "/%ff%fe",
        "/<script>alert(1)</script>",
        "/%1b[31mred",
    ],
)
def test_paths_lead_to_no_other_files(server: Served, path: str):
    answer = server.ask(path)
    assert (answer.status, answer.json) == (404, {"error": "Not Found"})


def test_markup_in_a_request_is_never_a_page(server: Served):
    """Answers are JSON, which browsers do not show as pages, with markup of requests or without."""
    script = "<script>alert(1)</script>"
    answers = [
        server.ask("/translate", {"q": script, "source": script, "target": "de"}),
        server.ask("/translate", {"q": script, "source": "en", "target": "de"}),
        server.ask("/translate", {"q": "one", "source": "en", "target": "de", "format": script}),
        server.ask("/v2/translate", {"text": [script], "target_lang": script}),
        server.ask("/languages", headers={"Host": script}),
        server.ask("/languages", headers={"Origin": script}, method="POST"),
    ]
    for answer in answers:
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_control_characters_of_a_request_are_not_in_the_log(server: Served):
    escape = "\x1b]0;title\x07\x9b31m\r\nINFO forged"
    fields = {"q": escape, "source": escape, "target": escape, "format": escape}
    assert server.ask("/translate", fields).status == 400
    server.ask("/%1b[31m?q=%1b%0aforged")
    server.wait_for_log("other 404")
    assert not any("\x1b" in line or "forged" in line for line in server.log)


# The port, and the end


def test_two_servers_never_share_a_port(names_run: Path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "seq2seq_cli", "serve", str(names_run), "--port", str(port)]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as one,
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as two,
        ThreadPoolExecutor(2) as pool,
    ):
        try:
            first = next(as_completed([pool.submit(each.wait, 60) for each in (one, two)]))
            assert first.result() == 2
        finally:
            for each in (one, two):
                each.kill()
        refused = one if one.returncode == 2 else two
        assert f"cannot listen at 127.0.0.1 port {port}" in refused.stderr.read()


def ask_for_much(served: Served, count: int) -> socket.socket:
    """Request the translation of so many sentences; a million take five seconds to find."""
    body = json.dumps({"q": "one. " * count, "source": "en", "target": "de"}).encode()
    head = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    connection = socket.create_connection((served.host, served.port))
    connection.sendall(HEAD + head + body)
    while "seq2seq_requests_in_progress 2.0" not in served.ask("/metrics").body.decode():
        pass
    return connection


def test_a_second_signal_ends_the_server_at_once(names_run: Path):
    with serving(names_run, "--processes", 1, "--char-limit", 10**8) as served:
        workers = served.workers()
        with ask_for_much(served, 1_000_000):
            for number in (signal.SIGINT, signal.SIGTERM):
                served.process.send_signal(number)
            assert served.process.wait(timeout=30) in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in workers)


@pytest.mark.slow
def test_a_signal_does_not_wait_for_work_on_texts(names_run: Path):
    """The request is answered, as its time is over."""
    options = ("--processes", 1, "--char-limit", 10**8, "--time-limit", 4)
    with serving(names_run, *options) as served, ask_for_much(served, 6_000_000) as connection:
        served.process.terminate()
        assert served.process.wait(timeout=30) == 0
        assert connection.recv(12) == b"HTTP/1.1 503"
