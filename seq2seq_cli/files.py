"""Files that a crash cannot halve, and reading of files that may come from anywhere."""

import json
import os
from pathlib import Path
from typing import Any

from seq2seq_cli.errors import UserError

MEBIBYTE = 1 << 20


def write_atomic(path: Path, data: bytes) -> None:
    """A crash leaves the old file or the new one, never half of one; an error names the file."""
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
    """Return when a file, or a folder's list of names, is on the disk for certain."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_atomic(path, text.encode("utf-8"))


def read_json(path: Path) -> Any:
    """Raises UserError when the file is missing, damaged or larger than such a file can be."""
    try:
        return json.loads(read_bounded(path, 16 * MEBIBYTE), parse_constant=_no_number)
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is damaged: it is not JSON") from None


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """A file that comes from elsewhere, whole; UserError if it has more bytes."""
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise UserError(f"{path} is larger than {max_bytes:,} bytes, which no such file needs")
    return data


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
