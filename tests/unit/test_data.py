"""Parallel text, token stores, batches."""

import gzip
import itertools
import json
import math
import resource
from pathlib import Path

import numpy as np
import pytest

from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.data.batch_plan import bucket_by_length, plan_epoch
from seq2seq_cli.data.batch_sampler import BatchSampler
from seq2seq_cli.data.batches import IGNORE_INDEX, make_batch
from seq2seq_cli.data.cache import cache_folder
from seq2seq_cli.data.token_store import TokenStore, open_store
from seq2seq_cli.errors import UserError
from seq2seq_cli.text.corpus import BadLineError, Pair, read_entries, read_pairs
from seq2seq_cli.text.io import lines_to_translate
from seq2seq_cli.text.leakage import count_corpus
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizers, fit_tokenizers

PAIRS = [("ein Bier", "a beer"), ("zwei Biere bitte", "two beers please"), ("ja", "yes")]


def write_corpus(folder: Path, pairs, form: str = "two files") -> ParallelText:
    if form == "two files":
        for side, lines in zip(("src", "tgt"), zip(*pairs, strict=True), strict=True):
            text = "".join(f"{line}\n" for line in lines)
            (folder / side).write_text(text, encoding="utf-8")
        return ParallelText.of(src=folder / "src", tgt=folder / "tgt")
    if form.startswith("tsv"):
        text = "".join(f"{src}\t{tgt}\n" for src, tgt in pairs)
    else:
        text = "".join(json.dumps({"src": src, "tgt": tgt}) + "\n" for src, tgt in pairs)
    path = folder / f"pairs.{form}"
    if form.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode("utf-8")))
    else:
        path.write_text(text, encoding="utf-8")
    return ParallelText.of(pairs=path)


def texts(text: ParallelText) -> list[tuple[str, str]]:
    return [(pair.src, pair.tgt) for pair in read_pairs(text) if pair is not None]


@pytest.mark.parametrize("form", ["two files", "tsv", "jsonl", "tsv.gz", "jsonl.gz"])
def test_all_parallel_text_formats_give_the_same_pairs(tmp_path, form):
    pairs = [*PAIRS, ("你好 👋", "مرحبا"), ("", "empty source"), ("x", "")]
    assert texts(write_corpus(tmp_path, pairs, form)) == pairs


def test_only_line_feeds_end_lines(tmp_path):
    (tmp_path / "src").write_bytes("\ufeffa\u2028b\x0b\x1c\x85c\r\nd\re".encode())
    (tmp_path / "tgt").write_bytes(b"1\n2")
    corpus = ParallelText.of(src=tmp_path / "src", tgt=tmp_path / "tgt")
    assert texts(corpus) == [("a\u2028b\x0b\x1c\x85c", "1"), ("d\re", "2")]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"ok\t1\nba\xffd\t2\n", "x.tsv", r"x\.tsv, line 2, byte 3: not valid UTF-8"),
        (b"ok\t1\none column\n", "x.tsv", r"line 2: needs 2 columns .* has 1"),
        (b"a\tb\tc\n", "x.tsv", r"line 1: needs 2 columns .* has 3"),
        (b"{bad\n", "x.jsonl", r"line 1: not valid JSON"),
        (b'["a", "b"]\n', "x.jsonl", r"line 1: needs text under the keys src and tgt"),
        (b'{"src": "a", "tgt": 3}\n', "x.jsonl", r"line 1: needs text under the keys src and tgt"),
        (b'{"src": "a"}\n', "x.jsonl", r"line 1: needs text under the keys src and tgt"),
    ],
)
def test_bad_line_raises_with_its_position_or_is_skipped(tmp_path, content, name, message):
    (tmp_path / name).write_bytes(content + b"")
    corpus = ParallelText.of(pairs=tmp_path / name)
    with pytest.raises(UserError, match=message):
        list(read_pairs(corpus))
    assert None in list(read_pairs(corpus, "skip"))
    (error,) = (entry for entry in read_entries(corpus) if isinstance(entry, BadLineError))
    assert error.__traceback__ is error.__context__ is None  # which would hold the line


def test_utf_16_is_rejected_as_a_whole(tmp_path):
    """Of its lines every other one is valid UTF-8, with zero bytes."""
    path = tmp_path / "x.tsv"
    path.write_text("ok\t1\nok\t2\n", "utf-16")
    with pytest.raises(UserError, match=r"x\.tsv is not UTF-8 \(is it UTF-16\?\)"):
        list(read_pairs(ParallelText.of(pairs=path), "skip"))


