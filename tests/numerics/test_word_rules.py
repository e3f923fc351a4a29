"""Required, banned and prefix words with real tokenizers and random models."""

import functools
import itertools
import re

import pytest
import torch
from small_models import translator
from variants import half_of_them_slow

from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.decoding.search.banned_words import BannedWords
from seq2seq_cli.decoding.search.lexical_constraints import missing_tokens
from seq2seq_cli.decoding.target_words import TargetWords
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.errors import UserError
from seq2seq_cli.text.quoting import SPACE
from seq2seq_cli.tokenizers.tokenizer import EOS_ID, UNK_ID, Tokenizer

ENGLISH = "do does doing done the they then these tea team art party start see seem a an at . , !"
JAPANESE = "私は東京に行きます。東京タワーを見ます。京都の人です。Tom と do"
TEXTS = {"en": [ENGLISH, *ENGLISH.split()] * 4, "ja": [JAPANESE, *JAPANESE.split("。")] * 4}


@functools.cache
def tokenizer_of(kind: str, language: str) -> Tokenizer:
    size = {"bpe": 330, "unigram": 330, "char": 60, "word": 60}[kind]
    return Tokenizer.fit(TEXTS[language], TokenizerConfig(kind=kind, vocab_size=size))


SLOW = pytest.mark.slow
SOURCES = ["do", "the tea", "they see", "art a", "start", "seem then at"]


@pytest.mark.parametrize("kind", ["bpe", pytest.param("unigram", marks=SLOW), "char", "word"])
@pytest.mark.parametrize(
    "required",
    [("do",), pytest.param(("the", "art"), marks=SLOW), ("a tea",), ("see !",)],
    ids=str,
)
def test_required_words_appear_as_whole_words(kind, required):
    tokenizer = tokenizer_of(kind, "en")
    for seed in range(4):
        inputs = [TranslationInput(source, "", required) for source in SOURCES]
        found = translator(tokenizer, seed, beam_size=4).search(inputs)
        for (one,) in found:
            for text in required:
                end = r"(?!\w)" if text[-1].isalpha() else ""
                assert re.search(rf"(?<!\w){re.escape(text)}{end}", one.text), one.text


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_marks_are_banned_and_required_where_they_follow_words(kind):
    lines = ["do see the tea, they do.", "a tea (art)."] * 9
    tokenizer = Tokenizer.fit(lines, TokenizerConfig(kind=kind, vocab_size=300))
    for mark in (".", ","):
        required = TargetWords(tokenizer).phrase(mark)
        assert missing_tokens(tokenizer.to_ids(f"see the tea{mark}"), [required]) == (0, [])
    assert TargetWords(tokenizer).phrase("(").inner == tuple(tokenizer.to_ids("("))
    logits = torch.zeros(1, 1, len(tokenizer))
    banned = BannedWords(["."], tokenizer)
    banned.apply(logits, torch.tensor([[tokenizer.to_ids("see the tea")]]))
    pieces = enumerate(tokenizer.pieces())
    with_mark = {token for token, piece in pieces if "." in piece or piece == "<0x2E>"}
    assert set((logits[0, 0] < 0).nonzero()[:, 0].tolist()) == with_mark > set()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
@pytest.mark.parametrize("word", ["/", "<", ">", "…", "龘", "東—", "東京"])
def test_words_are_banned_in_every_spelling(kind, word):
    """Also in bytes; the names of special tokens and of bytes are no text."""
    tokenizer = tokenizer_of(kind, "ja")
    banned = BannedWords([word], tokenizer)
    spellings = [([c], [f"<0x{byte:02X}>" for byte in c.encode()]) for c in word]
    combined = map(itertools.chain.from_iterable, itertools.product(*spellings))
    found = [tokenizer.ids_of(list(pieces)) for pieces in combined]
    known = [ids for ids in found if UNK_ID not in ids]
    assert kind == "char" or known
    for *begun, last in known:
        logits = torch.zeros(1, 1, len(tokenizer))
        banned.apply(logits, torch.tensor([[[*tokenizer.to_ids("私は"), *begun]]]))
        forbidden = set((logits[0, 0] < 0).nonzero()[:, 0].tolist())
        assert last in forbidden
        assert not any(token <= EOS_ID or tokenizer.is_byte(token) for token in forbidden - {last})


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_tokens_that_end_a_word_count(kind):
    """One token may hold a banned or required word, or its last letters, and a mark after it."""
    config = TokenizerConfig(
        kind=kind, vocab_size=330, user_defined_symbols=("17.", "ea,", "-tea-")
    )
    tokenizer = Tokenizer.fit(iter(["tea, 17. seat -tea- at t"] * 9), config)
    banned = BannedWords(["tea", "17"], tokenizer)
    symbols = tokenizer.ids_of(["17.", "ea,", "-tea-"])
    space = tokenizer.ids_of([SPACE])
    for past, forbidden in [
        (space, [1, 0, 1]),
        (tokenizer.to_ids("at"), [0, 0, 1]),
        (tokenizer.to_ids("at t"), [0, 1, 1]),
        (tokenizer.to_ids("at t") + space, [1, 0, 1]),
    ]:
        logits = torch.zeros(1, 1, len(tokenizer))
        banned.apply(logits, torch.tensor([[past]]))
        assert (logits[0, 0, symbols] < 0).tolist() == forbidden
        phrases = [TargetWords(tokenizer).phrase(word) for word in ("17", "tea")]
        are_met = [
            any(missing_tokens([*past, symbol], [phrase]) == (0, []) for phrase in phrases)
            for symbol in symbols
        ]
        assert are_met == forbidden  # for the same reasons


