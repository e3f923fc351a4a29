"""A SentencePiece model with our rules inside gives the ids of our tokenizer for any text."""

import functools

import pytest
import sentencepiece
from faults.hostile_lines import ATOMS
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.extras.export.exporter import DIFFICULT_LINES
from seq2seq_cli.extras.export.sentencepiece_rules import with_quoting
from seq2seq_cli.tokenizers.tokenizer import Tokenizer

SEEN = "the quick brown fox, über den Hund! 你好，世界 42 . 。 <b>a</b> <0x4> </s 0x"
SLOW = [
    pytest.param(kind, norm, marks=pytest.mark.slow)
    for kind, norm in (("bpe", "nfkc_cf"), ("word", "nfkc"))
]
ALL = [("bpe", "identity"), ("unigram", "nfd"), ("char", "identity"), ("word", "identity"), *SLOW]
texts = st.lists(
    st.text(max_size=5) | st.sampled_from([*ATOMS, *SEEN.split(), " ", "▁"]), max_size=9
)


@functools.cache
def both(kind: str, normalization: str) -> tuple[Tokenizer, sentencepiece.SentencePieceProcessor]:
    options = TokenizerConfig(kind=kind, vocab_size=420, user_defined_symbols=("<b>", "42"))
    ours = Tokenizer.fit([SEEN, *SEEN.split()] * 4, options)
    ours = ours.with_normalization(normalization, ("<b>", "42"))
    return ours, sentencepiece.SentencePieceProcessor(model_proto=with_quoting(ours.model))


@pytest.mark.parametrize(("kind", "normalization"), ALL)
@given(text=texts.map("".join))
def test_any_text_has_the_same_ids(kind, normalization, text):
    ours, alone = both(kind, normalization)
    text = text.encode("utf-8", "replace").decode()
    assert alone.encode(text) == ours.to_ids(text)


@pytest.mark.parametrize(("kind", "normalization"), ALL)
@pytest.mark.parametrize("line", DIFFICULT_LINES)
def test_difficult_lines_have_the_same_ids_and_come_back(kind, normalization, line):
    ours, alone = both(kind, normalization)
    ids = ours.to_ids(line)
    assert alone.encode(line) == ids
    if kind in ("bpe", "unigram"):
        assert alone.decode([alone.id_to_piece(token) for token in ids]) == ours.to_text(ids)


@pytest.mark.slow
def test_rules_are_read_as_sentencepiece_has_written_them():
    """Reading the rules of a model and having them compiled again gives the same bytes."""
    from seq2seq_cli.extras.export.sentencepiece_rules import compiled_rules, rules_in

    ours, _ = both("bpe", "nfkc_cf")
    proto = sentencepiece_model_pb2.ModelProto.FromString(ours.model)
    rules = proto.normalizer_spec.precompiled_charsmap
    assert compiled_rules(dict(rules_in(rules))) == rules
