"""What happens to every request: access, limits, security headers, metrics and a log line."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seq2seq_cli.extras.serve.monitoring import Monitoring
from seq2seq_cli.extras.serve.responses import (
    CLIENT_GONE,
    SHUTTING_DOWN,
    RequestError,
    error_response,
)

logger = logging.getLogger(__name__)

SECONDS_TO_DROP = 5.0  # the rest of a body that has been refused
_SECURITY_HEADERS = {
    # Nothing from other origins, no inline scripts or styles, no frames of other pages.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; manifest-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


@dataclass
class Observer:
    """The outermost layer: counts and logs requests and failures, and adds security headers.

    Log and metrics contain no text: queries may have some, and unknown paths are called other.
    """

    app: ASGIApp
    monitoring: Monitoring
    paths: Collection[str]
    seconds_to_send: float  # for each part of an answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, status, has_begun = time.perf_counter(), 500, False

        async def send_in_time(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            try:
                async with asyncio.timeout(self.seconds_to_send):
                    await send(message)
            except OSError:  # also when the time is over
                raise ClientDisconnect from None

        self.monitoring.in_progress.inc()
        try:
            await self.app(scope, receive, send_in_time)
        except ClientDisconnect:
            status = CLIENT_GONE
        except asyncio.CancelledError:  # the server ends, and waits no longer
            if not has_begun:
                answer = error_response(scope, 503, SHUTTING_DOWN, {"Retry-After": "5"})
                with contextlib.suppress(ClientDisconnect):
                    await answer(scope, receive, send_in_time)
        except Exception:  # was answered with status 500, unless an answer had begun
            logger.exception("a request has failed")
        finally:
            self.monitoring.in_progress.dec()
            seconds = time.perf_counter() - start
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.monitoring.requests.labels(path, str(status)).inc()
            self.monitoring.latency.labels(path).observe(seconds)
            logger.info(f"{scope['method']} {path} {status} {1000 * seconds:.0f} ms")


@dataclass
class AllowedOrigins:
    """Refuses requests caused by pages of other sites.

    A page may have a name that resolves to this machine, or send forms to it.
    """

    app: ASGIApp
    hosts: Collection[str]  # allowed values of the Host header; empty: all
    origins: Collection[str]  # of other sites

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
        # Programs send no origin, add-ons of browsers one of another scheme.
        is_page = origin == "null" or origin.startswith(("http://", "https://"))
        is_own = origin.partition("://")[2] == host
        is_allowed = is_own or "*" in self.origins or origin in self.origins
        app = self.app
        if self.hosts and _without_port(host) not in map(_without_port, self.hosts):
            app = error_response(scope, 400, "Invalid host header (--allow-host)")
        elif scope["method"] == "POST" and is_page and not is_allowed:
            message = f"Pages of {origin} may not use this server (--allow-origin)"
            app = error_response(scope, 403, message)
        await app(scope, receive, send)


def _without_port(host: str) -> str:
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


@dataclass
class BodyLimit:
    """Refuses a body beyond a size; at once, if the request states its length.

    Afterwards the rest of the body is read and dropped for a while: if the connection were closed
    before, the client's system would discard the answer.
    """

    app: ASGIApp
    max_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stated = Headers(scope=scope).get("content-length", "")
        num_bytes = int(stated) if stated.isascii() and stated.isdigit() else 0
        if num_bytes <= self.max_bytes:
            num_bytes = 0  # received so far

        async def receive_some() -> Message:
            nonlocal num_bytes
            if num_bytes <= self.max_bytes:
                message = await receive()
                num_bytes += len(message.get("body", b""))
            if num_bytes > self.max_bytes:
                raise RequestError(413, f"Request body exceeds {self.max_bytes} bytes")
            return message

        async def send_and_drop(message: Message) -> None:
            if num_bytes <= self.max_bytes:
                await send(message)
            elif message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Connection"] = "close"
                await send(message)
            else:
                await send({**message, "more_body": True})
                if not message.get("more_body", False):
                    await _drop_body(receive)
                    await send({"type": "http.response.body"})

        await self.app(scope, receive_some, send_and_drop)


async def _drop_body(receive: Receive) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SECONDS_TO_DROP):
            while (await receive()).get("more_body", False):
                pass