def test_marks_are_required_as_words_where_they_are_words():
    tokenizer = tokenizer_of("word", "en")
    assert TargetWords(tokenizer).phrase(".").inner == tuple(tokenizer.to_ids("see .")[1:])


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
@pytest.mark.parametrize("text", half_of_them_slow(["東京", "東", "です。"]))
def test_required_words_of_scripts_without_spaces_get_no_spaces(kind, text):
    tokenizer = tokenizer_of(kind, "ja")
    assert TargetWords(tokenizer).phrase(text).word_ends is None  # any character may follow
    for seed in range(6):
        inputs = [TranslationInput("私は", "", (text,))] * 2
        found = translator(tokenizer, seed, beam_size=4).search(inputs)
        assert all(text in one.text and f" {text}" not in one.text for (one,) in found)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_prefix_with_trailing_space_ends_its_word(kind):
    tokenizer = tokenizer_of(kind, "en")
    texts: dict[str, list[str]] = {}
    for prefix in ("the", "the ", "the\t", "a the "):
        sentences = [TranslationInput(source, prefix) for source in SOURCES]
        found = [translator(tokenizer, seed, beam_size=4).search(sentences) for seed in range(4)]
        texts[prefix] = [one.text for of_seed in found for (one,) in of_seed]
        assert all(text.startswith(prefix.strip()) for text in texts[prefix])
    for prefix in ("the ", "the\t", "a the "):
        assert not any(re.match(rf"{prefix.strip()}\w", text) for text in texts[prefix])
    assert texts["the "] == texts["the\t"]
    goes_on = any(re.match(r"the\w", text) for text in texts["the"])
    assert goes_on == (kind != "word")  # without it a word may go on, where tokens are not words


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_prefix_of_a_script_without_spaces_allows_any_continuation(kind):
    words = TargetWords(tokenizer_of(kind, "ja"))
    assert words.prefix("東京 ")[1] is None
    assert words.prefix("Tom ")[1] is not None
    assert words.prefix("Tom")[1] is None
    assert words.prefix("  ") == ((), None)


def test_required_words_outside_the_vocabulary_are_rejected():
    words = TargetWords(tokenizer_of("char", "en"))
    for ask in (words.phrase, words.prefix):
        with pytest.raises(UserError, match="'x' is outside"):
            ask("x")


def test_banned_words_ban_whole_words_only():
    lines = ["das bett ist neu", "bettlaken bett, tea茶 हिन्दी हिन्दीभाषा é", "bier 啤酒 好喝"] * 9
    tokenizer = Tokenizer.fit(iter(lines), TokenizerConfig(kind="char", vocab_size=80))
    banned = BannedWords(["bett", "tea", "啤酒", "हिन्दी"], tokenizer)

    def allowed(text: str) -> set[str]:
        logits = torch.zeros(1, 1, len(tokenizer))
        banned.apply(logits, torch.tensor([[tokenizer.to_ids(text)]]))
        pieces = zip(tokenizer.pieces(), logits[0, 0].tolist(), strict=True)
        return {piece for piece, logit in pieces if logit == 0}

    everything = set(tokenizer.pieces())
    assert allowed("das bet") == everything
    assert {"l", "é"} <= allowed("das bett")
    assert not {"</s>", "▁", ",", "茶"} & allowed("das bett")  # 茶 is no letter of that word
    assert not {"</s>", "▁", "茶"} & allowed("tea")
    assert allowed("bier 啤") == everything - {"酒"}
    assert not {"</s>", "▁"} & allowed("हिन्दी")
    assert "भ" in allowed("हिन्दी")
    with pytest.raises(UserError, match="empty word"):
        BannedWords([""], tokenizer)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
@pytest.mark.parametrize(
    ("banned", "refused", "accepted"),
    [
        ("tea", ["tea", "tea.", "a tea, see", "the.tea"], ["team", "teas", "an art"]),
        ("the tea", ["the tea", "see the tea"], ["tea", "the art", "the"]),
        (".", ["tea.", "."], ["tea", "!"]),
    ],
)
def test_what_must_occur_may_not_be_banned(kind, banned, refused, accepted):
    tokenizer = tokenizer_of(kind, "en")
    model = translator(tokenizer, 0, beam_size=4, banned_words=[banned])
    for text in refused:
        for given in (TranslationInput("do", "", (text,)), TranslationInput("do", f"{text} ")):
            with pytest.raises(UserError, match="is required, but contains a banned word"):
                model.search([given])
    for text in accepted:
        for given in (TranslationInput("do", "", (text,)), TranslationInput("do", text)):
            assert text in model.search([given])[0][0].text
    assert model.search([TranslationInput("do", "tea")])[0][0].text.startswith("tea")


def test_words_are_banned_as_tokens_where_tokens_are_words():
    """Also if a tag, which is an entry without a space before it, begins with a letter."""
    config = TokenizerConfig(kind="word", vocab_size=30, user_defined_symbols=("de",))
    tokenizer = Tokenizer.fit(iter(["tea bier tee"] * 9), config)
    logits = torch.zeros(1, 1, len(tokenizer))
    BannedWords(["tea"], tokenizer).apply(logits, torch.tensor([[tokenizer.to_ids("bier")]]))
    (banned,) = (logits[0, 0] < 0).nonzero().tolist()
    assert [banned] == [tokenizer.to_ids("tea")]
