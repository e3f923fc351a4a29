import os
import random
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

import pytest
import regex
import sentencepiece

from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.config.tokenizer import Kinds, TokenizerConfig
from seq2seq_cli.config.types import TOKENIZER_KINDS, TokenizerKind
from seq2seq_cli.errors import UserError
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.tokenizer import (
    EOS_ID,
    KIND_MARK,
    PAD_ID,
    UNK_ID,
    Tokenizer,
    Tokenizers,
    fit_tokenizers,
    load_tokenizers,
    save_tokenizers,
)
from seq2seq_cli.tokenizers.training_text import sample

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
def test_text_of_any_script_survives_tokenization(tokenizer, text):
    normalized = tokenizer.normalize(text)
    assert tokenizer.to_text(tokenizer.to_ids(normalized)) == normalized
    assert tokenizer.normalize(normalized) == normalized


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("text", [*SCRIPTS, "a <s> b </s> <pad> c <unk> d", "\x00 \x07"])
def test_subwords_restore_unseen_text_by_byte_fallback(kind, text):
    tokenizer = Tokenizer.fit(["plain words only"] * 5, TokenizerConfig(kind=kind, vocab_size=300))
    normalized = tokenizer.normalize(text)
    assert UNK_ID not in tokenizer.to_ids(text)
    assert tokenizer.to_text(tokenizer.to_ids(normalized)) == normalized


def test_unseen_words_and_characters_become_unk():
    for kind in ("word", "char"):
        tokenizer = Tokenizer.fit(["a b c"] * 3, TokenizerConfig(kind=kind, vocab_size=50))
        assert UNK_ID in tokenizer.to_ids("a ж b")


@pytest.mark.parametrize("text", ["a▁b", "▁", "▁▁ ▁x▁", "\ufdd0 \ufdd1▁\ufdd1\ufdd0\ufdd1\ufdd1"])
def test_meta_symbol_in_text_is_not_a_space(text):
    """▁ (U+2581) means a space to SentencePiece; noncharacters replace it, and survive too."""
    for kind in KINDS:
        tokenizer = Tokenizer.fit([text, "a b x"] * 9, TokenizerConfig(kind=kind, vocab_size=300))
        assert UNK_ID not in tokenizer.to_ids(text)
        assert tokenizer.to_text(tokenizer.to_ids(text)) == tokenizer.normalize(text) == text
        if kind in ("bpe", "unigram"):
            unseen = Tokenizer.fit(["a b x"] * 9, TokenizerConfig(kind=kind, vocab_size=300))
            assert unseen.to_text(unseen.to_ids(text)) == text


def test_ids_have_no_special_tokens(tokenizer):
    ids = {id_ for line in SCRIPTS for id_ in tokenizer.to_ids(line)}
    assert not ids & {PAD_ID, 2, EOS_ID}
    assert tokenizer.to_ids("") == []


def test_decoded_text_is_one_line(tokenizer):
    text = tokenizer.to_text(list(range(len(tokenizer))))
    assert len(text.splitlines()) == 1


def test_batch_tokenization_matches_single_lines(tokenizer):
    assert tokenizer.to_ids_batch(SCRIPTS) == [tokenizer.to_ids(line) for line in SCRIPTS]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no disk")])
def test_what_stops_the_reading_of_lines_is_no_mistake_in_them(monkeypatch, error):
    def stopped(lines: Iterable[str], least: object) -> Iterator[str]:
        yield from lines
        raise error

    module = "seq2seq_cli.tokenizers.sentencepiece_tokenizer"
    monkeypatch.setattr(f"{module}.without_rare_characters", stopped)
    with pytest.raises(type(error)) as raised:
        Tokenizer.fit(SCRIPTS, TokenizerConfig(kind="char", vocab_size=300))
    assert raised.value is error


def test_fitting_is_deterministic():
    for kind in KINDS:
        config = TokenizerConfig(kind=kind, vocab_size=400)
        assert Tokenizer.fit(LINES, config).model == Tokenizer.fit(LINES, config).model


