"""The cache of token ids and line counts: folder, size limit, and locks on the stores in use."""

import errno
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import TypeAdapter

from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.config.types import OnBadLine
from seq2seq_cli.errors import DamagedFileError, UserError
from seq2seq_cli.files import MEBIBYTE, is_at, read_bounded, reading, write_atomic
from seq2seq_cli.files import lock as lock_file
from seq2seq_cli.paths import expanded
from seq2seq_cli.text.corpus import CorpusCounts, hash_of_files
from seq2seq_cli.text.leakage import count_corpus

logger = logging.getLogger(__name__)

FACTS = "facts.json"  # the file of a store that is locked, as NFS locks no folder for all machines
FILES = ("src.ids", "src.offsets", "tgt.ids", "tgt.offsets", FACTS)  # of a store
COUNTS = "counts"  # folder of the line counts of texts, which are small and stay
_WRITING = ".writing-"  # prefix of the locks of stores that are written
PART = ".part-"  # prefix of a store that is being written
MEGABYTE = 1_000_000

_NAME = re.compile(rf"[0-9a-f]{{32}}|{re.escape(PART)}\w+")
_GIGABYTES = 10.0
_MOST_TRIES = 1_000  # to lock a file that others remove
_VERSION = 4  # of what is counted of a text
_JUST_USED = 60.0  # seconds before a store may be removed, as it may not be locked yet


def cache_folder() -> Path:
    """Return `$SEQ2SEQ_CACHE` or `~/.cache/seq2seq-cli`; UserError if neither is known."""
    if given := os.environ.get("SEQ2SEQ_CACHE"):
        return expanded(given)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seq2seq-cli"
    except RuntimeError:
        raise UserError(
            "there is no home folder for the cache: set SEQ2SEQ_CACHE to a folder"
        ) from None


def changed_meanwhile(name: str) -> str:
    """Return the message about a text that has not stayed the one that its hash is of."""
    return f"{name} changed while being read: run the command again once nothing writes to it"


def key_of(values: Any) -> str:
    """Return the name of what depends on these values, which JSON can hold."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:32]


def most_bytes() -> float:
    """Return the size limit of the cache, `$SEQ2SEQ_CACHE_GB` or 10 GB; UserError if invalid."""
    given = os.environ.get("SEQ2SEQ_CACHE_GB") or str(_GIGABYTES)
    with suppress(ValueError):
        if (gigabytes := float(given)) >= 0:
            return gigabytes * 1e9
    raise UserError(f"SEQ2SEQ_CACHE_GB: must be a number of gigabytes, not {given!r}")


@contextmanager
def writing(key: str) -> Iterator[None]:
    """Wait until no other process, such as another one of this training, writes the store."""
    path = cache_folder() / f"{_WRITING}{key}"
    with ExitStack() as stack:
        for _ in range(_MOST_TRIES):
            with advising(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(_opened_to_lock(path))
                try:
                    lock_file(file.fileno(), waits=True)  # without locks, the last store is kept
                except OSError as error:
                    if error.errno != errno.EBADF or file.writable():  # NFS locks only to write
                        raise
            if is_at(path, file.fileno()):
                break
            stack.close()  # its last holder has removed it
        else:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        try:
            yield
        finally:
            with suppress(PermissionError):  # of Windows, as it is open
                path.unlink(missing_ok=True)


@contextmanager
def advising(path: Path) -> Iterator[None]:
    """Add the whole path, and what can be done, to errors about an entry of the cache."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        error.strerror = f"{error.strerror} (SEQ2SEQ_CACHE names another cache folder)"
        raise


def _opened_to_lock(path: Path) -> BinaryIO:
    try:
        return path.open("wb")
    except PermissionError:
        if not path.exists():
            raise
        return path.open("rb")  # a killed process of another user has left it


