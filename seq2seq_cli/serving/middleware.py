"""What happens to every request: limits, security headers, a count and a line in the log."""

import asyncio
import logging
import time
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seq2seq_cli.serving.json_response import Json
from seq2seq_cli.serving.monitoring import Monitoring
from seq2seq_cli.serving.request_errors import RequestError

logger = logging.getLogger(__name__)

# Nothing from anywhere else, no scripts or styles within the page, in no other page's frame.
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_SECURITY_HEADERS = {
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class SecurityHeaders:
    """Adds headers that keep browsers from doing what this server never wants."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)


class AllowedHosts:
    """Refuses requests for other host names: pages of these that resolve to this machine."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        """`hosts` without ports; an empty collection allows all."""
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._hosts:
            host = Headers(scope=scope).get("host", "").lower()
            name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
            if name not in self._hosts:
                refusal = Json({"error": "Invalid host header"}, status_code=400)
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyLimit:
    """Stops reading a request's body beyond a size."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app = app
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        num_bytes = 0

        async def receive_some() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._most_bytes:
                raise RequestError(413, f"Request body exceeds {self._most_bytes} bytes")
            return message

        if scope["type"] == "http":
            given = Headers(scope=scope).get("content-length", "")
            if given.isascii() and given.isdigit() and int(given) > self._most_bytes:
                num_bytes = self._most_bytes + 1
        await self._app(scope, receive_some, send)


class RequestLog:
    """Counts every request and logs a line about it; no text, as queries may hold some."""

    def __init__(
        self,
        app: ASGIApp,
        monitoring: Monitoring,
        paths: Collection[str],
        seconds_to_send: float,
    ) -> None:
        """All paths but these are called other; a client that reads nothing for so long is left."""
        self._app = app
        self._paths = paths
        self._monitoring = monitoring
        self._seconds_to_send = seconds_to_send

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def send_in_time(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            async with asyncio.timeout(self._seconds_to_send):
                await send(message)

        self._monitoring.count_in_progress(1)
        try:
            await self._app(scope, receive, send_in_time)
        finally:
            self._monitoring.count_in_progress(-1)
            seconds = time.perf_counter() - start
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._monitoring.count_request(path, status, seconds)
            logger.info(f"{scope['method']} {path} {status} {1000 * seconds:.0f} ms")