LEARN_A_SAMPLE = """
import hashlib
from seq2seq_cli.tokenizers.tokenizer import Tokenizer
from seq2seq_cli.config.tokenizer import TokenizerConfig
lines = ["early"] * 101 + [f"late{i % 40}" for i in range(2_000)]
config = TokenizerConfig(kind="word", vocab_size=60, max_sentences=101)
tokenizer = Tokenizer.fit(lines, config)
print(hashlib.sha256(tokenizer.model).hexdigest(), "▁late1" in tokenizer.pieces())
"""


def test_tokenizer_sample_is_deterministic_across_processes(capsys):
    """The other one hashes text in another way."""
    command = [sys.executable, "-c", LEARN_A_SAMPLE]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    other = subprocess.run(command, capture_output=True, text=True, env=environment)
    exec(LEARN_A_SAMPLE, {})
    assert other.stdout == capsys.readouterr().out
    assert other.stdout.split()[1] == "True"


def test_max_sentences_limits_the_sample():
    lines = [f"word{i}" for i in range(500)]
    for max_sentences, num_words in ((1_000, 500), (200, 200)):
        config = TokenizerConfig(kind="word", vocab_size=1_000, max_sentences=max_sentences)
        assert len(Tokenizer.fit(lines, config)) == num_words + 4


def test_tokenizer_sample_has_a_limit_of_characters():
    lines = ["x" * 100] * 50
    assert sample(lines, 1_000, max_characters=5_000) == lines
    with pytest.raises(UserError, match=r"max_sentences 1,000: the sample has more than 4,999 "):
        sample(lines, 1_000, max_characters=4_999)
    assert len(sample(lines, 40, max_characters=4_999)) == 40


