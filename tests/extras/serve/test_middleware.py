"""A handler's own failure is an answer with status 500; a client that has left gets none.

A request that is canceled, since the server ends, is answered with status 503.
"""

import asyncio
import errno
from collections.abc import Callable

import pytest
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seq2seq_cli.extras.serve.middleware import Observer
from seq2seq_cli.extras.serve.monitoring import Monitoring
from seq2seq_cli.extras.serve.responses import SHUTTING_DOWN, answer_error

SCOPE = {"type": "http", "method": "GET", "path": "/spec", "headers": []}


def status_counted(app: ASGIApp, send: Callable[[Message], None]) -> str:
    """Return the status of a request in the metrics; `send` gets the parts of the answer."""
    monitoring = Monitoring()

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send_soon(message: Message) -> None:
        send(message)

    layer = ServerErrorMiddleware(app, answer_error)
    observer = Observer(layer, monitoring, {"/spec"}, seconds_to_send=60)
    asyncio.run(observer(dict(SCOPE), receive, send_soon))
    samples = [one for metric in monitoring.requests.collect() for one in metric.samples]
    (status,) = (one.labels["status"] for one in samples if one.name.endswith("_total"))
    return status


@pytest.mark.parametrize("failure", [OSError(errno.EMFILE, "Too many open files"), KeyError("a")])
def test_a_handler_that_fails_answers_with_its_headers(failure, caplog):
    async def handler(scope: Scope, receive: Receive, send: Send) -> None:
        raise failure

    parts: list[Message] = []
    assert status_counted(handler, parts.append) == "500"
    assert parts[0]["status"] == 500
    assert (b"x-frame-options", b"DENY") in parts[0]["headers"]
    assert b"Internal server error" in parts[1]["body"]
    assert "a request has failed" in caplog.text


def test_a_client_that_has_left_is_no_failure(caplog):
    def leave(message: Message) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    assert status_counted(PlainTextResponse("specification"), leave) == "499"
    assert "a request has failed" not in caplog.text


async def cancel_itself(scope: Scope, receive: Receive, send: Send) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.Event().wait()


async def cancel_after_start(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await cancel_itself(scope, receive, send)


def test_a_request_that_the_end_of_the_server_cancels_is_answered():
    parts: list[Message] = []
    assert status_counted(cancel_itself, parts.append) == "503"
    assert SHUTTING_DOWN.encode() in parts[1]["body"]


def test_an_answer_that_has_begun_is_not_followed_by_another():
    parts: list[Message] = []
    assert status_counted(cancel_after_start, parts.append) == "200"
    assert len(parts) == 1


def test_a_client_that_leaves_a_server_that_ends_is_no_failure(caplog):
    def leave(message: Message) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    assert status_counted(cancel_itself, leave) == "503"
    assert "a request has failed" not in caplog.text
