"""Streams (pipes, `<(...)`, standard input) given as text files: kept in files while in use.

A stream can be read once, and scoring reads its text several times.
"""

import contextlib
import gzip
import json
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

from seq2seq_cli.config.text import PAIRS_FORMATS
from seq2seq_cli.errors import UserError
from seq2seq_cli.text.io import STANDARD_STREAM, bounded_lines, standard_input

logger = logging.getLogger(__name__)

_GZIP = b"\x1f\x8b"  # how every gzip file begins
_OF_DESCRIPTORS = ("/dev/fd/", "/dev/stdin", "/proc/")  # names that say nothing of what is open


@contextlib.contextmanager
def as_files(
    texts: Sequence[Path | None], pairs: Path | None = None
) -> Iterator[tuple[list[Path | None], Path | None]]:
    """The same paths, but of a stream that of a copy, which is there until the block ends.

    The name of the copy says its format: `.gz` if the bytes do; of `pairs`, `.jsonl` if the first
    line is a JSON object, or else `.tsv`. Raises UserError for what is not there, folders, devices.
    """
    with ExitStack() as copies:
        yield (
            [_as_file(path, copies, is_pairs=False) for path in texts],
            _as_file(pairs, copies, is_pairs=True),
        )


def _as_file(path: Path | None, copies: ExitStack, *, is_pairs: bool) -> Path | None:
    if path is None:
        return None
    if path != STANDARD_STREAM:
        if not path.exists():
            raise UserError(f"there is no file {path}")
        if path.is_dir():
            raise UserError(f"{path} is a folder, not a text file")
        if path.is_file() and not str(path).startswith(_OF_DESCRIPTORS):
            return path
    folder = copies.enter_context(tempfile.TemporaryDirectory(prefix="seq2seq-stream-"))
    shown = Path("stdin") if path == STANDARD_STREAM else path
    copy = Path(folder) / shown.name.removesuffix(".gz")
    with _opened(path) as stream, copy.open("wb") as file:
        shutil.copyfileobj(stream, file)
    copy = copy.rename(copy.with_name(copy.name + _suffix(copy, is_pairs=is_pairs)))
    logger.info("%s is a stream: it is read once, into %s", shown, copy)
    return copy


def _opened(path: Path) -> BinaryIO:
    if path in (STANDARD_STREAM, Path("/dev/stdin")):
        return standard_input()
    file = path.open("rb")
    is_device = path.is_block_device() or path.is_char_device()
    if is_device and not os.isatty(file.fileno()):
        file.close()
        raise UserError(f"{path} is a device, not a text file")
    return file


def _suffix(copy: Path, *, is_pairs: bool) -> str:
    """What is missing at the end of the name for the content."""
    with copy.open("rb") as file:
        packed = ".gz" if file.read(len(_GZIP)) == _GZIP else ""
    if not is_pairs or copy.suffix in PAIRS_FORMATS:
        return packed
    try:
        with cast(BinaryIO, gzip.open(copy)) if packed else copy.open("rb") as text:
            first = next((line for line in bounded_lines(text) if line.strip()), b"")
    except (EOFError, OSError, zlib.error):  # which is said when it is read
        first = b""
    return (".jsonl" if _is_json_object(first) else ".tsv") + packed


def _is_json_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line.removeprefix(b"\xef\xbb\xbf")), dict)
    except (ValueError, RecursionError):
        return False
