"""Paths that the user writes: `~`, variables, URLs, and what stands for several files."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import cast

from seq2seq_cli import plugins
from seq2seq_cli.errors import UserError, short

_WILD = frozenset("*?[")
_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+]+):/{1,2}(?P<rest>[^/].*)"
)  # pathlib merges slashes


def expanded(path: str | Path) -> Path:
    """Expand `~` and variables such as `$HOME`, as a shell does; unknown ones stay unchanged."""
    path = Path(os.path.expandvars(path))
    with suppress(RuntimeError):
        path = path.expanduser()
    return path


def local_path(given: Path) -> Path:
    """Expand a path as `expanded` does. Raises UserError for a URL, which would become a folder."""
    if _URL.fullmatch(str(given)):
        raise UserError(f"{given} is a URL, which this option does not take: use a path")
    return expanded(given)


def check_utf8(path: Path) -> None:
    """Raise UserError for a path that is not in UTF-8: YAML and most libraries cannot take it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"the path {path} is not valid UTF-8: use another name") from None


def text_path(given: str | Path) -> Path:
    """Expand the path of a text file as `expanded` does; a URL of fsspec becomes a remote path."""
    return remote_path(os.path.expandvars(given)) or expanded(given)


def remote_path(given: str) -> Path | None:
    """Return the path of a URL of fsspec; None for others, UserError if a package is missing."""
    url = _URL.fullmatch(given)
    if url is None:
        return None
    given = f"{url['scheme']}://{url['rest']}"  # in a Path one slash is lost
    plugins.require("upath", "remote", given)
    from upath import UPath

    try:
        path = UPath(given)
        assert path.fs  # imports what the scheme needs
    except (ValueError, ImportError) as error:  # of fsspec, which names the package
        raise UserError(f"{given} cannot be read: {error}") from None
    return cast(Path, path)


def is_remote(path: object) -> bool:
    """Return True for a path in a remote file system."""
    return hasattr(path, "protocol")  # of fsspec


@contextmanager
def remote_errors(path: object) -> Iterator[None]:
    """Turn exceptions of a remote file system's library in the block into UserError."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:  # of any type
        if not is_remote(path):
            raise
        raise UserError(f"cannot read {path}: {short(str(error))}") from None


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the files that a path stands for: itself, the files of a folder, or of a pattern.

    Patterns such as `text/*.de.gz` and `text/**/*.tsv` are `glob` patterns. Hidden files and
    folders are left out, unless a part of the pattern begins with their dot. Files are sorted by
    their varying parts, so that `*.de` and `*.en` correspond. Without files it is the path.
    """
    folder, pattern = _split(path)
    if not pattern or (path != folder and path.is_file()):
        return (path,)
    files = (file for file in folder.glob(pattern) if file.is_file())
    named = [part for part in Path(pattern).parts if part.startswith(".")]

    def is_hidden(part: str) -> bool:
        return part.startswith(".") and not any(fnmatchcase(part, dotted) for dotted in named)

    visible = [file for file in files if not any(map(is_hidden, file.relative_to(folder).parts))]
    visible.sort(key=lambda file: _varying(folder, pattern, file).split("/"))
    return tuple(visible) or (path,)


def files_by_varying_part(path: Path) -> dict[str, Path]:
    """Return the files that a path stands for by what lies between their constant parts.

    It is `a` of `text/a.de` in `text/*.de`. Without `**`, folders in between that have no wildcard
    are left out: `x/a` of `x/de/a.txt` in `*/de/*.txt`.
    """
    folder, pattern = _split(path)
    return {_varying(folder, pattern, file) if pattern else "": file for file in files_of(path)}


def _varying(folder: Path, pattern: str, file: Path) -> str:
    names, parts = [*file.relative_to(folder).parts], pattern.split("/")
    if "**" not in parts:
        names = [name for name, part in zip(names, parts, strict=True) if set(part) & _WILD]
        parts = [part for part in parts if set(part) & _WILD]
    name, pattern = "/".join(names), "/".join(parts)
    start = min(pattern.index(character) for character in _WILD if character in pattern)
    end = len(pattern) - max(pattern.rfind("*"), pattern.rfind("?"), pattern.rfind("]")) - 1
    return name[start : max(start, len(name) - end)]


def _split(path: Path) -> tuple[Path, str]:
    """Split a path into a folder and a pattern of pathlib, which is empty for the path of a file.

    A shell also has `[^…]` for `[!…]`, `a**` for `a*`, and a last `**` for all files in a folder.
    """
    if path.is_dir():
        return path, "*"
    folder = path
    while set(str(folder)) & _WILD and folder != folder.parent:
        folder = folder.parent
    if folder == path:
        return path, ""
    parts = [
        part if part == "**" else re.sub(r"\*+", "*", part).replace("[^", "[!")
        for part in path.relative_to(folder).parts
    ]
    return folder, "/".join(parts) + "/*" * (path.name == "**")
