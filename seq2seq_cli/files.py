"""Atomic writing, locks, and bounded reading of files that may come from anywhere."""

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

from seq2seq_cli.errors import UserError

MEBIBYTE = 1 << 20


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old content or the new; errors name the file."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        fsync(part)
        part.replace(path)
        fsync(path.parent)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


def fsync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(descriptor: int) -> bool:
    """Lock an open file or folder until it is closed; return False on file systems without locks.

    Raises BlockingIOError if another process has the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        return False
    return True


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_atomic(path, text.encode("utf-8"))


def read_json(path: Path) -> Any:
    """Read a JSON file; raises UserError if it is missing, damaged or unreasonably large."""
    try:
        return json.loads(read_bounded(path, 16 * MEBIBYTE), parse_constant=_reject_constant)
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is damaged: it is not JSON") from None


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read a whole file; raises UserError if it has more than `max_bytes`."""
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise UserError(f"{path} is larger than {max_bytes:,} bytes, the limit for such a file")
    return data


def _reject_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")  # NaN, Infinity
