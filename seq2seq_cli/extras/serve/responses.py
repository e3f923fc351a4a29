"""Answers of the server: JSON, and errors with a status and a message."""

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Scope

CLIENT_GONE = 499  # logged and counted when the client has closed the connection
SHUTTING_DOWN = "the server is shutting down"


class RequestError(HTTPException):
    """A request is refused; `retry_after` (seconds) is given if a later one may succeed."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        super().__init__(status, message, headers)


def invalid(message: str) -> RequestError:
    """Return the error of a request that no server could answer."""
    return RequestError(400, f"Invalid request: {message}")


def error_response(
    scope: Scope, status: int, message: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return an error; its field is named as in the dialect of the path."""
    return JSONResponse({"message" if is_deepl(scope) else "error": message}, status, headers)


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    """Return the answer to a request that was refused, or has failed."""
    if isinstance(error, HTTPException):
        return error_response(request.scope, error.status_code, error.detail, error.headers)
    return error_response(request.scope, 500, "Internal server error")


def is_deepl(scope: Scope) -> bool:
    """Return True if a request is in the dialect of DeepL."""
    return str(scope["path"]).startswith("/v2/")
