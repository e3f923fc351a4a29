"""Log messages on standard error, above a progress bar; printable text; tables."""

import logging
import sys
import unicodedata
from collections.abc import Sequence
from contextlib import suppress


class _ConsoleHandler(logging.Handler):
    """Write to the current standard error, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        # A full disk behind a redirected stderr, or a closed `| tee`, must not end training.
        with suppress(OSError):
            tqdm.write(printable_lines(self.format(record)), file=sys.stderr)


def log_to_stderr() -> None:
    """Show the package's log messages from INFO upwards; loggers pass on all, for train.log."""
    package_logger = logging.getLogger("seq2seq_cli")
    package_logger.setLevel(logging.DEBUG)
    if not package_logger.handlers:
        package_logger.addHandler(_ConsoleHandler(logging.INFO))


def is_logging_to_stderr() -> bool:
    """Return True if `log_to_stderr` was called in this process."""
    handlers = logging.getLogger("seq2seq_cli").handlers
    return any(isinstance(handler, _ConsoleHandler) for handler in handlers)


def is_stderr_watched() -> bool:
    """Return True if standard error is a terminal, which progress bars are for."""
    return sys.stderr is not None and sys.stderr.isatty()


def printable(text: str) -> str:
    """Return text with unprintable characters escaped, as they may control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Return text of several lines with its other unprintable characters escaped."""
    return "\n".join(map(printable, text.split("\n")))


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, as `1 pair` or `2,000 pairs`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def columns_of(text: str) -> int:
    """Return how many columns printable text takes on a terminal."""
    shown = [c for c in text if unicodedata.category(c) not in ("Mn", "Me")]  # marks take no column
    return len(shown) + sum(unicodedata.east_asian_width(c) in "WF" for c in shown)


def padded(text: str, columns: int) -> str:
    return text + " " * (columns - columns_of(text))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of equally many cells as aligned columns, of which the first is text."""
    rows = [[printable(first), *rest] for first, *rest in rows]
    widths = [max(map(columns_of, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([padded(first, widths[0]), *map(str.rjust, rest, widths[1:])]).rstrip()
        for first, *rest in rows
    )
