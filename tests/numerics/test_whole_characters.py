"""Whatever a search returns is text without broken-off bytes, in every engine and mode."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import translator
from variants import half_of_them_slow

from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.decoding.engines.choice import ENGINES
from seq2seq_cli.decoding.lines.merging import Outputs
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.text.words import split_words
from seq2seq_cli.tokenizers.tokenizer import Tokenizer

BYTES = Tokenizer.fit(["a tea art, seat."] * 4, TokenizerConfig(kind="bpe", vocab_size=280))
SOURCES = ["a tea", "art", "seat, a tea art.", "rest"]
MODES = {
    "greedy": {},
    "limit": {"min_len_extra": 9, "max_len_factor": 0, "max_len_extra": 9},
    "beam": {"beam_size": 3, "n_best": 3},
    "groups": {"beam_size": 4, "n_best": 4, "diversity_groups": 2},
    "sampling": {"sampling": True, "n_best": 3, "temperature": 2},
    "rules": {"no_repeat_ngram_size": 2, "banned_words": ["art", "."]},
}


def usable_engines() -> list[str]:
    model = translator(BYTES, 0).model
    return [name for name in ENGINES if ENGINES[name].unsupported(model, "fp32") is None]


@pytest.mark.parametrize("engine", usable_engines())
@pytest.mark.parametrize("mode", half_of_them_slow(MODES))
def test_no_search_returns_broken_characters(engine, mode):
    num_bytes = 0
    for seed, prefix in itertools.product(range(3), ("", "tea 啤酒")):
        inputs = [TranslationInput(source, prefix) for source in SOURCES]
        outputs = Outputs(log_probs=True, alignment=True)
        for each in translator(BYTES, seed, engine, **MODES[mode]).search(inputs, outputs):
            for one in each:
                assert "\ufffd" not in one.text
                assert one.text.startswith(prefix)
                assert len(one.log_probs) == len(one.tokens) + 1
                assert len(one.alignment) == len(split_words(one.text))
                num_bytes += sum(token.startswith("<0x") for token in one.tokens)
    assert num_bytes > 100


@pytest.mark.parametrize("required", [("啤酒",), ("啤酒", "茶"), ("é", "tea")], ids=str)
def test_a_hypothesis_does_not_leave_a_phrase_within_a_character(required):
    """The bytes of a phrase occur only in whole characters, unless the model writes them itself."""
    firsts = {token for text in required for token in BYTES.to_pieces(text) if token > "<0xC2"}
    for seed in range(6):
        inputs = [TranslationInput(source, "", required) for source in SOURCES]
        for (one,) in translator(BYTES, seed, beam_size=4).search(inputs):
            assert all(text in one.text for text in required), one.text
            ids = BYTES.ids_of(one.tokens)
            for place, token in enumerate(one.tokens):
                if token in firsts and token.startswith(("<0xC", "<0xE")):
                    assert BYTES.continues_character(ids[place + 1]), one.tokens


@given(ids=st.lists(st.sampled_from([*range(4), *BYTES.to_ids("啤é🍺 a tea."), *range(4, 260)])))
def test_text_is_what_its_tokens_add(ids):
    text = BYTES.to_text(ids)
    assert "\ufffd" not in text
    assert text == " ".join("".join(BYTES.surfaces(ids)).split())
    assert BYTES.to_text(BYTES.to_ids(text)) == text
