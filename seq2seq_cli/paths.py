"""Paths as people write them."""

import os
from contextlib import suppress
from pathlib import Path


def expanded(path: str | Path) -> Path:
    """With `~` and `$HOME` (any variable) as a shell would have them, where no shell has looked.

    A variable that is not set stays as it is written, and so does the home of an unknown user.
    """
    path = Path(os.path.expandvars(path))
    with suppress(RuntimeError):
        path = path.expanduser()
    return path
