"""The C files of the native library, how they are compiled, and what the library is called.

setup.py runs this file where the package is not installed.
"""

import hashlib
from pathlib import Path

_FOLDER = Path(__file__).parent
C_FILES = sorted(_FOLDER.glob("*.c"))
SOURCES = sorted([*C_FILES, *_FOLDER.glob("*.h")])
LIBRARY_NAME = "libnative.so"  # on all systems: it is loaded by its path
FLAGS = ["-shared", "-fPIC", "-O3", "-ffp-contract=off"]
LINK_FLAGS = ["-s", "-pthread", "-Wl,-Bsymbolic"]


def source_hash() -> str:
    """Return a hash of the sources, which the library contains: one made of others is not used."""
    content = hashlib.sha256()
    for path in SOURCES:
        content.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return content.hexdigest()[:16]
