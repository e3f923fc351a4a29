"""The size limit of the token cache, and protection of stores in use."""

import gc
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from growing_files import growing

from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.data.cache import (
    COUNTS,
    FACTS,
    FILES,
    cache_folder,
    cached_counts,
    lock,
    make_room,
    size_of,
    total_size,
)
from seq2seq_cli.data.token_store import TokenStore, open_store
from seq2seq_cli.errors import UserError
from seq2seq_cli.tokenizers.tokenizer import Tokenizer, Tokenizers

LINES = ["ein Bier", "zwei Biere bitte", "ja"]


@pytest.fixture
def tokenizers() -> Tokenizers:
    tokenizer = Tokenizer.fit(LINES, TokenizerConfig(kind="char", vocab_size=60))
    return Tokenizers(tokenizer, tokenizer)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQ2SEQ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def stored(folder: Path, number: int, tokenizers: Tokenizers, days_ago: int = 0) -> TokenStore:
    """Create a store of the usual size that was last used so many days ago."""
    text = folder / f"text-{number}"
    text.write_text("".join(f"{line}\n" for line in [*LINES, "a" * 9 + str(number)]))
    store = open_store(ParallelText.of(src=text, tgt=text), tokenizers, "error")
    place = cache_folder() / store.key
    used = place.stat().st_mtime - 86_400 * days_ago
    os.utime(place, (used, used))
    return store


def allow(monkeypatch: pytest.MonkeyPatch, stores: int, size: int) -> None:
    """Set the cache limit to this many stores and a half."""
    monkeypatch.setenv("SEQ2SEQ_CACHE_GB", str((stores + 0.5) * size / 1e9))


def keys(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()}


@pytest.mark.parametrize("read", ["ids", "counts"])
def test_nothing_is_kept_of_a_text_that_changed_while_being_read(tmp_path, cache, tokenizers, read):
    path, other = tmp_path / "text.src", tmp_path / "text.tgt"
    path.write_text("".join(f"{line}\n" for line in LINES))
    other.write_text(path.read_text() + "neu\n")
    text = ParallelText.of(src=path, tgt=other)
    results: dict[str, Callable[[], object]] = {
        "ids": lambda: len(open_store(text, tokenizers, "error")),
        "counts": lambda: cached_counts(text, [], "error")[0].pairs,
    }
    is_hashed = 2  # when it is opened for the second time
    with (
        growing(path, "neu", is_hashed),
        pytest.raises(UserError, match=r"text\.src .*changed while being read"),
    ):
        results[read]()
    assert not [file for file in cache.rglob("*") if file.is_file()]
    assert results[read]() == len(LINES) + 1


def test_the_folder_may_be_named_from_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SEQ2SEQ_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine"


def test_a_cache_that_cannot_be_written_names_its_setting(tmp_path, tokenizers, monkeypatch):
    (tmp_path / "link").symlink_to("missing")  # root, too, can make no folder of this name
    monkeypatch.setenv("SEQ2SEQ_CACHE", str(tmp_path / "link"))
    with pytest.raises(FileExistsError, match="SEQ2SEQ_CACHE names another cache folder"):
        stored(tmp_path, 0, tokenizers)


def test_text_is_counted_where_the_counts_cannot_be_kept(tmp_path, cache):
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in LINES))
    text = ParallelText.of(src=tmp_path / "text", tgt=tmp_path / "text")
    cache.mkdir()
    (cache / COUNTS).touch()
    first, again = (cached_counts(text, (), "error") for _ in range(2))
    assert first == again


def test_least_recently_used_store_is_evicted_first(tmp_path, cache, tokenizers, monkeypatch):
    first, second, third = (stored(tmp_path, n, tokenizers, 4 - n).key for n in range(3))
    size = size_of(cache / first)
    assert total_size() == 3 * size > 0
    gc.collect()
    stored(tmp_path, 0, tokenizers)  # found again, and so used now
    allow(monkeypatch, 2, size)
    new = stored(tmp_path, 3, tokenizers).key  # for which the two of long ago make room
    assert keys(cache) == {first, new}
    assert {second, third}.isdisjoint(keys(cache))


