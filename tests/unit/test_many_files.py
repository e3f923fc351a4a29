"""Folders, patterns and URLs in a config stand for files, which are read one after the other."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from seq2seq_cli.config.text import Corpus, ParallelText
from seq2seq_cli.errors import UserError
from seq2seq_cli.paths import files_by_varying_part, files_of
from seq2seq_cli.text.corpus import read_pairs

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


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("**/*.tsv", "a.tsv b.tsv x/a.tsv x/y/a.tsv"),
        ("*/*.tsv", "x/a.tsv"),
        ("**", "a.tsv b.tsv x/a.tsv x/y/a.tsv"),
        ("x/**", "x/a.tsv x/y/a.tsv"),
        ("a**", "a.tsv"),
        ("[^b].tsv", "a.tsv"),
        ("[!b].tsv", "a.tsv"),
        (".*.tsv", ".a.tsv"),
        (".*/*.tsv", ".x/a.tsv"),
        ("*/.[xy]/*", "x/.y/a.tsv"),
    ],
)
def test_patterns_have_the_meaning_of_a_shell(pattern, names, tmp_path):
    for name in ("a.tsv", "b.tsv", ".a.tsv", ".x/a.tsv", "x/a.tsv", "x/.y/a.tsv", "x/y/a.tsv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = sorted(str(file.relative_to(tmp_path)) for file in files_of(tmp_path / pattern))
    assert found == names.split()


def test_a_file_whose_name_is_a_pattern_is_that_file(folder):
    file = folder / "[1].tsv"
    file.write_text("x\ty\n")
    assert files_of(file) == (file,)
    folder = (folder / "src").rename(folder / "src[1]")
    assert files_of(folder) == (folder / "part-1.txt", folder / "part-2.txt")


@pytest.mark.parametrize(
    ("pattern", "file", "part"),
    [
        ("text/*.de", "text/a.de", "a"),
        ("text/x-*.de.gz", "text/x-a.b.de.gz", "a.b"),
        ("**/*.de", "news/a.de", "news/a"),
        ("**/a.de", "a.de", ""),
        ("text/a.de", "text/a.de", ""),
        ("*/de/x-*/text/*.txt", "news/de/x-a/text/b.txt", "news/x-a/b"),
        ("*/de/a.txt", "news/de/a.txt", "news"),
        ("**/de/*.txt", "news/de/a.txt", "news/de/a"),
    ],
)
def test_the_varying_part_is_between_constant_beginning_and_end(tmp_path, pattern, file, part):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
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


def test_a_file_that_was_added_later_is_not_paired_with_another(folder):
    text = ParallelText.of(src=folder / "src", tgt=folder / "tgt")
    assert len(text.files) == 4
    (folder / "src" / "new.txt").write_text("z\n")
    with pytest.raises(UserError, match=r"src/new.txt has no counterpart among the files of"):
        list(read_pairs(text))
    shutil.rmtree(folder / "src")
    assert text.files[0] == folder / "src"  # which is missing, as is said where text is located


def test_formats_are_not_mixed(folder):
    (folder / "3.jsonl").write_text('{"src": "a", "tgt": "b"}\n')
    with pytest.raises(ValueError, match="have different formats"):
        given({"pairs": folder / "*.*"})


def test_formats_are_known(folder):
    message = "must be a .tsv, .jsonl, .tmx or .zip file"
    for name in ("a.txt", "a"):
        (folder / name).write_text("a\tb\n")
        with pytest.raises(ValueError, match=message):
            given({"pairs": folder / name})
    text = ParallelText.of(pairs=folder / "src")  # a folder whose files once had a format
    with pytest.raises(UserError, match=f"part-1.txt {message}"):
        list(read_pairs(text))


def test_a_pattern_without_files_is_refused(folder):
    with pytest.raises(ValueError, match=r"there is no file .*\*\.csv"):
        given({"pairs": folder / "*.csv"})
    with pytest.raises(ValueError, match="has no files"):
        given({"pairs": folder / "src" / "empty"})


@pytest.mark.parametrize(
    "path",
    [
        "gone",
        "gone.v1",
        "gone/*.*",
        "gone/*.tsv*",
        "gone/a.*",
        "s3://gone/*.tsv",
        "s4://any/folder",
    ],
)
def test_a_config_of_a_run_folder_is_read_without_its_text(path):
    corpus = Corpus.model_validate({"pairs": path, "fields": [1, 3]})
    assert str(corpus.pairs).startswith(("gone", "s3:/", "s4:/"))
