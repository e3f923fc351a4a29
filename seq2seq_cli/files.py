"""Atomic writing, locks, and bounded reading of files that may come from anywhere."""

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from seq2seq_cli.errors import DamagedFileError, UserError
from seq2seq_cli.processes import ending_at_sigterm

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MEBIBYTE = 1 << 20
_MOST_TRIES = 100  # of making a partial file that disappears before it is locked


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old or the new content; errors name the file."""
    with replacing(path) as part:
        part.write_bytes(data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the name of a file to write, which replaces `path` if the block raises nothing.

    A device or a pipe is yielded itself. Errors of the system name `path`.
    """
    if path.exists() and not path.is_file():
        with naming(path):
            yield path
        return
    try:
        with ending_at_sigterm(), own_part(path, Path.touch) as part:
            yield part
            fsync(part)
            part.replace(path)
            fsync(path.parent)
    except OSError as error:
        if error.filename == str(path.parent):
            error.filename = str(path)
        raise


def check_empty(output: Path) -> None:
    """Raise UserError rather than overwrite a file, which may hold the references."""
    if output.is_file() and output.stat().st_size:
        raise UserError(
            f"the output {output} has content: give --force to replace it, or another name"
        )


def require_new_folder(path: Path) -> None:
    """Raise UserError unless `path` is missing, or an empty folder that is not the current one."""
    if not path.exists():
        return
    if not path.is_dir() or any(path.iterdir()):
        raise UserError(f"{path} exists and is not an empty folder: name another folder")
    if path.samefile(os.curdir):
        raise UserError(f"{path} is the current folder: name another folder")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes `path`; UserError if that has been filled meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with ending_at_sigterm(), own_part(path) as part:
            yield part
            if path.exists():
                path.rmdir()
            part.replace(path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise UserError(f"{path} is not empty any more: another process wrote to it") from None
        raise


@contextmanager
def own_part(path: Path, make: Callable[[Path], None] = Path.mkdir) -> Iterator[Path]:
    """Yield a new folder, or file with `make=Path.touch`, next to `path`; it is removed in the end.

    What killed processes have left, which none locks, is removed first. Errors name `path`.
    """
    name = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}\.part")
    for left in [each for each in path.parent.iterdir() if name.fullmatch(each.name)]:
        with suppress(OSError), _held(left) as is_held:
            if is_held:
                remove(left)
    for _ in range(_MOST_TRIES):
        part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        try:
            make(part)
            with ExitStack() as stack:
                with suppress(FileNotFoundError):
                    stack.enter_context(_held(part, waits=True))
                if part.exists():  # no other process took it for left over before it was locked
                    yield part
                    return
        except OSError as error:
            error.filename = str(error.filename or path).replace(str(part), str(path))
            raise
        finally:
            remove(part)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def is_at(path: Path, descriptor: int) -> bool:
    """Return True if the path still names the open file; False if it was removed or replaced."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def remove(path: Path) -> None:
    """Remove a file or a folder, if there is one and the system lets us."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _held(path: Path, *, waits: bool = False) -> Iterator[bool]:
    """Lock a file or a folder while the block runs, as `lock`; False if that is not possible."""
    if fcntl is None:  # Windows opens no folder
        yield False
        return
    descriptor, is_held = os.open(path, os.O_RDONLY), False
    try:
        with suppress(OSError):  # another process has it; NFS locks no folder
            is_held = lock(descriptor, waits=waits)
        yield is_held
    finally:
        os.close(descriptor)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise DamagedFileError if the file that the block reads is gone, from its folder too.

    Other errors stay OSError, with its name, as when a network file system cannot find the file.
    """
    try:
        with naming(path):
            yield
    except FileNotFoundError:
        if is_listed(path):
            raise
        raise DamagedFileError(f"{path} is missing") from None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the name of the file to errors of the block, which reads or writes it."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def is_listed(path: Path) -> bool:
    """Return True if there is such an entry in its folder."""
    try:
        return any(entry.name == path.name for entry in path.parent.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False


def fsync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk; on Windows files only."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(descriptor: int, *, shared: bool = False, waits: bool = False) -> bool:
    """Lock an open file until it is closed; return False on systems and file systems without locks.

    Raises BlockingIOError if another process has the lock, unless it waits for it.
    """
    if fcntl is None:
        return False
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind if waits else kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            return False
        raise
    return True


@contextmanager
def locked(folder: Path, name: str = "lock") -> Iterator[None]:
    """Keep other processes from doing the same in this folder while the block runs.

    Creates the folder, and removes it again if it stays empty.
    """
    path, created = folder / name, [f for f in (folder, *folder.parents) if not f.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            lock(file.fileno())
        except BlockingIOError:
            raise UserError(f"another process runs this command in {folder}") from None
        try:
            yield
        finally:
            if created and [*folder.iterdir()] == [path]:
                with suppress(OSError):  # another process may begin
                    path.unlink()
                    for empty in created:
                        empty.rmdir()


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_atomic(path, text.encode("utf-8", errors="backslashreplace"))  # as JSON escapes them


def read_json(path: Path) -> Any:
    """Read a JSON file; raises UserError if it is missing, damaged or unreasonably large."""
    with reading(path):
        content = read_bounded(path, 16 * MEBIBYTE)
    try:
        return json.loads(content, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        raise DamagedFileError(f"{path} is damaged: it is not JSON") from None


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read a whole file; UserError if it has more than `max_bytes`, or memory is too small."""
    try:
        with naming(path), path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except MemoryError:
        raise UserError(f"{path} does not fit into memory") from None
    if len(data) > max_bytes:
        raise UserError(f"{path} is larger than {max_bytes:,} bytes, the limit for such a file")
    return data


def _reject_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")  # NaN, Infinity
