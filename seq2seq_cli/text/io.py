"""Reads and writes lines of text, in files and streams; only a line feed ends a line."""

import codecs
import functools
import logging
import math
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, TextIO, cast

from seq2seq_cli.config.text import without_compression
from seq2seq_cli.console import counted
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import check_empty, lock, naming
from seq2seq_cli.paths import remote_errors
from seq2seq_cli.text.compression import opened

logger = logging.getLogger(__name__)

MOST_BYTES = 1 << 22  # of a line

STANDARD_STREAM = Path("-")


class Place(NamedTuple):
    """Where in a file some of its lines are."""

    first_number: int = 0  # of the first one, from 0
    share: float = 1.0  # of the bytes of the file


WHOLE_FILE = Place()


def raw_lines(path: Path) -> Iterator[bytes]:
    """Yield lines without line ends and byte order mark; `.gz` and the like are unpacked.

    Only a line feed (after an optional carriage return) ends a line: text may contain the other
    characters that Unicode calls line ends, and counting them would shift the pairs. Lines longer
    than `MOST_BYTES` are truncated, but still longer than that.
    """
    return strip_line_ends(lines_with_ends(path))


def lines_with_ends(path: Path) -> Iterator[bytes]:
    """Yield lines as `raw_lines` does, with line ends and byte order mark."""
    with opened(path) as file:
        yield from bounded_lines(file)


def lines_to_translate(path: Path | None) -> Iterator[str]:
    """Yield the lines of a file, or of standard input for None or `-`, as `decoded_lines` does.

    Raises UserError also for archives and translation memories.
    """
    if path is None or path == STANDARD_STREAM:
        source = strip_line_ends(bounded_lines(standard_input()))
    else:
        refuse_archive(path)
        source = raw_lines(path)
    yield from decoded_lines(source, str(path or "standard input"))


def refuse_archive(path: Path) -> None:
    """Raise UserError for the name of an archive or a translation memory."""
    if without_compression(path.name).endswith((".zip", ".tmx")):
        raise UserError(f"{path} is not text with a sentence on each line")


def refuse_utf16(first_line: bytes, name: str) -> None:
    """Raise UserError for a line that begins with the byte order mark of UTF-16."""
    if first_line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"{name} is not UTF-8 (is it UTF-16?)")


def decoded_lines(source: Iterable[bytes], name: str, first_number: int = 1) -> Iterator[str]:
    """Decode lines; invalid UTF-8 becomes U+FFFD, and a warning at the end counts such lines.

    Raises UserError, with `name` and number, for UTF-16 and for lines that are too long.
    """
    num_damaged = 0
    for number, raw in enumerate(source, first_number):
        if len(raw) > MOST_BYTES:
            raise UserError(f"{name}, line {number:,}: longer than {MOST_BYTES:,} bytes")
        if number == 1:
            refuse_utf16(raw, name)
        line = raw.decode("utf-8", errors="replace")
        num_damaged += "\ufffd" in line and b"\xef\xbf\xbd" not in raw
        yield line
    if num_damaged:
        lines = counted(num_damaged, "line")
        logger.warning(f"invalid UTF-8 in {lines}; U+FFFD replaces invalid bytes")


@contextmanager
def line_writer(
    path: Path | None, *, is_locked: bool = False, may_replace: bool = True
) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes a line at once, to a file or (None or `-`) to standard output.

    The file is created with the first line, or at the end: an error before leaves no empty file,
    and a later one is followed by a warning. Errors of the system name the file. Unless it
    `is_locked`, UserError if another process is writing it, or if it has content by then and not
    `may_replace`.
    """
    target = None if path == STANDARD_STREAM else path
    name = target or Path("standard output")
    with ExitStack() as stack:

        @functools.cache
        def file() -> BinaryIO:
            if target is None:
                return sys.stdout.buffer
            opened_file = target.open("ab")
            stack.callback(naming(name)(opened_file.close))
            if target.is_file():  # no pipe or device
                if not is_locked:
                    _lock_output(opened_file, target)
                    if not may_replace:
                        check_empty(target)
                opened_file.truncate(0)
            return opened_file

        @naming(name)
        def write(line: str) -> None:
            file().write(line.encode("utf-8", errors="replace") + b"\n")
            file().flush()

        try:
            yield write
            file()
        except BaseException:
            if not is_locked and target and target.is_file() and file.cache_info().currsize:
                logger.warning(f"{target} is incomplete; --force replaces it")
            raise


def _lock_output(file: BinaryIO, path: Path) -> None:
    try:
        lock(file.fileno())
    except BlockingIOError:
        raise UserError(f"another process is writing {path}") from None


def is_one_file(source: Path | None, target: Path | None) -> bool:
    """Return True if input and output are the same regular file.

    None and `-` are the standard streams.
    """
    read, written = _status(source, sys.stdin), _status(target, sys.stdout)
    if read is None or written is None or not stat.S_ISREG(read.st_mode):
        return False
    return os.path.samestat(read, written)


def may_wait(source: Path | None) -> bool:
    """Return True if lines may arrive one by one, as from a pipe, not from a regular file."""
    status = _status(source, sys.stdin)
    return status is None or not stat.S_ISREG(status.st_mode)


def _status(path: Path | None, standard: TextIO) -> os.stat_result | None:
    """Return the status of the file behind a path or a standard stream; None if there is none."""
    try:
        if path is None or path == STANDARD_STREAM:
            return os.fstat(standard.fileno())
        with remote_errors(path):
            return path.stat()
    except OSError:
        return None


def standard_input() -> BinaryIO:
    """Open a second reader: Python cannot exit while a thread waits in `sys.stdin`."""
    try:
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    except OSError:  # no file descriptor, as in tests
        return cast(BinaryIO, sys.stdin.buffer)


def strip_line_ends(lines: Iterable[bytes], first_number: int = 0) -> Iterator[bytes]:
    """Yield lines as `raw_lines` does; the first of a file, with number 0, may have a mark."""
    for number, raw in enumerate(lines, first_number):
        line = raw.removesuffix(b"\n").removesuffix(b"\r")
        yield line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line


def bounded_lines(file: BinaryIO, num_bytes: float = math.inf) -> Iterator[bytes]:
    """Yield the lines that begin in the next bytes, with line ends; too long ones are truncated."""
    limit = MOST_BYTES + 8  # for the line end and a byte order mark
    position = 0
    while position < num_bytes and (raw := file.readline(limit)):
        position += len(raw)
        yield raw
        while len(raw) == limit and not raw.endswith(b"\n"):
            raw = file.readline(limit)
            position += len(raw)
