"""Copies streams (pipes, `<(...)`, standard input) that are given as text files to real files.

A stream can be read only once, and scoring reads its text several times.
"""

import json
import logging
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from seq2seq_cli.config.text import PAIRS_FORMATS, without_compression
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import naming
from seq2seq_cli.paths import remote_errors
from seq2seq_cli.text.compression import BY_SUFFIX, unpacked
from seq2seq_cli.text.io import STANDARD_STREAM, bounded_lines, standard_input

logger = logging.getLogger(__name__)

_ZIP = b"PK\x03\x04"  # the first bytes of every zip file
_FIRST_BYTES = 8
_XML = re.compile(rb"<(\?xml|!--|!DOCTYPE|tmx\b)")
# White space, byte order marks, and the zero bytes of UTF-16, in which XML may be written.
_BLANK = b" \t\r\n\xef\xbb\xbf\xff\xfe\x00"
_STDIN = (STANDARD_STREAM, Path("/dev/stdin"))
_DESCRIPTORS = ("/dev/fd/", "/dev/stdin", "/proc/")  # paths that may be regular files or streams


@contextmanager
def as_files(
    texts: Sequence[Path | None], pairs: Path | None = None
) -> Iterator[tuple[list[Path | None], Path | None]]:
    """Yield the same paths, with a temporary copy in place of each stream, which is read once.

    The copy's extension is its format: `.gz` and the like by its first bytes; for `pairs` also
    `.zip`, `.tmx` (of XML), `.jsonl` (of JSON), or else `.tsv`. Raises UserError for missing files,
    folders and devices, and for standard input twice.
    """
    if sum(path in _STDIN for path in texts) > 1:
        raise UserError("standard input can be read only once: give a file for one of the texts")
    with ExitStack() as copies:
        yield (
            [_as_file(path, copies, is_pairs=False) for path in texts],
            _as_file(pairs, copies, is_pairs=True),
        )


def _as_file(path: Path | None, copies: ExitStack, *, is_pairs: bool) -> Path | None:
    if path is None:
        return None
    if path != STANDARD_STREAM:
        with remote_errors(path):
            exists, is_folder, is_file = path.exists(), path.is_dir(), path.is_file()
        if not exists:
            raise UserError(f"there is no file {path}")
        if is_folder:
            raise UserError(f"{path} is a folder, not a text file")
        if is_file and not str(path).startswith(_DESCRIPTORS):
            return path
    folder = copies.enter_context(tempfile.TemporaryDirectory(prefix="seq2seq-stream-"))
    name = Path("stdin") if path == STANDARD_STREAM else path
    copy = Path(folder) / without_compression(name.name)
    is_stdin = path in _STDIN
    opened = standard_input() if is_stdin else path.open("rb")
    with opened as stream, naming(copy), copy.open("wb") as file:
        is_device = not is_stdin and (path.is_block_device() or path.is_char_device())
        if is_device and not os.isatty(stream.fileno()):
            raise UserError(f"{path} is a device, not a text file")
        shutil.copyfileobj(stream, file)
    copy = copy.rename(copy.with_name(copy.name + _suffix(copy, is_pairs=is_pairs)))
    logger.info(f"{name} is a stream and can be read only once; it is copied to {copy}")
    return copy


def _suffix(copy: Path, *, is_pairs: bool) -> str:
    """Return the extensions that the name lacks for its content."""
    with copy.open("rb") as file:
        start = file.read(_FIRST_BYTES)
        if is_pairs and start.startswith(_ZIP):
            return "" if copy.suffix == ".zip" else ".zip"
        compression = next((c for c, kind in BY_SUFFIX.items() if start.startswith(kind.magic)), "")
        if not is_pairs or copy.suffix in PAIRS_FORMATS:
            return compression
        file.seek(0)
        text = unpacked(copy, file, BY_SUFFIX[compression]) if compression else file
        suffix = ".tsv"
        # A damaged file and a bomb: reading it will say so. ValueError: it is not JSON.
        with suppress(EOFError, OSError, UserError, zlib.error, ValueError, RecursionError):
            first = next(filter(None, (line.strip(_BLANK) for line in bounded_lines(text))), b"")
            if _XML.match(first.replace(b"\0", b"")):  # UTF-16 too
                suffix = ".tmx"
            elif first.startswith(b"{"):
                json.loads(first)
                suffix = ".jsonl"
    return suffix + compression
