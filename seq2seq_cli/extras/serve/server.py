"""serve(): runs the server until a signal ends it."""

import asyncio
import contextlib
import functools
import logging
import math
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any

import httptools
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from seq2seq_cli.errors import Interrupted, UserError
from seq2seq_cli.extras.serve.application import Access, build_application
from seq2seq_cli.extras.serve.languages import load_detector
from seq2seq_cli.extras.serve.middleware import SECONDS_TO_DROP
from seq2seq_cli.extras.serve.request_fields import Limits
from seq2seq_cli.extras.serve.served_run import RunToServe
from seq2seq_cli.extras.serve.service import TranslationService
from seq2seq_cli.machine import allow_many_open_files

__all__ = ["Access", "Limits", "RunToServe", "serve"]

logger = logging.getLogger(__name__)

_IDLE_SECONDS = 15.0
_LONGEST_END = 1e9  # seconds for pending requests, whose own time may be infinite
_MAX_WAITING_CONNECTIONS = 2_048  # while the models are loaded
_MAX_HEADERS = 100
_MAX_HEADER_BYTES = 1 << 16
_BYTES_AT_ONCE = 1 << 14  # parsed at once; headers may be larger by so much


def serve(
    runs: Sequence[RunToServe],
    address: tuple[str, int],
    limits: Limits,
    access: Access,
    *,
    workers: int,
    queue_limit: int,
    cache_bytes: int,
    logs_text: bool,
) -> None:
    """Serve runs at an address (host, port) until a signal ends it; answer pending requests.

    `queue_limit` is in sentences. Raises UserError if the address cannot be used or a run cannot be
    loaded.
    """

    async def run_server() -> None:
        service = TranslationService(
            runs, workers=workers, queue_limit=queue_limit, cache_bytes=cache_bytes
        )
        server = _Server(
            uvicorn.Config(
                build_application(service, limits, access, logs_text=logs_text),
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=math.ceil(min(limits.seconds, _LONGEST_END)),
                backlog=_MAX_WAITING_CONNECTIONS,
            )
        )
        with server.ended_by_signals(service.kill_workers):
            detector = asyncio.create_task(asyncio.to_thread(load_detector))
            async with service.running():
                await detector
                host, port = listening.getsockname()[:2]
                host = f"[{host}]" if ":" in host else host
                pairs = (f"{run.languages.src} to {run.languages.tgt}" for run in service.runs)
                server.greeting = (
                    f"serving {', '.join(pairs)} at http://{host}:{port} (Ctrl-C ends)"
                )
                await server.serve([listening])

    allow_many_open_files()  # each connection is one
    with (
        _listening_socket(*address) as listening,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(run_server())


class _Server(uvicorn.Server):
    """Uvicorn that signals end even while the models are loaded."""

    greeting = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and say so."""
        await super().startup(sockets=sockets)
        logger.info(self.greeting)

    @contextlib.contextmanager
    def ended_by_signals(self, kill_workers: Callable[[], None]) -> Iterator[None]:
        """End the server by a signal when requests are answered; at once by a second one.

        A second SIGHUP is ignored: when a terminal is closed, its shell and the system may each
        send one. Under nohup all are. Raises Interrupted if a signal arrives before the server has
        started.
        """
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "this is called in a coroutine"
        received: list[signal.Signals] = []

        def end(number: signal.Signals) -> None:
            if received and number == signal.SIGHUP:
                return
            if received:
                kill_workers()
                os._exit(128 + number)
            received.append(number)
            if not self.started:
                task.cancel()
            self.should_exit = True

        numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            numbers.remove(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, end, number)
        try:
            yield
        except asyncio.CancelledError:
            if not received:
                raise
            raise Interrupted("interrupted", 128 + received[0]) from None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals as they are."""
        yield


class _Protocol(HttpToolsProtocol):
    """HTTP of uvicorn, with limits on memory and time.

    Headers that are too large or too many are refused while they arrive. Idle connections are
    closed: if no request arrives within some seconds, or if an answer is not read.
    """

    _deadline: asyncio.TimerHandle | None = None
    _num_bytes = 0  # of headers so far
    _has_headers = False  # all of the request; what comes after its body are trailers
    _is_refused = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect(self.transport.close)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _BYTES_AT_ONCE):
            if self._is_refused:
                return
            part = data[start : start + _BYTES_AT_ONCE]
            self._num_bytes += len(part)
            self._parse(part)
            if self._num_bytes > _MAX_HEADER_BYTES:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        is_answered = self.cycle is None or self.cycle.response_complete
        if is_answered and self._deadline is None and not self.transport.is_closing():
            self._expect(self.transport.close)

    def _parse(self, data: bytes) -> None:
        """Parse bytes; a request to switch protocols (RFC 9110, 7.8) as one without Upgrade.

        The parser leaves out the body of such a request: Java's HttpClient offers HTTP/2 with it.
        """
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            logger.warning("Invalid HTTP request received.")
            self._refuse(HTTPStatus.BAD_REQUEST)
        except httptools.HttpParserUpgrade as upgrade:
            method, version = self.parser.get_method(), self.parser.get_http_version().encode()
            lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
            lines += [b"%s: %s" % field for field in self.headers if field[0] != b"upgrade"]
            self.parser = httptools.HttpRequestParser(self)  # the other may wait for the end
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._parse(b"\r\n".join([*lines, b"", data[upgrade.args[0] :]]))

    def on_message_begin(self) -> None:
        self._num_bytes, self._has_headers = 0, False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_headers:
            return
        if len(self.headers) == _MAX_HEADERS:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            raise OverflowError  # stops the parser
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._num_bytes, self._has_headers = 0, True
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise ValueError  # stops the parser
            return
        self._expect_nothing()
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0":
            self._leave_unframed(self.cycle)

    @staticmethod
    def _leave_unframed(cycle: RequestResponseCycle) -> None:
        """Let an answer end with its connection: HTTP/1.0 knows no chunks (RFC 9112, 6.1).

        uvicorn counts the bytes of an answer that is not chunked: here, each message is right.
        """
        send, cycle.chunked_encoding = cycle.send, False

        async def send_unframed(message: Any) -> None:
            cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        cycle.send = send_unframed  # type: ignore[method-assign]

    def on_body(self, body: bytes) -> None:
        self._num_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _refuse(self, status: HTTPStatus) -> None:
        """Refuse an invalid request, or headers that are too large, and close the connection.

        What the client still sends is dropped for a while, so that it can read the answer. There is
        no answer if the one to an earlier request is pending or has begun.
        """
        if self._is_refused:
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self.pipeline or cycle.response_started or not cycle.more_body:
                self.transport.abort()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        body = f'{{"error":"{status.phrase}"}}'
        self.transport.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            f"connection: close\r\n\r\n{body}".encode()
        )
        self.transport.write_eof()
        self._is_refused = True
        self._expect_nothing()
        self._expect(self.transport.abort, SECONDS_TO_DROP)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_nothing()
        self._expect_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def _expect_reading(self, unread_before: float = math.inf) -> None:
        """Abort unless the client continues to read the answer."""
        unread = self.transport.get_write_buffer_size()
        if unread >= unread_before:
            self.transport.abort()
        elif unread:
            self._expect(functools.partial(self._expect_reading, unread))

    def _expect(self, otherwise: Callable[[], None], seconds: float = _IDLE_SECONDS) -> None:
        self._deadline = self.loop.call_later(seconds, otherwise)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _listening_socket(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with contextlib.ExitStack() as stack:
            # Event loops turn Nagle's algorithm off only where the protocol is said to be TCP.
            listening = stack.enter_context(socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_MAX_WAITING_CONNECTIONS)  # or another server could do the same
            stack.pop_all()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not the name of a host"
        raise UserError(f"cannot listen at {host} port {port}: {reason}") from None
    return listening
