"""What the scripts that write data/*/train.tsv, valid.tsv and test.tsv have in common."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

Row = TypeVar("Row", bound=tuple[str, ...])


def cut(rows: Sequence[Row], sizes: Mapping[str, int]) -> dict[str, list[Row]]:
    """The rows in files of these sizes, one after the other."""
    splits: dict[str, list[Row]] = {}
    start = 0
    for name, size in sizes.items():
        splits[name] = list(rows[start : start + size])
        start += size
    return splits


def parser_of(name: str) -> argparse.ArgumentParser:
    """A command line with a folder, by default one of this name beside the scripts."""
    parser = argparse.ArgumentParser(description=f"Write the {name} data.")
    default = Path(__file__).parent / name
    parser.add_argument("folder", nargs="?", type=Path, default=default, help="where to write")
    return parser


def parse_folder(name: str, arguments: Sequence[str] | None) -> Path:
    """The folder that the command line asks for."""
    folder: Path = parser_of(name).parse_args(arguments).folder
    return folder


def write_splits(folder: Path, splits: Mapping[str, Sequence[tuple[str, ...]]], unit: str) -> None:
    """Write a file for each split, with a row on each line, and print how many rows they have."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in splits.items():
        text = "".join("\t".join(row) + "\n" for row in rows)
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8", newline="\n")
    sizes = ", ".join(f"{name} {len(rows)}" for name, rows in splits.items())
    print(f"{folder}: {sizes} {unit}")
