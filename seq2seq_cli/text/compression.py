"""Opens compressed text (.gz, .bz2, .xz, .zst, members of .zip), and refuses compression bombs."""

import bz2
import errno
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from seq2seq_cli.errors import UserError
from seq2seq_cli.files import naming
from seq2seq_cli.paths import is_remote

# Text compresses to a third, seldom to a tenth: larger ratios are refused beyond some bytes.
_MAX_COMPRESSION = 100
_FREE_TO_UNPACK = 1 << 28

# Few bytes at a time, as each of them may unpack to 32 KiB in a .zst file.
_PACKED_AT_ONCE = 1 << 10
_BUFFER = 1 << 18


class Compression(NamedTuple):
    name: str
    magic: bytes  # the first bytes of every such file
    open: Callable[[BinaryIO], Any]


def _unpacked(
    file: BinaryIO,
    start: Callable[[], Any],
    damage: type[Exception],
    most: Sequence[int] = (),
    padding: bytes = b"",
) -> Iterator[bytes]:
    """Yield the text of all streams of a file; EOFError if one is damaged or not whole.

    The readers of the packages themselves end silently at a later stream that is damaged (bz2 and
    lzma) or cut off (zstandard). `start` makes the unpacker of a stream; `most`: the bytes that it
    unpacks at a time, if it takes a limit. `padding` may follow a stream.
    """
    packed = file.read(_PACKED_AT_ONCE)
    while True:
        stream = start()
        while not stream.eof:
            if not packed and getattr(stream, "needs_input", True):
                packed = file.read(_PACKED_AT_ONCE)
                if not packed:
                    raise EOFError
            try:
                text = stream.decompress(packed, *most)
            except damage:
                raise EOFError from None
            yield text
            packed = stream.unused_data
        packed = packed.lstrip(padding)
        while not packed:
            if not (read := file.read(_PACKED_AT_ONCE)):
                return
            packed = read.lstrip(padding)


class _Reader(io.RawIOBase):
    """A file of these chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._chunk = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._chunk = self._chunk or memoryview(next(filter(None, self._chunks), b""))
        count = min(len(buffer), len(self._chunk))
        buffer[:count], self._chunk = self._chunk[:count], self._chunk[count:]
        return count


def _buffered(chunks: Iterator[bytes]) -> BinaryIO:
    return io.BufferedReader(_Reader(chunks), _BUFFER)


def _open_bz2(file: BinaryIO) -> BinaryIO:
    return _buffered(_unpacked(file, bz2.BZ2Decompressor, OSError, [_BUFFER], b"\0"))


def _open_xz(file: BinaryIO) -> BinaryIO:
    return _buffered(_unpacked(file, lzma.LZMADecompressor, lzma.LZMAError, [_BUFFER], b"\0"))


def _open_zstd(file: BinaryIO) -> BinaryIO:
    import zstandard

    start = zstandard.ZstdDecompressor().decompressobj
    return _buffered(_unpacked(file, start, zstandard.ZstdError))


BY_SUFFIX: dict[str, Compression] = {
    ".gz": Compression("gzip", b"\x1f\x8b", gzip.open),
    ".bz2": Compression("bzip2", b"BZh", _open_bz2),
    ".xz": Compression("xz", b"\xfd7zXZ\x00", _open_xz),
    ".zst": Compression("zstd", b"\x28\xb5\x2f\xfd", _open_zstd),
}


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a text file in binary mode, unpacked, while the block runs.

    Raises UserError if it cannot be opened, and if the block reads a damaged part.
    """
    compression = BY_SUFFIX.get(path.suffix)
    try:
        with naming(path), _opened_as_it_is(path) as packed:
            if compression is None:
                yield packed
                return
            if not packed.peek(1):  # gzip would read an empty file as empty text
                raise EOFError
            with cast(BinaryIO, compression.open(packed)) as file:
                yield file
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, not a text file") from None
    except (EOFError, OSError, zlib.error) as error:
        if compression is None or (isinstance(error, OSError) and error.errno is not None):
            raise  # an error of the system
        raise UserError(f"{path} is not a complete {compression.name} file") from None


def _opened_as_it_is(path: Path) -> io.BufferedReader:
    """Open a file; a remote one gets a buffer, as its own reads lines slowly."""
    file = path.open("rb")
    if not is_remote(path):
        return file
    return io.BufferedReader(cast(io.RawIOBase, file), _BUFFER)


@contextmanager
def opened_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive while the block runs; raises UserError if it is damaged or encrypted."""
    try:
        with naming(path), _opened_as_it_is(path) as file, zipfile.ZipFile(file) as archive:
            yield archive
    except (zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError):
        raise UserError(f"{path} is not a complete zip file") from None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise UserError(f"{path} is not a complete zip file") from None  # it lacks its beginning
    except (NotImplementedError, RuntimeError) as error:  # that is how zipfile says it
        raise UserError(f"{path} cannot be unpacked: {error}") from None


def limited(path: Path, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Pass on what was read from a file; raises UserError for a compression bomb."""
    if path.suffix not in BY_SUFFIX:
        yield from chunks
        return
    yield from limited_to(str(path), chunks, path.stat().st_size)


def limited_to(name: str, chunks: Iterable[bytes], packed_bytes: int) -> Iterator[bytes]:
    """Pass on chunks unpacked from `packed_bytes`; UserError if a few bytes become gigabytes."""
    allowed = _FREE_TO_UNPACK + _MAX_COMPRESSION * packed_bytes
    for chunk in chunks:
        allowed -= len(chunk) + 1
        if allowed < 0:
            raise UserError(
                f"{name} unpacks to {_MAX_COMPRESSION} times its size: this is not text"
            )
        yield chunk
