import subprocess
import sys

import pytest

from seq2seq_cli.errors import UserError
from seq2seq_cli.text.tokenizer import EOS_ID, PAD_ID, UNK_ID, Tokenizer
from seq2seq_cli.text_config import TokenizerConfig

SCRIPTS = [
    "Ich möchte ein Bier, bitte!",
    "你好，世界。今天天气很好",
    "مرحبا بالعالم، كيف الحال؟",
    "שָׁלוֹם עוֹלָם",
    "नमस्ते दुनिया",
    "ありがとうございます",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈 flag 👍🏽",
    "cafe\u0301 A\u030a e\u0323\u0302",
    "Ωμέγα — “quoted” … ½ ﬁ",
    "tab\there  two   spaces ",
    "▁ lower block",
    "",
]
KINDS = ["word", "char", "bpe", "unigram"]
LINES = SCRIPTS * 3 + [f"the number {i} and {i * 7}" for i in range(200)]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request) -> Tokenizer:
    return Tokenizer.fit(LINES, TokenizerConfig(kind=request.param, vocab_size=900))


@pytest.mark.parametrize("text", SCRIPTS)
def test_text_of_any_script_comes_back(tokenizer, text):
    normalized = tokenizer.normalize(text)
    assert tokenizer.to_text(tokenizer.to_ids(normalized)) == normalized
    assert tokenizer.normalize(normalized) == normalized


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("text", [*SCRIPTS, "a <s> b </s> <pad> c <unk> d", "\x00 \x07"])
def test_subwords_bring_back_even_what_training_never_saw(kind, text):
    tokenizer = Tokenizer.fit(["plain words only"] * 5, TokenizerConfig(kind=kind, vocab_size=300))
    normalized = tokenizer.normalize(text)
    assert UNK_ID not in tokenizer.to_ids(text)
    assert tokenizer.to_text(tokenizer.to_ids(normalized)) == normalized


def test_words_and_characters_never_seen_are_unknown_not_an_error():
    for kind in ("word", "char"):
        tokenizer = Tokenizer.fit(["a b c"] * 3, TokenizerConfig(kind=kind, vocab_size=50))
        assert UNK_ID in tokenizer.to_ids("a ж b")


def test_ids_hold_no_special_tokens(tokenizer):
    ids = {id_ for line in SCRIPTS for id_ in tokenizer.to_ids(line)}
    assert not ids & {PAD_ID, 2, EOS_ID}
    assert tokenizer.to_ids("") == []


def test_text_is_one_line_whatever_the_ids(tokenizer):
    text = tokenizer.to_text(list(range(len(tokenizer))))
    assert len(text.splitlines()) == 1


def test_many_lines_at_once_are_each_line_alone(tokenizer):
    assert tokenizer.to_ids_of_all(SCRIPTS) == [tokenizer.to_ids(line) for line in SCRIPTS]


def test_the_same_text_gives_the_same_bytes():
    for kind in KINDS:
        config = TokenizerConfig(kind=kind, vocab_size=400)
        assert Tokenizer.fit(LINES, config).model == Tokenizer.fit(LINES, config).model


LEARN_A_SAMPLE = """
import hashlib
from seq2seq_cli.config import TokenizerConfig
from seq2seq_cli.text.tokenizer import Tokenizer
lines = ["early"] * 101 + [f"late{i % 40}" for i in range(2_000)]
config = TokenizerConfig(kind="word", vocab_size=60, max_sentences=101)
tokenizer = Tokenizer.fit(lines, config)
print(hashlib.sha256(tokenizer.model).hexdigest(), "▁late1" in tokenizer.pieces())
"""


def test_of_much_text_every_process_takes_the_same_random_sample():
    first, second = (
        subprocess.run([sys.executable, "-c", LEARN_A_SAMPLE], capture_output=True, text=True)
        for _ in range(2)
    )
    assert first.stdout == second.stdout
    assert first.stdout.split()[1] == "True"


def test_saved_and_loaded_it_is_the_same(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(tokenizer.model)
    loaded = Tokenizer.load(path)
    assert len(loaded) == len(tokenizer) == len(loaded.pieces())
    assert loaded.to_ids_of_all(SCRIPTS) == tokenizer.to_ids_of_all(SCRIPTS)


def test_pieces_are_the_names_of_the_ids(tokenizer):
    text = "the number 7"
    assert [tokenizer.pieces()[i] for i in tokenizer.to_ids(text)] == tokenizer.to_pieces(text)


def test_a_vocabulary_is_no_larger_than_asked_for(tokenizer):
    assert len(tokenizer) <= 900


def test_lower_casing_and_no_normalization_are_options():
    lower = Tokenizer.fit(LINES, TokenizerConfig(normalization="nfkc_cf", vocab_size=600))
    assert lower.normalize("Ich MÖCHTE") == "ich möchte"
    nfkc = Tokenizer.fit(LINES, TokenizerConfig(normalization="nfkc", vocab_size=600))
    assert nfkc.to_text(nfkc.to_ids("ﬁ e\u0301 ，")) == "fi é ,"
    exact = Tokenizer.fit(LINES, TokenizerConfig(vocab_size=600))
    assert exact.to_text(exact.to_ids("½ ﬁ e\u0301")) == "½ ﬁ e\u0301"


def test_a_vocabulary_too_small_for_the_text_names_the_option():
    with pytest.raises(UserError, match=r"vocab_size 20 is too small.* alone are \d+"):
        Tokenizer.fit(LINES, TokenizerConfig(kind="bpe", vocab_size=20))


def test_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"not a model")
    with pytest.raises(UserError, match=r"tokenizer\.model"):
        Tokenizer.load(path)


def test_a_piece_that_is_not_utf8_is_refused():
    """SentencePiece quotes it in its message, which then is not UTF-8 either."""
    model = Tokenizer.fit(LINES, TokenizerConfig(kind="bpe", vocab_size=600)).model
    with pytest.raises(UserError, match="not a SentencePiece model"):
        Tokenizer(model.replace(b"<0x41>", b"<0x\xff1>"))
