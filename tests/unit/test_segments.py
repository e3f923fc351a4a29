"""Text that is stored in several segments, by several processes, on several machines."""

import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.data.cache import COUNTS, cache_folder, cached_counts, writing
from seq2seq_cli.data.token_store import open_store, segment_texts, write_segments
from seq2seq_cli.data.tokenization import splitter
from seq2seq_cli.text.corpus import read_pairs
from seq2seq_cli.text.leakage import count_corpus
from seq2seq_cli.tokenizers.tokenizer import fit_tokenizers

PAIRS = {
    "a": [("ja", "yes"), ("ein Haus", "a house"), ("Grüße 👋", "greetings")],
    "b": [("nein", "no"), ("zwei Häuser", "two houses"), ("ja", "yes")],
    "c": [("Haus", "house"), ("ja und nein", "yes and no"), ("ein", "a")],
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQ2SEQ_CACHE", str(tmp_path / "cache"))


def tsv(folder: Path, name: str) -> Path:
    path = folder / f"{name}.tsv"
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS[name]), encoding="utf-8")
    return path


def rows_of(sentences) -> list[list[int]]:
    return [sentences[number].tolist() for number in range(len(sentences))]


def test_corpora_that_are_segments_are_read_as_one_text(tmp_path):
    """A corpus of several files has the ids of one file; each corpus is found again by itself."""
    one, two = ({"pairs": tsv(tmp_path, name)} for name in "ab")
    together = tmp_path / "ab.tsv"
    together.write_text("".join(text["pairs"].read_text() for text in (one, two)))
    text = ParallelText.of(pairs=together)
    tokenizers = fit_tokenizers(text, TokenizerConfig(vocab_size=330))
    expected = open_store(text, tokenizers, "error", 99)
    corpora = (*ParallelText.of(**one).corpora, *ParallelText.of(**two).corpora)
    store = open_store(ParallelText(corpora), tokenizers, "error", 99)
    for side, whole in ((store.src, expected.src), (store.tgt, expected.tgt)):
        assert rows_of(side) == rows_of(whole)
        assert side.lengths().tolist() == whole.lengths().tolist()
        assert side.lengths(2, 5).tolist() == whole.lengths(2, 5).tolist()
        size = len(tokenizers.src)
        assert side.counts(size).tolist() == whole.counts(size).tolist()
    for start, end in ((0, None), (1, 5)):
        src, tgt, counts = store.length_counts(start, end)
        every = zip(store.src.lengths(start, end), store.tgt.lengths(start, end), strict=True)
        found = dict(zip(zip(src, tgt, strict=True), counts, strict=True))
        assert found == Counter(every)
    assert store.facts == expected.facts
    assert store.sizes == (3, 3)
    files = open_store(ParallelText.of(pairs=tmp_path / "[ab].tsv"), tokenizers, "error", 99)
    assert rows_of(files.tgt) == rows_of(expected.tgt)
    assert files.sizes == (6,)


def test_the_size_of_a_text_has_each_segment_once(tmp_path):
    text = ParallelText.of(pairs=tsv(tmp_path, "a"))
    tokenizers = fit_tokenizers(text, TokenizerConfig(vocab_size=330))
    twice = ParallelText(text.corpora * 2)
    one, two = (open_store(each, tokenizers, "error", 99) for each in (text, twice))
    assert (len(two), two.num_bytes) == (2 * len(one), one.num_bytes)


def test_a_large_text_is_said_to_be_tokenized(tmp_path, caplog):
    path = tsv(tmp_path, "a")
    tokenizers = fit_tokenizers(ParallelText.of(pairs=path), TokenizerConfig(vocab_size=330))
    with caplog.at_level("INFO", "seq2seq_cli.data.token_store"):
        open_store(ParallelText.of(pairs=path), tokenizers, "skip", 99)
        path.write_text(path.read_text() + " " * (1 << 25) + "\tyes\n")
        for _ in range(2):
            open_store(ParallelText.of(pairs=path), tokenizers, "skip", 99)
    assert caplog.messages == ["tokenizing 34 MB of text"]


def test_equal_files_count_as_often_as_there_are(tmp_path):
    path = tsv(tmp_path, "a")
    (tmp_path / "b.tsv").write_bytes(path.read_bytes())
    text = ParallelText.of(pairs=tmp_path / "*.tsv")
    tokenizers = fit_tokenizers(text, TokenizerConfig(vocab_size=330))
    assert len(open_store(text, tokenizers, "error", 99)) == 6
    assert [len(one.files) for one in segment_texts(text)[0]] == [2]
    assert [len(one.files) for one in segment_texts(text, smallest=1)[0]] == [1, 1]