def lock(folder: Path) -> int:
    """Lock a store until the returned descriptor is closed; DamagedFileError if it is gone."""
    facts = folder / FACTS
    with reading(facts):
        descriptor = os.open(facts, os.O_RDONLY)
    try:
        with reading(facts):  # without locks, no store is ever removed
            lock_file(descriptor, shared=True, waits=True)
            is_same = os.path.samestat(os.fstat(descriptor), facts.stat())
        if not is_same:
            raise DamagedFileError(f"{facts} is missing")
        with suppress(OSError):  # the cache may belong to another user
            os.utime(folder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_room() -> None:
    """Remove the least recently used stores, but none in use, until the size limit is kept.

    Parts of stores that killed processes have left are removed anyway.
    """
    stores, limit = _stores(), most_bytes()
    total = sum(size for _, size, _ in stores)
    removed: list[int] = []
    for last_used, size, folder in sorted(stores):
        is_part = folder.name.startswith(PART)  # of a killed process, if none has locked it
        if (total <= limit and not is_part) or time.time() - last_used < _JUST_USED:
            continue
        with suppress(OSError), (folder / FACTS).open("ab") as file:  # NFS: to write
            if not lock_file(file.fileno()):  # an error if it is in use
                continue
            for name in FILES:  # the locked one last
                (folder / name).unlink(missing_ok=True)
            folder.rmdir()
            total -= size
            if not is_part:
                removed.append(size)
    if removed:
        logger.info(
            f"{cache_folder()}: removed the {len(removed):,} least recently used stores of token "
            f"ids ({sum(removed) / MEGABYTE:,.1f} MB) to stay within "
            f"SEQ2SEQ_CACHE_GB={limit / 1e9:g}"
        )


def size_of(folder: Path) -> int:
    """Return the size of a store in bytes."""
    size = 0
    for name in FILES:
        with suppress(FileNotFoundError):
            size += (folder / name).stat().st_size
    return size


def total_size() -> int:
    """Return the size of all stores in bytes."""
    return sum(size for _, size, _ in _stores())


def _stores() -> list[tuple[float, int, Path]]:
    """Return last use, bytes and folder of each store: a folder named like one, with only FILES."""
    stores = []
    with suppress(FileNotFoundError):
        for folder in cache_folder().iterdir():
            if not _NAME.fullmatch(folder.name) or folder.is_symlink():
                continue
            with suppress(FileNotFoundError, NotADirectoryError):  # removed by another process
                if {path.name for path in folder.iterdir()} <= set(FILES):
                    stores.append((folder.stat().st_mtime, size_of(folder), folder))
    return stores


def cached_counts(
    train: ParallelText, held_out: Sequence[ParallelText], on_bad_line: OnBadLine
) -> list[CorpusCounts]:
    """Return what `count_corpus` returns, from the cache if any process has counted the text."""
    texts = (train, *held_out)
    hashes = [hash_of_files(text.files) for text in texts]
    with_forms = [[found, text.forms] for found, text in zip(hashes, texts, strict=True)]
    key = key_of([*with_forms, on_bad_line, _VERSION])
    path = cache_folder() / COUNTS / f"{key}.json"
    if (counts := _read_counts(path)) is None:
        with writing(f"{COUNTS}-{key}"):
            if (counts := _read_counts(path)) is None:  # no other process has counted it
                counts = count_corpus(train, held_out, on_bad_line)
                for text, before in zip(texts, hashes, strict=True):
                    if hash_of_files(text.files) != before:
                        raise UserError(changed_meanwhile(text.name))
                with suppress(OSError):  # the folder may belong to another user
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_atomic(path, json.dumps([asdict(one) for one in counts]).encode())
    return counts


def _read_counts(path: Path) -> list[CorpusCounts] | None:
    """Return counts from the cache; None if they are missing, damaged, or another user's own."""
    try:
        return TypeAdapter(list[CorpusCounts]).validate_json(read_bounded(path, MEBIBYTE))
    except (OSError, UserError, ValueError):
        return None
