"""`seq2seq init --example`: the config and the text of the quickstart, for users without a clone.

They are links to `configs/` and `data/` in a clone, and files in a wheel.
"""

from pathlib import Path

from seq2seq_cli.files import write_atomic

_EXAMPLE = Path(__file__).parent / "example"
_FOLDERS = ("configs", "data/quickstart")


def example_files(folder: Path) -> dict[Path, Path]:
    """Return the files to write to a folder, each with the file to copy."""
    sources = (path for name in _FOLDERS for path in sorted((_EXAMPLE / name).iterdir()))
    return {folder / path.relative_to(_EXAMPLE): path for path in sources}


def differing_files(files: dict[Path, Path]) -> list[Path]:
    """Return the files that exist with different content."""
    return [
        path
        for path, source in files.items()
        if path.exists() and (not path.is_file() or path.read_bytes() != source.read_bytes())
    ]


def write_files(files: dict[Path, Path]) -> None:
    for path, source in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, source.read_bytes())
