"""What happens to every request: limits, security headers, a count and a line in the log."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seq2seq_cli.extras.serve.json_response import Json
from seq2seq_cli.extras.serve.monitoring import Monitoring
from seq2seq_cli.extras.serve.request_errors import CLIENT_GONE, RequestError

logger = logging.getLogger(__name__)

SECONDS_TO_DROP = 5.0  # the rest of a body that has been refused
MOST_BYTES_TO_DROP = 1 << 24
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


class Failures:
    """Answers with status 500 where a handler fails, without a traceback, which is logged."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except (OSError, ClientDisconnect):  # the client has left
            raise
        except Exception:
            logger.exception("a request has failed")
            if not has_started:
                failure = error_response(scope, 500, "Internal server error")
                await failure(scope, receive, send)


class AllowedOrigins:
    """Refuses requests that pages of other sites make, knowingly or not.

    A page may have a name that resolves to this machine, or send forms to it.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], origins: Collection[str]) -> None:
        """`hosts`: names that requests may be for; empty: all. `origins`: of other sites."""
        self._app = app
        self._hosts = frozenset(map(host_name, hosts))
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
            if self._hosts and host_name(host) not in self._hosts:
                refusal = error_response(scope, 400, "Invalid host header")
                await refusal(scope, receive, send)
                return
            if scope["method"] == "POST" and not self._may_post(origin, host):
                refusal = error_response(scope, 403, f"Pages of {origin} may not use this server")
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _may_post(self, origin: str, host: str) -> bool:
        """Whether these are no pages of other sites: programs, own pages, add-ons of browsers."""
        is_of_web = origin == "null" or origin.startswith(("http://", "https://"))
        is_own = origin.partition("://")[2] == host
        return not is_of_web or is_own or not self._origins.isdisjoint({"*", origin})


def host_name(host: str) -> str:
    """Return a host without its port."""
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


def error_response(
    scope: Scope, status: int, message: str, headers: Mapping[str, str] | None = None
) -> Json:
    """Return an error as the dialect of a path has it."""
    name = "message" if scope["path"].startswith("/v2/") else "error"
    return Json({name: message}, status_code=status, headers=headers)


class BodyLimit:
    """Refuses a body beyond a size; at once, if the request says its length.

    What the client still sends is then dropped for a while: if the connection were closed before,
    its system would throw away the answer.
    """

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app = app
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get("content-length", "")
        num_bytes = int(given) if given.isascii() and given.isdigit() else 0
        if num_bytes <= self._most_bytes:
            num_bytes = 0  # so far

        async def receive_some() -> Message:
            nonlocal num_bytes
            if num_bytes <= self._most_bytes:
                message = await receive()
                num_bytes += len(message.get("body", b""))
            if num_bytes > self._most_bytes:
                raise RequestError(413, f"Request body exceeds {self._most_bytes} bytes")
            return message

        async def send_and_drop(message: Message) -> None:
            if num_bytes <= self._most_bytes:
                await send(message)
            elif message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Connection"] = "close"
                await send(message)
            else:
                await send({**message, "more_body": True})
                if not message.get("more_body", False):
                    await _drop_body(receive)
                    await send({"type": "http.response.body"})

        await self._app(scope, receive_some, send_and_drop)


async def _drop_body(receive: Receive) -> None:
    num_bytes = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SECONDS_TO_DROP):
            while num_bytes < MOST_BYTES_TO_DROP:
                message = await receive()
                num_bytes += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


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
            try:
                async with asyncio.timeout(self._seconds_to_send):
                    await send(message)
            except TimeoutError:
                raise ClientDisconnect from None

        self._monitoring.count_in_progress(1)
        try:
            await self._app(scope, receive, send_in_time)
        except ClientDisconnect:
            status = CLIENT_GONE
        finally:
            self._monitoring.count_in_progress(-1)
            seconds = time.perf_counter() - start
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._monitoring.count_request(path, status, seconds)
            logger.info(f"{scope['method']} {path} {status} {1000 * seconds:.0f} ms")
