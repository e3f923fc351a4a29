"""The exceptions that are reported to the user without a traceback."""

import contextlib
import errno
import json
import os
import shlex
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

RUNTIME = "seq2seq-runtime"  # the distribution for machines that only translate

GOES_ON = "interrupted; the same command goes on"

# Temporary errors: of a network file system, a disk, or memory and files in use by others.
_TEMPORARY = {"EIO", "ESTALE", "ENFILE", "ENOMEM", "ENOSPC", "EDQUOT", "ETIMEDOUT"}
_NO_ROOM = "failed to map segment"  # of a shared library
_NO_THREADS = {"can't start new thread", os.strerror(errno.EAGAIN)}  # of Python, and of PyTorch


class UserError(Exception):
    """An error that the user can fix: exit status 2, and no traceback, which a bug keeps.

    The message says what is wrong, where (file, line, option), and what to do about it.
    """


class ReplacedFileError(UserError):
    """A file has other content than when it was loaded."""


class DamagedFileError(UserError):
    """A file is missing, or not as written. If it temporarily cannot be read, it is an OSError."""


class Interrupted(BaseException):
    """A signal ends the command; the message says what was saved, and how to resume, if anything.

    Not an Exception, so that no handler of errors catches it, as with KeyboardInterrupt.
    `exit_status` follows the shell's convention: 128 plus the number of the signal.
    """

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message, exit_status)  # both, so that it passes between processes
        self.exit_status = exit_status

    def __str__(self) -> str:
        return str(self.args[0])


class Terminated(Interrupted):
    """SIGTERM ends the command wherever it is, as KeyboardInterrupt does for Ctrl-C."""


def of_system(error: OSError) -> str:
    """Return the system's message for an error, with the name of the file and what to do."""
    name = str(error.filename or "system")
    name = short(name) if error.errno == errno.ENAMETOOLONG else name
    what = f"{name}: {error.strerror or error}"
    if error.errno == errno.EMFILE:
        what += "; raise the limit of open files (ulimit -n)"
    elif errno.errorcode.get(error.errno or 0) in _TEMPORARY:
        what += "; run the command again when the cause is gone"
    elif what.startswith("system: No usable temporary directory"):
        what += "; set TMPDIR to a folder that can be written"
    return what


def short(text: str) -> str:
    """Return the text on one line, truncated to 100 characters."""
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:97]}..."


def installed_as() -> str:
    """Return the name of the installed distribution, `seq2seq-cli` if both or neither are."""
    import importlib.metadata  # 20 ms, for an error only

    for name in ("seq2seq-cli", RUNTIME):
        if any(importlib.metadata.distributions(name=name)):
            return name
    return "seq2seq-cli"


@contextlib.contextmanager
def shortages_reported() -> Iterator[None]:
    """Raise UserError where memory or threads run out, or for a package that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if installed_as() != RUNTIME:
            raise
        raise UserError(
            f"this needs the package {error.name}, which {RUNTIME} does not install: "
            f"pip uninstall {RUNTIME}, then pip install seq2seq-cli"
        ) from None
    except ImportError as error:
        if _NO_ROOM not in str(error):
            raise
        raise UserError(
            f"{error}: there is too little memory for it, or its file system is mounted with noexec"
        ) from None
    except MemoryError:
        raise UserError(
            "there is not enough memory: use smaller batches, a smaller beam, or fewer processes"
        ) from None
    except RuntimeError as error:
        if str(error) not in _NO_THREADS:
            raise
        raise no_more_processes() from None


def no_more_processes() -> UserError:
    """Return the error where the system starts no further thread or process."""
    return UserError(
        "the system cannot start another thread or process: raise the limit of processes "
        "(ulimit -u, or the pids limit of a container) or of memory (ulimit -v)"
    )


def how_to_install(extra: str) -> str:
    """Return pip's command for an extra of this program, from the source that pip recorded."""
    import importlib.metadata

    name, uninstall = installed_as(), ""
    found = importlib.metadata.distributions(name=name)
    record = next(filter(None, (each.read_text("direct_url.json") for each in found)), "{}")
    if name == RUNTIME and extra not in importlib.metadata.metadata(name).get_all(
        "Provides-Extra", ()
    ):
        name, uninstall = "seq2seq-cli", f"pip uninstall {RUNTIME}, then "
    source = json.loads(record)
    url = urllib.parse.urlsplit(source.get("url", ""))
    path = Path(urllib.parse.unquote(url.path))
    if url.scheme != "file" or not path.exists():
        return f"{uninstall}pip install {shlex.quote(f'{name}[{extra}]')}"
    variable = f"SEQ2SEQ_DISTRIBUTION={RUNTIME} " * (name == RUNTIME)  # for setup.py
    folder = "." if path.samefile(Path()) else path
    is_editable = bool(source.get("dir_info", {}).get("editable"))  # and stays so
    what = "--editable " * is_editable + shlex.quote(f"{folder}[{extra}]")
    return f"{uninstall}{variable}pip install {what}"