def test_store_in_use_by_any_process_is_not_evicted(tmp_path, cache, tokenizers, monkeypatch):
    held = stored(tmp_path, 1, tokenizers, days_ago=9)
    theirs = stored(tmp_path, 2, tokenizers, days_ago=8).key
    free = stored(tmp_path, 3, tokenizers, days_ago=1).key
    gc.collect()
    allow(monkeypatch, 0, size_of(cache / free))
    code = (
        "import sys\nfrom pathlib import Path\nfrom seq2seq_cli.data.cache import lock\n"
        "lock(Path(sys.argv[1]))\nprint('held', flush=True)\ninput()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", code, str(cache / theirs)]
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "held\n"
        for key in (held.key, theirs):
            os.utime(cache / key, (0, 0))
        make_room()
        assert keys(cache) == {held.key, theirs}
        process.communicate("\n")
    os.utime(cache / theirs, (0, 0))
    make_room()
    assert keys(cache) == {held.key}
    assert [len(held.src[i]) for i in range(len(held))] == held.src.lengths().tolist()


def test_partial_stores_of_killed_processes_are_removed(tmp_path, cache, tokenizers, monkeypatch):
    key = stored(tmp_path, 1, tokenizers, days_ago=1).key
    for name in (".part-x1y2", ".part-held"):
        (part := cache / name).mkdir()
        (part / FACTS).touch()
        (part / "src.ids").write_bytes(b"x" * 10_000)
        os.utime(part, (0, 0))
    held = lock(part)
    os.utime(part, (0, 0))
    make_room()  # although there is enough
    os.close(held)
    assert keys(cache) == {key, part.name}
    os.utime(part, (0, 0))
    allow(monkeypatch, 1, size_of(cache / key))
    make_room()
    assert keys(cache) == {key}


def test_eviction_leaves_other_files_alone(tmp_path, cache, tokenizers, monkeypatch):
    """Users may name any folder as the cache."""
    cache.mkdir()
    (cache / "thesis.tex").write_text("years of work")
    (cache / ("a" * 32)).mkdir()  # like a store, but holds something else
    (cache / ("a" * 32) / "notes.txt").write_text("more")
    (cache / "photos").mkdir()
    (cache / "photos" / FILES[0]).write_text("x")
    (cache / ("b" * 32)).symlink_to(cache / "photos")
    key = stored(tmp_path, 1, tokenizers, days_ago=1).key
    gc.collect()
    before = keys(cache)
    monkeypatch.setenv("SEQ2SEQ_CACHE_GB", "0")
    make_room()
    assert keys(cache) == before - {key}
    assert (cache / "photos" / FILES[0]).read_text() == "x"


@pytest.mark.parametrize("wrong", ["many", "-1", "nan"])
def test_invalid_cache_limit_is_rejected(wrong, tmp_path, tokenizers, monkeypatch):
    monkeypatch.setenv("SEQ2SEQ_CACHE_GB", wrong)
    with pytest.raises(UserError, match=f"SEQ2SEQ_CACHE_GB: must be a number .* not '{wrong}'"):
        stored(tmp_path, 1, tokenizers)


def test_a_user_without_a_home_folder_is_told_to_set_the_cache(tmp_path, tokenizers, monkeypatch):
    for name in ("SEQ2SEQ_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "~")  # where Python finds no home folder
    with pytest.raises(UserError, match="there is no home folder for the cache: set SEQ2SEQ_CACHE"):
        stored(tmp_path, 1, tokenizers)


def test_only_one_process_at_a_time_writes_a_store(cache, tmp_path):
    """Also if one has waited for a lock whose file the one before it removes."""
    counter = tmp_path / "writing"
    code = (
        "import sys\nfrom pathlib import Path\nfrom seq2seq_cli.data.cache import writing\n"
        "for _ in range(300):\n"
        "    with writing('x'):\n"
        "        Path(sys.argv[1]).open('x').close()\n"
        "        Path(sys.argv[1]).unlink()\n"
    )
    command = [sys.executable, "-c", code, str(counter)]
    writers = [subprocess.Popen(command) for _ in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4


def test_segment_that_cannot_be_read_stays(tmp_path, cache, tokenizers, monkeypatch):
    """There are too many open files for it; it is neither removed nor written anew."""
    key = stored(tmp_path, 1, tokenizers).key
    gc.collect()
    numbers = {path: path.stat().st_ino for path in (cache / key).iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    occupied = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        with suppress(OSError):
            while True:
                occupied.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(3):  # for the text, the locked file, and one more
            os.close(occupied.pop())
        with monkeypatch.context() as patch, pytest.raises(OSError, match="Too many open files"):
            patch.setattr(resource, "setrlimit", lambda *_: None)  # the system allows no more
            stored(tmp_path, 1, tokenizers)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in occupied:
            os.close(descriptor)
    assert {path: path.stat().st_ino for path in (cache / key).iterdir()} == numbers
    assert len(stored(tmp_path, 1, tokenizers)) == 4
