"""Opens compressed text (.gz, .bz2, .xz, .zst, members of .zip), and refuses compression bombs."""

import bz2
import errno
import functools
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
    chunks: Callable[[BinaryIO], Iterator[bytes]]  # of the text in such a file


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


def _from_gzip(file: BinaryIO) -> Iterator[bytes]:
    # Unlike read, read1 returns what there is before damaged or missing data.
    return iter(functools.partial(gzip.open(file).read1, _BUFFER), b"")


def _from_bz2(file: BinaryIO) -> Iterator[bytes]:
    return _unpacked(file, bz2.BZ2Decompressor, OSError, [_BUFFER], b"\0")


def _from_xz(file: BinaryIO) -> Iterator[bytes]:
    return _unpacked(file, lzma.LZMADecompressor, lzma.LZMAError, [_BUFFER], b"\0")


def _from_zstd(file: BinaryIO) -> Iterator[bytes]:
    import zstandard

    return _unpacked(file, zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError)


BY_SUFFIX: dict[str, Compression] = {
    ".gz": Compression("gzip", b"\x1f\x8b", _from_gzip),
    ".bz2": Compression("bzip2", b"BZh", _from_bz2),
    ".xz": Compression("xz", b"\xfd7zXZ\x00", _from_xz),
    ".zst": Compression("zstd", b"\x28\xb5\x2f\xfd", _from_zstd),
}


def unpacked(path: Path, file: BinaryIO, compression: Compression) -> BinaryIO:
    """Return the text in an open file; reading a compression bomb raises UserError."""
    chunks = limited(str(path), compression.chunks(file), path.stat().st_size)
    return io.BufferedReader(_Reader(chunks), _BUFFER)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a text file, unpacked, in the block; UserError for no file, a damaged one or a bomb."""
    compression = BY_SUFFIX.get(path.suffix)
    try:
        with naming(path), _opened_as_it_is(path) as packed:
            if compression is None:
                yield packed
                return
            if not packed.peek(1):  # gzip would read an empty file as empty text
                raise EOFError
            yield unpacked(path, packed, compression)
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
    except (zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # it lacks its beginning
            raise
        raise UserError(f"{path} is not a complete zip file") from None
    except (NotImplementedError, RuntimeError) as error:  # that is how zipfile says it
        raise UserError(f"{path} cannot be unpacked: {error}") from None


def limited(name: str, chunks: Iterable[bytes], packed_bytes: int) -> Iterator[bytes]:
    """Pass on chunks unpacked from `packed_bytes`; UserError if a few bytes become gigabytes."""
    allowed = _FREE_TO_UNPACK + _MAX_COMPRESSION * packed_bytes
    for chunk in chunks:
        allowed -= len(chunk) + 1
        if allowed < 0:
            raise UserError(
                f"{name} unpacks to {_MAX_COMPRESSION} times its size: this is not text"
            )
        yield chunk