def test_shards_of_preprocessing_write_all_segments(tmp_path):
    corpora = [ParallelText.of(pairs=tsv(tmp_path, name)).corpora[0] for name in "abc"]
    text = ParallelText(tuple(corpora))
    tokenizers = fit_tokenizers(text, TokenizerConfig(vocab_size=330))
    first = write_segments(text, tokenizers, "error", 99, 1, 2)
    assert first == (2, 2)
    assert write_segments(text, tokenizers, "error", 99, 1, 2) == (2, 0)
    damaged = next(folder for folder in cache_folder().iterdir() if (folder / "src.ids").exists())
    (damaged / "src.ids").write_bytes(b"")
    assert write_segments(text, tokenizers, "error", 99, 1, 2) == (2, 1)
    assert write_segments(text, tokenizers, "error", 99, 2, 2) == (1, 1)
    before = {path.name for path in cache_folder().iterdir()}
    assert len(open_store(text, tokenizers, "error", 99)) == 9
    assert {path.name for path in cache_folder().iterdir()} == before


def test_one_segment_is_counted_in_the_singular(numbers, seq2seq):
    shown = seq2seq("preprocess", numbers / "numbers.yaml").ok().stdout
    assert shown.startswith("1 segment of text, ")


def test_processes_split_text_as_one_does(tmp_path):
    text = ParallelText.of(pairs=tsv(tmp_path, "a"), tag="<2x>")
    tokenizers = fit_tokenizers(text, TokenizerConfig(vocab_size=330))
    pairs = [pair for pair in read_pairs(text) if pair] * 8_000
    results = []
    for num_processes in (1, 2):
        with splitter(tokenizers, 2, num_processes) as split:
            chunks = list(split(pairs))
        assert len(chunks) > 2
        sides = ([chunk.src for chunk in chunks], [chunk.tgt for chunk in chunks])
        arrays = [np.concatenate(part) for side in sides for part in zip(*side, strict=True)]
        results.append((arrays, sum(chunk.too_long for chunk in chunks)))
    (alone, dropped), (together, also_dropped) = results
    assert dropped == also_dropped > 0
    assert all(np.array_equal(*both) for both in zip(alone, together, strict=True))


def test_counts_of_a_text_are_found_again(tmp_path):
    train, valid = (ParallelText.of(pairs=tsv(tmp_path, name)) for name in "ab")
    both = (train, [valid], "error")
    counted = cached_counts(*both)
    assert counted == count_corpus(*both) == cached_counts(*both)
    folder = cache_folder() / COUNTS
    assert len(list(folder.iterdir())) == 1
    next(folder.iterdir()).write_text("damaged")
    assert cached_counts(*both) == counted
    assert cached_counts(train, [], "error") == counted[:1]


def test_processes_that_start_together_write_a_segment_once(tmp_path):
    """Each waits for the one that writes, and finds what that has written."""
    text = ParallelText.of(pairs=tsv(tmp_path, "a"))
    tokenizers = fit_tokenizers(text, TokenizerConfig(vocab_size=330))
    key = open_store(text, tokenizers, "error", 99).key
    facts = cache_folder() / key / "facts.json"
    written = facts.stat().st_mtime_ns
    shutil.move(cache_folder() / key, tmp_path / "away")
    with ThreadPoolExecutor() as pool, writing(key):
        waiting = pool.submit(open_store, text, tokenizers, "error", 99)
        with pytest.raises(TimeoutError):
            waiting.result(0.5)
        shutil.move(tmp_path / "away", cache_folder() / key)
    assert waiting.result().key == key
    assert facts.stat().st_mtime_ns == written
    assert {path.name for path in cache_folder().iterdir()} == {key}


def test_runs_that_start_together_count_the_same_text(tmp_path):
    """As in a sweep over seeds: each writes the counts."""
    path, together = tmp_path / "x.tsv", Barrier(8)

    def count(text: ParallelText) -> object:
        together.wait()
        return cached_counts(text, [], "error")

    with ThreadPoolExecutor(8) as threads:
        for number in range(30):
            path.write_text(f"{number}\tone line\n")
            text = ParallelText.of(pairs=path)
            counted = [threads.submit(count, text) for _ in range(8)]
            expected = count_corpus(text, [], "error")
            assert [one.result() for one in counted] == [expected] * 8
    assert {path.suffix for path in (cache_folder() / COUNTS).iterdir()} == {".json"}
