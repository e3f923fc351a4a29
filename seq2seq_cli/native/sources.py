"""The C files of the native library, how they are compiled, and what the library is called.

setup.py runs this file where the package is not installed.
"""

import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent
C_FILES = sorted(FOLDER.glob("*.c"))
SOURCES = sorted([*C_FILES, *FOLDER.glob("*.h")])
LIBRARY_NAME = "libnative.so"  # on all systems: it is loaded by its path
FLAGS = [
    *("-O3", "-ffp-contract=off", "-Wno-psabi", "-Werror=incompatible-pointer-types"),
    *("-falign-functions=64", "-falign-loops=64"),  # or loops slow down when code above grows
]
LINK_FLAGS = ["-s", "-pthread", "-Wl,-Bsymbolic", "-lm"]


def source_hash(folder: Path = FOLDER) -> str:
    """Return a hash of the sources, which the library contains: one made of others is not used."""
    content = hashlib.sha256()
    for path in sorted([*folder.glob("*.c"), *folder.glob("*.h")]):
        content.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return content.hexdigest()[:16]
