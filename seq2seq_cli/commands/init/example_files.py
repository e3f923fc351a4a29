"""`seq2seq init --example`: the config and the text of the quickstart, for users without a clone.

They are links to `configs/` and `data/` in a clone, and files in a wheel.
"""

from pathlib import Path

_EXAMPLE = Path(__file__).parent / "example"


def example_files(folder: Path) -> dict[Path, bytes]:
    """Return the files to write to a folder, with their content."""
    sources = (
        path
        for name in ("configs", "data/quickstart")
        for path in sorted((_EXAMPLE / name).iterdir())
    )
    return {folder / path.relative_to(_EXAMPLE): path.read_bytes() for path in sources}