def test_parallel_files_of_unequal_length_are_rejected_with_both_counts(tmp_path):
    corpus = write_corpus(tmp_path, PAIRS)
    (tmp_path / "tgt").write_text("a\n" * 1_200)
    with pytest.raises(UserError, match=r"src: 3, .*tgt: 1,200"):
        list(read_pairs(corpus))


def test_truncated_gzip_file_is_rejected(tmp_path):
    whole = gzip.compress(b"a\tb\n" * 10_000)
    (tmp_path / "x.tsv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="not a complete gzip file"):
        list(read_pairs(ParallelText.of(pairs=tmp_path / "x.tsv.gz")))


def test_count_corpus_counts_pairs_empty_lines_and_overlap(tmp_path):
    for name in ("valid", "general"):
        (tmp_path / name).mkdir()
    train = write_corpus(tmp_path, [*PAIRS, ("", "x"), ("y", " "), ("ja", "again")])
    valid = write_corpus(tmp_path / "valid", [("ja", "yes"), ("ja", "yes!"), ("neu", "new")])
    general = write_corpus(tmp_path / "general", [("neu", "new"), ("JA", "yes")])
    audit, *held_out = count_corpus(train, [valid, general], "error")
    assert (audit.lines, audit.pairs, audit.empty, audit.bad) == (6, 4, 2, 0)
    assert [text.overlap for text in held_out] == [2, 1]
    turned = [text._replace(direction="both") for text in (train, valid, general)]
    audit, *held_out = count_corpus(turned[0], turned[1:], "error")
    assert (audit.lines, held_out[0].lines, held_out[0].overlap) == (12, 6, 2)
    assert [text.overlap for text in held_out] == [2, 1]


def test_text_without_any_pair_is_rejected_with_the_reasons(tmp_path):
    corpus = write_corpus(tmp_path, [("", "a"), ("b", "")])
    with pytest.raises(UserError, match="2 lines, of which 2 have an empty side"):
        count_corpus(corpus, [], "error")


def tokenizers_for(corpus: ParallelText) -> Tokenizers:
    return fit_tokenizers(corpus, TokenizerConfig(kind="char", vocab_size=100, shared=False))


def test_token_store_has_the_ids_of_every_pair(tmp_path):
    corpus = write_corpus(tmp_path, PAIRS)
    src, tgt = tokenizers_for(corpus)
    store = open_store(corpus, Tokenizers(src, tgt), "error")
    assert [list(store.src[i]) for i in range(3)] == [[*src.to_ids(s), EOS_ID] for s, _ in PAIRS]
    assert [list(store.tgt[i]) for i in range(3)] == [[*tgt.to_ids(t), EOS_ID] for _, t in PAIRS]
    assert store.facts.src.tokens == store.src.lengths().sum()
    assert store.facts.tgt.longest == store.tgt.lengths().max()


def test_training_drops_empty_and_long_pairs_but_evaluation_keeps_all(tmp_path):
    corpus = write_corpus(tmp_path, [*PAIRS, ("", "x"), ("a" * 30, "b")])
    tokenizers = tokenizers_for(corpus)
    training = open_store(corpus, tokenizers, "error", max_length=17)
    assert (len(training), training.facts.too_long) == (3, 1)
    assert len(open_store(corpus, tokenizers, "error")) == 5
    with pytest.raises(UserError, match=r"longer than data\.max_length 1 tokens"):
        open_store(corpus, tokenizers, "error", max_length=1)


def test_token_store_is_built_once_and_atomically(tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path, PAIRS)
    monkeypatch.setenv("SEQ2SEQ_CACHE", str(tmp_path / "cache"))
    tokenizers = tokenizers_for(corpus)
    open_store(corpus, tokenizers, "error")
    (folder,) = cache_folder().iterdir()
    before = (folder / "src.ids").stat().st_mtime_ns
    open_store(corpus, tokenizers, "error")
    assert (folder / "src.ids").stat().st_mtime_ns == before
    (tmp_path / "src").write_text("anders\nein\nja\n")
    (tmp_path / "tgt").write_text("other\n")
    with pytest.raises(UserError):
        open_store(corpus, tokenizers, "error")
    assert list(cache_folder().iterdir()) == [folder]


def test_many_corpora_have_more_open_files_than_processes_usually_may(tmp_path):
    text = write_corpus(tmp_path, PAIRS)
    corpora = [text.corpora[0].model_copy(update={"tag": f"<{number}>"}) for number in range(30)]
    many = text._replace(corpora=tuple(corpora))
    tokenizers = tokenizers_for(many)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
        assert len(open_store(many, tokenizers, "error")) == 30 * len(PAIRS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 60, 3_000)
    pairs = [("a" * n, "b" * max(1, int(n * generator.uniform(0.7, 1.3)))) for n in lengths]
    corpus = write_corpus(tmp_path_factory.mktemp("store"), pairs)
    return open_store(corpus, tokenizers_for(corpus), "error")


def plan(store: TokenStore, **changed):
    arguments = {"tokens_per_batch": 1_000, "seed": 1, "epoch": 1} | changed
    return plan_epoch(store.src.lengths(), store.tgt.lengths(), **arguments)


def test_every_pair_appears_once_per_epoch(store):
    assert sorted(np.concatenate(plan(store)).tolist()) == list(range(len(store)))


def test_batches_stay_within_tokens_per_batch(store):
    longer = np.maximum(store.src.lengths(), store.tgt.lengths())
    assert max(len(pairs) * longer[pairs].max() for pairs in plan(store)) <= 1_000
    alone = plan(store, tokens_per_batch=30)
    assert all(len(pairs) == 1 or len(pairs) * longer[pairs].max() <= 30 for pairs in alone)
    assert sorted(np.concatenate(alone).tolist()) == list(range(len(store)))


def naive_batches(lengths: list[int], budget: int) -> list[list[int]]:
    """The lengths, in their order, cut where the next pair would be too much."""
    batches: list[list[int]] = []
    for length in lengths:
        if not batches or (len(batches[-1]) + 1) * max(*batches[-1], length) > budget:
            batches.append([])
        batches[-1].append(length)
    return batches


def test_batch_boundaries_match_a_naive_loop():
    """In evaluation the longest come first; in training batches are shuffled after cutting."""
    generator = np.random.default_rng(1)
    for budget in (1, 7, 64, 500):
        for _ in range(20):
            size = int(generator.integers(1, 200))
            src, tgt = (generator.integers(1, 40, size, dtype=np.int32) for _ in range(2))
            longer = np.maximum(src, tgt)
            cut = [longer[batch].tolist() for batch in bucket_by_length(src, tgt, budget)]
            assert cut == naive_batches(sorted(longer.tolist(), reverse=True), budget)
            epoch = plan_epoch(src, tgt, budget, seed=1, epoch=1)
            expected = naive_batches(sorted(longer.tolist()), budget)
            assert sorted(longer[batch].tolist() for batch in epoch) == sorted(expected)
            few = plan_epoch(src, tgt, 10**6, seed=1, epoch=1, pairs_per_batch=7)
            assert sorted(map(len, few), reverse=True)[: size // 7] == [7] * (size // 7)
            assert len(few) == math.ceil(size / 7)


def test_neighbours_in_length_bucketing_are_similar_in_both_sides():
    """Of all pairs of lengths, each has one token more or less than the one before, on one side."""
    pairs = np.array(list(itertools.product(range(1, 9), repeat=2)), np.int32)
    src, tgt = np.random.default_rng(1).permutation(pairs).T
    order = np.concatenate(bucket_by_length(src, tgt, tokens_per_batch=1))
    assert np.maximum(src, tgt)[order].tolist() == sorted(np.maximum(src, tgt), reverse=True)
    steps = np.abs(np.diff(src[order])) + np.abs(np.diff(tgt[order]))
    assert set(steps.tolist()) == {1}


def test_token_store_reads_ids_from_disk_at_each_access(tmp_path, monkeypatch):
    """Nothing is cached or memory-mapped: where the files change, what is read changes."""
    monkeypatch.setenv("SEQ2SEQ_CACHE", str(tmp_path / "cache"))
    pairs = [("a" * n, "b" * (1 + n % 7)) for n in range(1, 400)]
    corpus = write_corpus(tmp_path, pairs)
    tokenizers = tokenizers_for(corpus)
    store = open_store(corpus, tokenizers, "error")
    sides = (store.src, store.tgt)
    before = [[side[i].tolist() for i in range(len(store))] for side in sides]
    reversed_corpus = write_corpus(tmp_path, pairs[::-1])
    other_folder = cache_folder() / open_store(reversed_corpus, tokenizers, "error").key
    assert str(cache_folder()) not in Path("/proc/self/maps").read_text()
    for file in other_folder.iterdir():
        (cache_folder() / store.key / file.name).write_bytes(file.read_bytes())
    after = [[side[i].tolist() for i in range(len(store))] for side in sides]
    assert after == [sentences[::-1] for sentences in before] != before
    assert store.src.lengths().tolist() == [len(ids) for ids in after[0]]


def test_epoch_plan_depends_on_seed_and_epoch_only(store):
    def same(one, other):
        return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))

    assert same(plan(store), plan(store))
    assert not same(plan(store), plan(store, epoch=2))
    assert not same(plan(store), plan(store, seed=2))
    assert len(plan(store)) == len(plan(store, epoch=2)) == len(plan(store, seed=5))


