"""Expansion of `~` and variables in paths that the user writes."""

import os
from contextlib import suppress
from pathlib import Path


def expanded(path: str | Path) -> Path:
    """Expand `~` and variables such as `$HOME`, as a shell does.

    Unset variables and home folders of unknown users stay unchanged.
    """
    path = Path(os.path.expandvars(path))
    with suppress(RuntimeError):
        path = path.expanduser()
    return path
