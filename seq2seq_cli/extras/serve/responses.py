"""Answers of the server: JSON, and errors with a status and a message."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

CLIENT_GONE = 499  # logged and counted when the client has closed the connection


class RequestError(HTTPException):
    """A request is refused; `retry_after` (seconds) is given if a later one may succeed."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        super().__init__(status, message, headers)


def invalid(message: str) -> RequestError:
    """Return the error of a request that no server could answer."""
    return RequestError(400, f"Invalid request: {message}")


class Json(Response):
    """JSON in UTF-8; unpaired surrogates, which a client may have sent, become question marks."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")


def error_response(
    scope: Scope, status: int, message: str, headers: Mapping[str, str] | None = None
) -> Json:
    """Return an error; its field is named as in the dialect of the path."""
    return Json({"message" if is_deepl(scope) else "error": message}, status, headers)


def is_deepl(scope: Scope) -> bool:
    """Return True if a request is in the dialect of DeepL."""
    return str(scope["path"]).startswith("/v2/")
