"""Requests that are refused: the status and message of the answer."""

CLIENT_GONE = 499  # the status of an answer that nobody receives


class RequestError(Exception):
    """An answer other than 200; `retry_after` in seconds, for those that may succeed later."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


def invalid(message: str) -> RequestError:
    """Return the error of a request that no server could answer."""
    return RequestError(400, f"Invalid request: {message}")