def test_tokenizer_survives_saving_and_loading(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(tokenizer.model)
    loaded = Tokenizer.load(path)
    assert len(loaded) == len(tokenizer) == len(loaded.pieces())
    assert loaded.to_ids_batch(SCRIPTS) == tokenizer.to_ids_batch(SCRIPTS)


def test_pieces_match_ids(tokenizer):
    text = "the number 7"
    assert [tokenizer.pieces()[i] for i in tokenizer.to_ids(text)] == tokenizer.to_pieces(text)


def test_vocabulary_size_is_at_most_vocab_size(tokenizer):
    assert len(tokenizer) <= 900


def fitted(folder: Path, src: list[str], tgt: list[str], **options) -> Tokenizers:
    """Learn tokenizers from these two sides, save them, and load them again."""
    for side, lines in (("src", src), ("tgt", tgt)):
        (folder / side).write_text("".join(f"{line}\n" for line in lines))
    corpus = ParallelText.of(src=folder / "src", tgt=folder / "tgt")
    config = TokenizerConfig(**{"vocab_size": 600} | options)
    made, run = fit_tokenizers(corpus, config), RunFolder(folder)
    save_tokenizers(run, made)
    loaded = load_tokenizers(run, config)
    assert [one.model for one in loaded] == [one.model for one in made]
    assert loaded.is_shared == made.is_shared == config.shared
    return loaded


def test_normalization_rules(tmp_path):
    lower = fitted(tmp_path, LINES, LINES, normalization="nfkc_cf").src
    assert lower.normalize("Ich MÖCHTE") == "ich möchte"
    nfkc = fitted(tmp_path, LINES, LINES, normalization="nfkc").tgt
    assert nfkc.to_text(nfkc.to_ids("ﬁ e\u0301 ，")) == "fi é ,"
    exact = fitted(tmp_path, LINES, LINES).tgt
    assert exact.to_text(exact.to_ids("½ ﬁ e\u0301")) == "½ ﬁ e\u0301"


def test_nfd_takes_every_character_apart():
    """As the standard says, but for the order of several marks of one character."""
    letters = Tokenizer.fit(LINES, TokenizerConfig(vocab_size=600)).with_normalization("nfd", ())
    assert letters.normalize("새 ﬁ ½ Ǖ") == unicodedata.normalize("NFD", "새 ﬁ ½ Ǖ")
    for character in map(chr, range(0x21, 0x30000)):
        if character.isprintable() and not character.isspace() and character != "▁":
            assert letters.normalize(character) == unicodedata.normalize("NFD", character)


def test_nfd_gives_the_same_bytes_each_time():
    one, two = (
        Tokenizer.fit(LINES, TokenizerConfig(vocab_size=600)).with_normalization("nfd", ())
        for _ in range(2)
    )
    assert one.model == two.model


def test_nfd_makes_letters_of_korean_syllables(tmp_path):
    text = ["새가 난다", "개가 난다"]
    src, tgt = fitted(
        tmp_path, text, text, kind="char", normalization={"src": "nfd", "tgt": "identity"}
    )
    assert src.to_pieces("새") == ["▁", *unicodedata.normalize("NFD", "새")]
    assert UNK_ID not in src.to_ids("간")  # of letters that the text has in other syllables
    assert tgt.to_pieces("새") == ["▁", "새"]


SHOUTED = [f"ICH SEHE {i} HÄUSER" for i in range(50)]
TITLES = [f"I See {i} Houses" for i in range(50)]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_normalization_per_side(tmp_path, kind, shared):
    sides = {"src": "nfkc_cf", "tgt": "identity"}
    src, tgt = fitted(tmp_path, SHOUTED, TITLES, kind=kind, shared=shared, normalization=sides)
    assert (src.pieces() == tgt.pieces()) == shared
    assert src.to_ids(SHOUTED[3]) == src.to_ids(SHOUTED[3].lower())
    assert src.to_text(src.to_ids(SHOUTED[3])) == SHOUTED[3].lower()
    assert tgt.to_text(tgt.to_ids(TITLES[3])) == TITLES[3]
    assert not [piece for piece in src.pieces() if "HÄ" in piece]  # learned as it is used
    assert {path.name for path in tmp_path.glob("*.model")} == {"src.model", "tgt.model"}


def test_files_of_a_shared_vocabulary_must_match(tmp_path):
    sides = {"src": "nfkc_cf", "tgt": "identity"}
    fitted(tmp_path, SHOUTED, TITLES, normalization=sides)
    other = Tokenizer.fit(TITLES, TokenizerConfig(vocab_size=500))
    (tmp_path / "tgt.model").write_bytes(other.model)
    with pytest.raises(
        UserError, match=r"tgt\.model: the vocabulary differs .* set tokenizer\.shared"
    ):
        load_tokenizers(RunFolder(tmp_path), TokenizerConfig(vocab_size=600, normalization=sides))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("count", [300, 1_500])
def test_rare_characters_do_not_displace_the_vocabulary(kind, count):
    """A line of unique characters does not change the vocabulary."""
    generator = random.Random(1)
    words = ["".join(generator.choices("abcdefgh", k=5)) for _ in range(300)]
    lines = [" ".join(generator.choices(words, k=40)) for _ in range(500)]
    noise = "".join(chr(0x4E00 + n) for n in range(count))
    config = TokenizerConfig(kind=kind, vocab_size=600)
    clean, noisy = Tokenizer.fit(lines, config), Tokenizer.fit([*lines, noise], config)
    assert noisy.pieces() == clean.pieces()
    assert noisy.to_text(noisy.to_ids(noise)) == noise
    if count == 300:
        wanted = TokenizerConfig(kind=kind, vocab_size=600, min_character_frequency=1)
        assert set(noise) <= {
            p.lstrip("▁") for p in Tokenizer.fit([*lines, noise], wanted).pieces()
        }


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_every_character_of_a_small_text_has_an_entry(kind):
    lines = ["Ein Satz, der einmal da ist.", "你好，世界"]
    pieces = Tokenizer.fit(lines, TokenizerConfig(kind=kind, vocab_size=400)).pieces()
    assert {c for line in lines for c in line if c != " "} <= {p.lstrip("▁") for p in pieces}


def test_min_character_frequency():
    lines = ["aaaa bbb", "cc d"]
    for least, known in ((1, "abcd"), (2, "abc"), (3, "ab"), (4, "a")):
        config = TokenizerConfig(kind="char", vocab_size=50, min_character_frequency=least)
        pieces = Tokenizer.fit(lines, config).pieces()
        assert set(pieces[4:]) - {"▁"} == set(known)


SYMBOLS = ("<2de>", "<ENT1>", "<ENT12>", "#", "中文")


@pytest.mark.parametrize("normalization", ["identity", "nfkc_cf"])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_user_defined_symbol_is_one_token(tmp_path, kind, normalization):
    text = [f"<2de> das<ENT12>ist <ENT1> Nr. {i} <2de><2de>" for i in range(40)]
    tokenizer = fitted(
        tmp_path, text, text, kind=kind, normalization=normalization, user_defined_symbols=SYMBOLS
    ).src
    for symbol in SYMBOLS:
        line = f"{symbol} das {symbol} ist{symbol}das {symbol}"
        assert tokenizer.to_pieces(line).count(symbol) == 4
        assert tokenizer.to_text(tokenizer.to_ids(line)) == line
    others = [p for p in tokenizer.pieces() if p not in SYMBOLS and not p.startswith("<0x")]
    assert not [p for p in others[4:] if set(p) & set("<>#E")]  # nothing is learned of them


def test_user_defined_symbol_is_a_word_in_a_word_vocabulary(tmp_path):
    text = ["das ist ein Haus", "vor<2de>nach"] * 5
    words = fitted(tmp_path, text, text, kind="word", user_defined_symbols=("<2de>",)).src
    assert set(words.pieces()[4:]) == {"<2de>", *(f"▁{w}" for w in ["<2de>", *text[0].split()])}
    assert words.to_pieces("<2de> das") == ["▁<2de>", "▁das"]
    assert words.to_text(words.to_ids("<2de> das")) == "<2de> das"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_split_digits(tmp_path, kind):
    text = ["im Jahr 2024 und 2024", "2024 war 2024"] * 30
    whole = fitted(tmp_path, text, text, kind=kind).src
    assert "2024" in [piece.lstrip("▁") for piece in whole.to_pieces("2024")]
    split = fitted(tmp_path, text, text, kind=kind, split_digits=True).src
    assert not [p for p in split.pieces() if not p.startswith("<0x") and re.search(r"\d.|.\d", p)]
    assert split.to_text(split.to_ids("im Jahr 2024")) == "im Jahr 2024"


GRAPHEMES = ["t͡ɕ͈ a", "ผู้ช่วย", "नमस्ते", "e\u0301te\u0301", "👩‍👩‍👧 x"]


@pytest.mark.parametrize("normalization", ["identity", "nfkc_cf"])
def test_graphemes_are_characters_with_their_marks(tmp_path, normalization):
    options = {"kind": "char", "graphemes": True, "normalization": normalization}
    src, _ = fitted(tmp_path, GRAPHEMES * 3, GRAPHEMES * 3, vocab_size=100, **options)
    for text in GRAPHEMES:
        normalized = src.normalize(text)
        expected = regex.findall(r"\X", f"▁{normalized.replace(' ', '▁')}")
        assert src.to_pieces(text) == expected
        assert src.to_text(src.to_ids(text)) == normalized
    # Combinations that the text lacks are split.
    assert src.to_pieces("t͡a") == ["▁", "t͡", "a"]
    assert src.to_pieces("a͡ɕ") == ["▁", "a", "͡", "ɕ"]
    assert UNK_ID not in src.to_ids("a͡ɕ")


def test_characters_come_before_graphemes(tmp_path):
    """And frequent clusters before rare ones."""
    text = ["a\u0301 a\u0301 b\u0301 c"] * 3
    src, _ = fitted(tmp_path, text, text, kind="char", graphemes=True, vocab_size=10)
    assert set(src.pieces()[4:]) == {"▁", "a", "b", "c", "\u0301", "a\u0301"}
    assert src.to_pieces("b\u0301") == ["▁", "b", "\u0301"]


def test_without_graphemes_marks_are_characters(tmp_path):
    src, _ = fitted(tmp_path, GRAPHEMES, GRAPHEMES, kind="char", vocab_size=100)
    assert src.to_pieces("t͡a") == ["▁", "t", "͡", "a"]


def test_reused_vocabulary_must_have_the_user_defined_symbols(tmp_path):
    text = ["das ist ein Haus"] * 5
    with_symbol = fitted(tmp_path, text, text, user_defined_symbols=("<2de>",))
    corpus = ParallelText.of(src=tmp_path / "src", tgt=tmp_path / "tgt")
    options = {"reuse": tmp_path, "vocab_size": 600}
    for symbols in ((), ("<2de>",)):
        config = TokenizerConfig(**options, user_defined_symbols=symbols)
        assert fit_tokenizers(corpus, config).src.model == with_symbol.src.model
    with pytest.raises(UserError, match=r"lacks '<2en>', which is a tag of data\.train or"):
        fit_tokenizers(corpus, TokenizerConfig(**options, user_defined_symbols=("<2en>",)))


def test_a_sentencepiece_model_of_ones_own_is_reused_from_a_folder(tmp_path):
    (text := tmp_path / "text").write_text("das ist ein Haus\n" * 5)
    model, sizes = tmp_path / "tokenizer.model", {"vocab_size": 30, "hard_vocab_limit": False}
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
    train = sentencepiece.SentencePieceTrainer.train
    train(input=text, model_prefix=model.with_suffix(""), minloglevel=2, **sizes, **ids)
    corpus = ParallelText.of(src=text, tgt=text)
    reused = fit_tokenizers(corpus, TokenizerConfig(reuse=tmp_path, vocab_size=600))
    assert reused.src.model == model.read_bytes()
    with pytest.raises(UserError, match=r"tokenizer\.model is a file: give the folder of a run"):
        fit_tokenizers(corpus, TokenizerConfig(reuse=model, vocab_size=600))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 20}, r"vocab_size 20 is too small.* alone require \d+"),
        ({"kind": "char", "min_character_frequency": 10**6}, r"no text is left .*, or rarer than"),
        (
            {"kind": "word", "user_defined_symbols": ["red", "green"]},
            r"no text is left .*: all of it is tokenizer\.user_defined_symbols",
        ),
    ],
)
def test_a_vocabulary_that_cannot_be_learned_names_the_option(options, message):
    with pytest.raises(UserError, match=message):
        options = TokenizerConfig.model_validate({"vocab_size": 500} | options)
        Tokenizer.fit(["red", "green"] * 9, options)


