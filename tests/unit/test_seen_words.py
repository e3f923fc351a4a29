"""The table of the words of the training text, and the lines that have unusually many others."""

import numpy as np
import pytest
from commands import ROOT
from hypothesis import given
from hypothesis import strategies as st

from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.data.seen_words import SeenWords, UnseenWords, WordFinder, hash_of, seen_words
from seq2seq_cli.data.token_store import open_store
from seq2seq_cli.tokenizers.tokenizer import EOS_ID, UNK_ID, Tokenizer, Tokenizers

QUICKSTART = ROOT / "data" / "quickstart"
LINE = "Das Haus (blau) ist groß, ein Café. 东京 3.5 Häuser"
TOKENIZERS = {
    kind: Tokenizer.fit(
        [*LINE.split(), LINE] * 3, TokenizerConfig(kind=kind, vocab_size=size, **options)
    )
    for kind, size, options in [
        ("bpe", 330, {"user_defined_symbols": ("<x>",)}),
        ("unigram", 330, {}),
        ("char", 60, {}),
        ("word", 60, {}),
    ]
}


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(lines=st.lists(st.lists(st.integers(0, 1_000), max_size=9)))
def test_hashes_of_all_words_are_those_of_each(kind, lines):
    tokenizer = TOKENIZERS[kind]
    finder = WordFinder(tokenizer)
    ids = [[token % len(tokenizer) for token in line] for line in lines]
    words = [word for line in ids for word in finder.words(line) if word[0] != UNK_ID]
    flat = np.array([token for line in ids for token in (*line, EOS_ID)], np.int32)
    assert finder.hashes(flat).tolist() == [hash_of(word) for word in words]


def test_words_are_letters_without_the_marks_around_them():
    tokenizer = TOKENIZERS["bpe"]
    finder = WordFinder(tokenizer)
    found = [tokenizer.to_text(word) for word in finder.words(tokenizer.to_ids(LINE))]
    assert found == ["Das", "Haus", "blau", "ist", "groß", "ein", "Café", "东京", "Häuser"]
    assert not list(finder.words(tokenizer.to_ids("<x> 3.5 !")))


@pytest.fixture(scope="module")
def unseen() -> tuple[Tokenizer, UnseenWords]:
    lines = (QUICKSTART / "train.de").read_text().splitlines()
    tokenizer = Tokenizer.fit(lines, TokenizerConfig(kind="unigram", vocab_size=1_100))
    text = ParallelText.of(src=QUICKSTART / "train.de", tgt=QUICKSTART / "train.en")
    store = open_store(text, Tokenizers(tokenizer, tokenizer), "error")
    seen = seen_words(store.src, tokenizer)
    assert len(seen.table) < 2_000
    return tokenizer, UnseenWords(seen, tokenizer)


def test_new_words_are_noticed_and_the_test_text_is_not(unseen):
    tokenizer, words = unseen
    test = (QUICKSTART / "test.de").read_text().splitlines()
    assert not any(words.of(ids) for ids in tokenizer.to_ids_batch(test))
    assert words.of(tokenizer.to_ids("Guten Morgen, wie geht es dir?")) == ["wie"]
    assert words.of(tokenizer.to_ids("我要啤酒")) != []
    assert words.of([]) == words.of(tokenizer.to_ids("?!")) == []


def test_text_of_many_rare_words_expects_some():
    tokenizer = TOKENIZERS["char"]
    rare = UnseenWords(SeenWords(table="AAAA", new_share=0.2), tokenizer)
    usual = UnseenWords(SeenWords(table="AAAA", new_share=0.001), tokenizer)
    ids = tokenizer.to_ids("Ha")
    assert (rare.of(ids), usual.of(ids)) == ([], ["H", "a"])


def test_a_long_line_of_unseen_words_is_unusual():
    tokenizer = TOKENIZERS["char"]
    (letter,) = tokenizer.to_ids("Ha")[-1:]
    for share, is_unusual in ((1e-9, True), (0.2, True), (1.0, False)):
        words = UnseenWords(SeenWords(table="AAAA", new_share=share), tokenizer)
        assert bool(words.of([letter] * 3_000)) == is_unusual


def test_a_damaged_table_is_refused():
    with pytest.raises(ValueError, match="table"):
        SeenWords(table="not base64!", new_share=0.5)
