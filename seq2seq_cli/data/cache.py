"""The cache of token ids: where it is, how much it may hold, and which stores are in use."""

import fcntl
import logging
import math
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from seq2seq_cli.errors import UserError

logger = logging.getLogger(__name__)

FILES = ("src.ids", "src.offsets", "tgt.ids", "tgt.offsets", "facts.json")  # of a store
PART = ".part-"  # how the name of one that is being made begins
MEGABYTE = 1_000_000

_NAME = re.compile(rf"[0-9a-f]{{32}}|{re.escape(PART)}\w+")
_GIGABYTES = 10.0
_JUST_USED = 60.0  # seconds in which nobody else takes a store away, which may not be locked yet


def cache_folder() -> Path:
    """`$SEQ2SEQ_CACHE`, else `seq2seq-cli` in the user's cache folder; may be deleted any time."""
    if given := os.environ.get("SEQ2SEQ_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seq2seq-cli"


def most_bytes() -> float:
    """That stores may have together: `$SEQ2SEQ_CACHE_GB`, else 10 GB. UserError if it is none."""
    given = os.environ.get("SEQ2SEQ_CACHE_GB") or str(_GIGABYTES)
    try:
        gigabytes = float(given)
    except ValueError:
        gigabytes = math.nan
    if not gigabytes >= 0:
        raise UserError(f"SEQ2SEQ_CACHE_GB: must be a number of gigabytes, not {given!r}")
    return gigabytes * 1e9


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """While the block runs no process takes the store away."""
    descriptor = lock(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def lock(folder: Path) -> int:
    """In use until the file descriptor is closed, at the latest by the end of the process.

    Raises FileNotFoundError if the store is taken away just now.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # there are file systems without locks: there all are in use
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if not os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise FileNotFoundError(folder)
        with suppress(OSError):  # a cache may be somebody else's
            os.utime(folder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class _Store(NamedTuple):
    last_used: float
    size: int  # bytes
    folder: Path


def make_room() -> None:
    """Take stores away until the cache is within its bound, those first that were used long ago.

    None that is in use, and nothing else that lies in the folder.
    """
    stores, bound = _stores(), most_bytes()
    total = sum(store.size for store in stores)
    removed: list[_Store] = []
    for store in sorted(stores):
        if total <= bound or time.time() - store.last_used < _JUST_USED:
            break
        if _remove(store.folder):
            total -= store.size
            removed.append(store)
    if removed:
        size = sum(store.size for store in removed) / MEGABYTE
        logger.info(
            f"{cache_folder()}: {len(removed):,} stores of token ids ({size:,.1f} MB) are removed, "
            f"those not used for longest; SEQ2SEQ_CACHE_GB is {bound / 1e9:g}"
        )


def size_of(folder: Path) -> int:
    """Bytes of a store."""
    sizes = 0
    for name in FILES:
        with suppress(FileNotFoundError):
            sizes += (folder / name).stat().st_size
    return sizes


def total_size() -> int:
    """Bytes of all stores."""
    return sum(store.size for store in _stores())


def _stores() -> list[_Store]:
    """Folders that are named like stores and hold nothing else."""
    found = []
    with suppress(FileNotFoundError):
        for folder in cache_folder().iterdir():
            if not _NAME.fullmatch(folder.name) or folder.is_symlink():
                continue
            with suppress(FileNotFoundError, NotADirectoryError):  # another process was faster
                if {path.name for path in folder.iterdir()} <= set(FILES):
                    found.append(_Store(folder.stat().st_mtime, size_of(folder), folder))
    return found


def _remove(folder: Path) -> bool:
    """Whether the store is gone; not if somebody uses it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in reversed(FILES):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
