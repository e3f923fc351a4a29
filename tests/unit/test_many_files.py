"""Folders, patterns and URLs in a config stand for files, which are read one after the other."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from seq2seq_cli.config.text import Corpus, ParallelText
from seq2seq_cli.paths import files_by_varying_part, files_of
from seq2seq_cli.text.corpus import hash_of_files, read_pairs

ROWS = [("a", "A"), ("b", "B"), ("c", "C"), ("d", "D")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two pairs of files and two TSV files with the same pairs, and what is no text."""
    for name, rows in (("1", ROWS[:2]), ("2", ROWS[2:])):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows))
        for side in (0, 1):
            file = tmp_path / ("src", "tgt")[side] / f"part-{name}.txt"
            file.parent.mkdir(exist_ok=True)
            file.write_text("".join(f"{row[side]}\n" for row in rows))
    (tmp_path / "src" / ".hidden").write_text("no text")
    (tmp_path / "src" / "empty").mkdir()
    return tmp_path


def given(text: dict[str, Any]) -> ParallelText:
    return ParallelText((Corpus.model_validate(text, context={"is_given_now": True}),))


@pytest.mark.parametrize(
    "names",
    [
        {"pairs": "*.tsv"},
        {"pairs": "[12].tsv"},
        {"src": "src", "tgt": "tgt"},
        {"src": "src/*.txt", "tgt": "tgt/*.txt"},
        {"src": "src/**/part-?.txt", "tgt": "tgt/**/part-?.txt"},
    ],
)
def test_folders_and_patterns_are_read_like_one_file(folder, names):
    text = given({side: folder / name for side, name in names.items()})
    assert [(pair.src, pair.tgt) for pair in read_pairs(text) if pair] == ROWS
    assert len(text.files) == 2 * len(names)


@pytest.fixture
def remote(folder: Path) -> Iterator[str]:
    """The URL of a folder in memory with the same files."""
    upath = pytest.importorskip("upath")
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
    text = given({side: f"{remote}/{name}" for side, name in names.items()})
    assert [(pair.src, pair.tgt) for pair in read_pairs(text) if pair] == ROWS
    written = text.corpora[0].model_dump(mode="json", exclude_defaults=True)
    assert written == {side: f"{remote}/{name}" for side, name in names.items()}
    assert hash_of_files(given(written).files) == hash_of_files(text.files)


def test_members_of_a_zip_archive_are_files(folder):
    pytest.importorskip("upath")
    with ZipFile(folder / "all.zip", "w") as archive:
        for name in ("1.tsv", "2.tsv"):
            archive.write(folder / name, f"text/{name}")
    text = given({"pairs": f"zip://text/*.tsv::{folder}/all.zip"})
    assert [(pair.src, pair.tgt) for pair in read_pairs(text) if pair] == ROWS


def test_a_zip_of_opus_may_be_remote(remote, folder):
    upath = pytest.importorskip("upath")
    with upath.UPath(f"{remote}/moses.zip").open("wb") as file, ZipFile(file, "w") as archive:
        for side, name in (("src", "x.de-en.de"), ("tgt", "x.de-en.en")):
            archive.write(folder / side / "part-1.txt", name)
    text = given({"pairs": f"{remote}/moses.zip", "fields": ("de", "en")})
    assert [(pair.src, pair.tgt) for pair in read_pairs(text) if pair] == ROWS[:2]


@pytest.mark.parametrize("url", ["memory://many-files/missing.tsv", "s4://bucket/x.tsv"])
def test_a_url_without_a_file_is_refused(url):
    pytest.importorskip("upath")
    with pytest.raises(ValueError, match=r"there is no file memory://|s4://bucket/x.tsv: .*s4"):
        given({"pairs": url})


def test_a_file_whose_name_is_a_pattern_is_that_file(folder):
    file = folder / "[1].tsv"
    file.write_text("x\ty\n")
    assert files_of(file) == (file,)


@pytest.mark.parametrize(
    ("pattern", "file", "part"),
    [
        ("text/*.de", "text/a.de", "a"),
        ("text/x-*.de.gz", "text/x-a.b.de.gz", "a.b"),
        ("**/*.de", "news/a.de", "news/a"),
        ("**/a.de", "a.de", ""),
        ("text/a.de", "text/a.de", ""),
    ],
)
def test_the_varying_part_is_between_constant_beginning_and_end(tmp_path, pattern, file, part):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert files_by_varying_part(tmp_path / pattern) == {part: path}


def test_files_correspond_whatever_their_order_by_name(tmp_path):
    """news.de comes before news.dev.de, and news.dev.en before news.en."""
    for name in ("news", "news.dev"):
        for language in ("de", "en"):
            (tmp_path / f"{name}.{language}").write_text(f"{name}\n")
    text = given({"src": tmp_path / "*.de", "tgt": tmp_path / "*.en"})
    assert sorted(read_pairs(text)) == [("news", "news", None, ""), ("news.dev",) * 2 + (None, "")]
    assert len(text.corpora[0].parts()) == 2


def test_a_pattern_of_folders_has_files_without_a_folder(tmp_path):
    for place in ("", "more/"):
        for language in ("de", "en"):
            file = tmp_path / f"{place}x.{language}"
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"{place}\n")
    text = given({"src": tmp_path / "**/x.de", "tgt": tmp_path / "**/x.en"})
    assert sorted(pair.src for pair in read_pairs(text)) == ["", "more/"]
    assert all(pair.src == pair.tgt for pair in read_pairs(text))


def test_a_file_without_a_counterpart_is_refused(folder):
    (folder / "tgt" / "part-2.txt").rename(folder / "tgt" / "part-3.txt")
    with pytest.raises(ValueError, match=r"src/part-2.txt has no counterpart among the files of"):
        given({"src": folder / "src", "tgt": folder / "tgt"})


def test_formats_are_not_mixed(folder):
    (folder / "3.jsonl").write_text('{"src": "a", "tgt": "b"}\n')
    with pytest.raises(ValueError, match="have different formats"):
        given({"pairs": folder / "*.*"})


def test_a_pattern_without_files_is_refused(folder):
    with pytest.raises(ValueError, match=r"there is no file .*\*\.csv"):
        given({"pairs": folder / "*.csv"})
    with pytest.raises(ValueError, match="has no files"):
        given({"pairs": folder / "src" / "empty"})


@pytest.mark.parametrize(
    "names", [{"pairs": "gone"}, {"pairs": "s3://gone/*.tsv"}, {"pairs": "s4://any/folder"}]
)
def test_a_config_of_a_run_folder_is_read_without_its_text(names):
    corpus = Corpus.model_validate(names)
    assert str(corpus.pairs).startswith(("gone", "s3:/", "s4:/"))