def test_batches_are_reshuffled_each_epoch():
    """All 1,000 pairs have the same longer side, so that any two may share a batch."""
    src = np.full(1_000, 20, dtype=np.int32)
    tgt = np.random.default_rng(0).integers(1, 21, 1_000, dtype=np.int32)
    batch_of = np.empty((2, 1_000), dtype=np.int64)
    for epoch, row in enumerate(batch_of, start=1):
        for number, pairs in enumerate(plan_epoch(src, tgt, 200, seed=1, epoch=epoch)):
            row[pairs] = number
    together = (batch_of[:, :, None] == batch_of[:, None, :]).sum(axis=(1, 2)) - 1_000
    again = (batch_of[:, :, None] == batch_of[:, None, :]).all(axis=0).sum() - 1_000
    by_chance = together[0] * 9 / 999
    assert again < 1.5 * by_chance


def test_length_bucketing_keeps_padding_low(store):
    assert BatchSampler(store, tokens_per_batch=1_000, seed=1).first_buffer().padding() < 0.12


def test_a_batch_has_at_most_pairs_per_batch(store):
    sampler = BatchSampler(store, tokens_per_batch=1_000_000, seed=1, pairs_per_batch=7)
    sizes = [len(batch.src_BS) for batch in sampler.batches(2, 0, len(sampler))]
    assert max(sizes) == 7
    assert (sum(sizes), len(sizes)) == (len(store), math.ceil(len(store) / 7))


