"""serve(): runs the server until a signal ends it."""

import asyncio
import contextlib
import functools
import logging
import math
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from seq2seq_cli.errors import Interrupted, UserError
from seq2seq_cli.extras.serve.application import Access, Application
from seq2seq_cli.extras.serve.language_detection import load_detector
from seq2seq_cli.extras.serve.middleware import MOST_BYTES_TO_DROP, SECONDS_TO_DROP
from seq2seq_cli.extras.serve.monitoring import Monitoring
from seq2seq_cli.extras.serve.request_fields import Limits
from seq2seq_cli.extras.serve.served_run import RunToServe
from seq2seq_cli.extras.serve.service import ServiceSettings, TranslationService

__all__ = ["Access", "Limits", "RunToServe", "ServiceSettings", "serve"]

logger = logging.getLogger(__name__)

_SECONDS_TO_STAND_STILL = 15.0
_MOST_CONNECTIONS_WAITING = 2_048  # as the models are loaded
_MOST_HEADERS = 100
_MOST_HEADER_BYTES = 1 << 16
_BYTES_AT_ONCE = 1 << 14  # which are parsed; headers may be larger by so much


def serve(
    runs: Sequence[RunToServe],
    address: tuple[str, int],
    settings: ServiceSettings,
    limits: Limits,
    access: Access,
    *,
    logs_text: bool = False,
) -> None:
    """Serve runs at an address (host, port) until Ctrl-C or SIGTERM; answer what is under way.

    Raises UserError if the address cannot be used or a run cannot be loaded.
    """
    _allow_many_connections()
    with _listening_socket(*address) as listening:
        work = _serve(runs, listening, settings, limits, access, logs_text=logs_text)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)


async def _serve(
    runs: Sequence[RunToServe],
    listening: socket.socket,
    settings: ServiceSettings,
    limits: Limits,
    access: Access,
    *,
    logs_text: bool,
) -> None:
    monitoring = Monitoring()
    service = TranslationService(runs, settings, monitoring)
    application = Application(service, monitoring, limits, access, logs_text=logs_text)
    server = _Server(
        uvicorn.Config(
            application.asgi,
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=math.ceil(limits.seconds),
            backlog=_MOST_CONNECTIONS_WAITING,
        )
    )
    with server.ended_by_signals(service.kill_workers):
        detector = asyncio.create_task(asyncio.to_thread(load_detector))
        async with service.running():
            await detector
            pairs = ", ".join(f"{run.languages.src} to {run.languages.tgt}" for run in service.runs)
            server.greeting = f"serving {pairs} at {_url(listening)} (Ctrl-C ends)"
            await server.serve([listening])


class _Server(uvicorn.Server):
    """Uvicorn, which signals end from the moment on in which models are loaded."""

    greeting = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and say so."""
        await super().startup(sockets=sockets)
        logger.info(self.greeting)

    @contextlib.contextmanager
    def ended_by_signals(self, kill_workers: Callable[[], None]) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM end the server once its requests are answered; a second one, now.

        Raises Interrupted if one arrives before the server has started.
        """
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "this is called in a coroutine"
        received: list[signal.Signals] = []

        def end(number: signal.Signals) -> None:
            if received:
                kill_workers()
                os._exit(128 + number)
            received.append(number)
            if not self.started:
                task.cancel()
            self.should_exit = True

        for number in (signal.SIGINT, signal.SIGTERM):
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
    """HTTP of uvicorn, with limits on what has to be kept or waited for.

    Headers that are too large or too many are refused while they arrive. Connections that stand
    still are closed: if no request arrives within some seconds, or if an answer is not read.
    """

    _deadline: asyncio.TimerHandle | None = None
    _num_bytes = 0  # since the last that were no headers
    _has_headers = False  # all of the request; what comes after its body are trailers
    _headers_are_too_large = False
    _is_refused = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect(self.transport.close)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _BYTES_AT_ONCE):
            part = data[start : start + _BYTES_AT_ONCE]
            self._num_bytes += len(part)
            if self._is_refused:
                continue
            super().data_received(part)
            if self._num_bytes > _MOST_HEADER_BYTES:
                self._headers_are_too_large = True
                self.send_400_response("")
        if self._is_refused:
            if self._num_bytes > MOST_BYTES_TO_DROP:
                self.transport.abort()
            return
        is_answered = self.cycle is None or self.cycle.response_complete
        if is_answered and self._deadline is None and not self.transport.is_closing():
            self._expect(self.transport.close)

    def on_message_begin(self) -> None:
        self._num_bytes, self._has_headers = 0, False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_headers:
            return
        if len(self.headers) == _MOST_HEADERS:
            self._headers_are_too_large = True
            raise OverflowError  # with which the parser ends
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._num_bytes, self._has_headers = 0, True
        self._expect_nothing()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_bytes = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, or has headers that are too large, and close the connection.

        What the client still sends is dropped for a while, so that it can read the answer. There is
        none if a request before that is being answered, or an answer has begun.
        """
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self.pipeline or cycle.response_started or not cycle.more_body:
                self.transport.abort()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        status = HTTPStatus.BAD_REQUEST
        if self._headers_are_too_large:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
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
        """Abort unless the client goes on to read what is left of the answer."""
        unread = self.transport.get_write_buffer_size()
        if unread >= unread_before:
            self.transport.abort()
        elif unread:
            self._expect(functools.partial(self._expect_reading, unread))

    def _expect(
        self, otherwise: Callable[[], None], seconds: float = _SECONDS_TO_STAND_STILL
    ) -> None:
        self._deadline = self.loop.call_later(seconds, otherwise)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listening_socket(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with contextlib.ExitStack() as stack:
            # Event loops turn Nagle's algorithm off only where the protocol is said to be TCP.
            listening = stack.enter_context(socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_MOST_CONNECTIONS_WAITING)  # or another server could do the same
            stack.pop_all()
    except OSError as error:
        raise UserError(f"cannot listen at {host} port {port}: {error.strerror}") from None
    return listening


def _allow_many_connections() -> None:
    """Open as many files as the system allows: each connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
