"""Text of other file systems, in folders, patterns and archives."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import upath

from seq2seq_cli.config.text import Corpus, ParallelText
from seq2seq_cli.text.corpus import hash_of_files, read_pairs

ROWS = [("a", "A"), ("b", "B"), ("c", "C"), ("d", "D")]


def parallel_text(text: dict[str, Any]) -> ParallelText:
    return ParallelText((Corpus.model_validate(text, context={"is_given_now": True}),))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two pairs of files and two TSV files with the same pairs."""
    for name, rows in (("1", ROWS[:2]), ("2", ROWS[2:])):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows))
        for side in (0, 1):
            file = tmp_path / ("src", "tgt")[side] / f"part-{name}.txt"
            file.parent.mkdir(exist_ok=True)
            file.write_text("".join(f"{row[side]}\n" for row in rows))
    return tmp_path


@pytest.fixture
def remote(folder: Path) -> Iterator[str]:
    """The URL of a folder in memory with the same files."""
    root = upath.UPath("memory://many-files")
    for file in folder.rglob("*.t*"):
        copy = root / str(file.relative_to(folder))
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
        copy.with_name(f"{copy.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    yield "memory://many-files"
    root.fs.rm(root.path, recursive=True)


@pytest.mark.parametrize(
    "names",
    [
        {"pairs": "*.tsv"},
        {"pairs": "*.tsv.gz"},
        {"src": "src/*.txt", "tgt": "tgt/*.txt"},
        {"src": "src/*.txt.gz", "tgt": "tgt/*.txt"},
        {"src": "src/*.txt", "tgt": "tgt/*.txt.gz"},
    ],
)
def test_text_of_another_file_system_is_read_like_that_of_a_disk(remote, names):
    text = parallel_text({side: f"{remote}/{name}" for side, name in names.items()})
    assert [(pair.src, pair.tgt) for pair in read_pairs(text) if pair] == ROWS
    written = text.corpora[0].model_dump(mode="json", exclude_defaults=True)
    assert written == {side: f"{remote}/{name}" for side, name in names.items()}
    assert hash_of_files(parallel_text(written).files) == hash_of_files(text.files)


def test_members_of_a_zip_archive_are_files(folder):
    with ZipFile(folder / "all.zip", "w") as archive:
        for name in ("1.tsv", "2.tsv"):
            archive.write(folder / name, f"text/{name}")
    text = parallel_text({"pairs": f"zip://text/*.tsv::{folder}/all.zip"})
    assert [(pair.src, pair.tgt) for pair in read_pairs(text) if pair] == ROWS


def test_a_zip_of_opus_may_be_remote(remote, folder):
    with upath.UPath(f"{remote}/moses.zip").open("wb") as file, ZipFile(file, "w") as archive:
        for side, name in (("src", "x.de-en.de"), ("tgt", "x.de-en.en")):
            archive.write(folder / side / "part-1.txt", name)
    text = parallel_text({"pairs": f"{remote}/moses.zip", "fields": ("de", "en")})
    assert [(pair.src, pair.tgt) for pair in read_pairs(text) if pair] == ROWS[:2]


@pytest.mark.parametrize("url", ["memory://many-files/missing.tsv", "s4://bucket/x.tsv"])
def test_a_url_without_a_file_is_refused(url):
    with pytest.raises(
        ValueError, match=r"there is no file memory://|s4://bucket/x.tsv cannot be read: .*s4"
    ):
        parallel_text({"pairs": url})