def test_batch_sampler_starts_at_any_epoch_and_position(store):
    read_on = BatchSampler(store, 1_000, seed=3)
    batches = [read_on.batches(epoch, 0, len(read_on)) for epoch in (1, 2)]
    found = BatchSampler(store, 1_000, seed=3).batches(2, 5, 3)
    assert [batch.num_tokens for batch in found] == [b.num_tokens for b in batches[1][5:8]]
    assert all(a.src_BS.equal(b.src_BS) for a, b in zip(found, batches[1][5:8], strict=True))
    assert len(read_on.batches(1, len(read_on) - 1, 4)) == 1


def test_make_batch_matches_a_batch_by_hand(tmp_path):
    corpus = write_corpus(tmp_path, [("ab", "b"), ("a", "bba")])
    src, tgt = tokenizers_for(corpus)
    store = open_store(corpus, Tokenizers(src, tgt), "error")
    batch = make_batch(store, [0, 1])
    (a, b), (x, y) = (src.to_ids("ab")[-2:], tgt.to_ids("ba")[-2:])
    space, tgt_space = src.to_ids("a")[0], tgt.to_ids("b")[0]
    assert batch.src_BS.tolist() == [[space, a, b, EOS_ID], [space, a, EOS_ID, PAD_ID]]
    assert batch.tgt_in_BT.tolist() == [
        [BOS_ID, tgt_space, x, PAD_ID, PAD_ID],
        [BOS_ID, tgt_space, x, x, y],
    ]
    assert batch.labels_BT.tolist() == [
        [tgt_space, x, EOS_ID, IGNORE_INDEX, IGNORE_INDEX],
        [tgt_space, x, x, y, EOS_ID],
    ]
    assert (batch.num_tokens, batch.num_src_tokens, batch.num_positions) == (8, 7, 18)


def test_bucket_by_length_is_deterministic_and_complete(store):
    lengths = store.src.lengths(), store.tgt.lengths()
    one, other = bucket_by_length(*lengths, 500), bucket_by_length(*lengths, 500)
    assert sorted(np.concatenate(one).tolist()) == list(range(len(store)))
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_lines_to_translate_are_never_rejected(tmp_path, caplog):
    path = tmp_path / "x"
    path.write_bytes(b"good\n\xff\xfe bad\n\nlast \xf0\x9f\x8d\xba")
    assert list(lines_to_translate(path)) == ["good", "\ufffd\ufffd bad", "", "last 🍺"]
    assert "invalid UTF-8 in 1 line;" in caplog.text


def test_utf_16_is_no_text_to_translate(tmp_path):
    path = tmp_path / "x"
    path.write_text("one\ntwo\n", "utf-16")
    with pytest.raises(UserError, match=r"x is not UTF-8 \(is it UTF-16\?\)"):
        next(lines_to_translate(path))


def test_pair_is_empty_if_a_side_has_no_text():
    assert Pair("a", "\u3000 \t").is_empty
    assert not Pair("a", "b").is_empty