def test_loading_another_file_as_tokenizer_is_rejected(tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"not a model")
    with pytest.raises(UserError, match=r"tokenizer\.model"):
        Tokenizer.load(path)


def test_piece_that_is_not_utf8_is_rejected():
    """SentencePiece quotes the piece in its message, which then is not UTF-8 either."""
    model = Tokenizer.fit(LINES, TokenizerConfig(kind="bpe", vocab_size=600)).model
    with pytest.raises(UserError, match="not a SentencePiece model"):
        Tokenizer.from_model(model.replace(b"<0x41>", b"<0x\xff1>"))


def test_rare_characters_of_words_are_kept():
    """The least frequency of characters is that of the other side."""
    config = TokenizerConfig(
        kind=Kinds(src="char", tgt="word"), vocab_size=50, min_character_frequency=5
    )
    assert "▁xy" in Tokenizer.fit(["xy z"] * 2 + ["z"] * 9, config, "tgt").pieces()


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_with_the_mark_that_sentencepiece_reserves_is_learned_from(kind):
    """Its trainer skips each line that contains U+2585, ▅, as in the bars of a chart."""
    lines = [f"cpu {bars}" for bars in ("▁▂▃▄▅▆▇█", "▅", "▅▅ ▆▅")] * 5
    tokenizer = Tokenizer.fit(lines, TokenizerConfig(kind=kind, vocab_size=300), "src")
    assert tokenizer.to_text(tokenizer.to_ids("cpu ▆")) == "cpu ▆" or kind == "word"
    assert UNK_ID not in tokenizer.to_ids("cpu")


def test_every_kind_is_registered():
    assert [*TOKENIZER_KINDS] == [*get_args(TokenizerKind)]
    with pytest.raises(UserError, match="a tokenizer of an unknown kind: nothing"):
        Tokenizer.from_model(KIND_MARK + b"nothing\n")
