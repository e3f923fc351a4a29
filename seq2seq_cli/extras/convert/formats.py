"""The table of formats that `seq2seq import` reads, and which one a source has."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq_cli import plugins
from seq2seq_cli.errors import UserError


class SourceFormat(NamedTuple):
    """A format: its module has `detect(path)` and `read(folder)`."""

    module: str
    title: str
    verifier: str  # the package that the import is compared with


# In the order of detection: a package is a file, and a folder may hold several of the others.
FORMATS = {
    "argos": SourceFormat("argos", "a package of Argos Translate", "ctranslate2"),
    "ctranslate2": SourceFormat("ctranslate2", "a CTranslate2 model", "ctranslate2"),
    "huggingface": SourceFormat("huggingface", "a MarianMT model of transformers", "transformers"),
    "marian": SourceFormat("marian", "a model of Marian", "ctranslate2"),
}


def format_of(path: Path) -> str:
    """Return the name in FORMATS of what a path holds; UserError if it is none of them."""
    for name in FORMATS:
        if module_of(name).detect(path):
            return name
    if not path.exists():
        raise UserError(f"there is no file or folder {path} to import")
    raise UserError(
        f"{path} is nothing that can be imported: it must be a folder of transformers (config.json "
        "and weights), of Marian (.npz) or of CTranslate2 (model.bin), or an .argosmodel"
    )


def module_of(name: str) -> Any:
    return plugins.load("convert", FORMATS[name].module)


@contextmanager
def opened(name: str, path: Path) -> Iterator[Path]:
    """Give the folder to read: of a package, a temporary one with its content."""
    if name == "argos":
        with module_of(name).unpacked(path) as folder:
            yield folder
    else:
        yield path
