"""The kind `spm_vocab`: SentencePiece's pieces, looked up in a vocabulary of its own."""

import io
import itertools
import json

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.convert.spm_vocab_tokenizer import SPECIAL_PIECES, SpmVocabTokenizer
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.quoting import normalize_spaces
from seq2seq_cli.tokenizers.tokenizer import (
    EOS_ID,
    KIND_MARK,
    UNK_ID,
    Tokenizer,
    Tokenizers,
    load_tokenizers,
    save_tokenizers,
)

TEXT = ["der Hund läuft im Park", "die Katze schläft", "ein Haus ist groß", "½ ﬁ 12 km"] * 9
WORDS = ["der", "Hund", "läuft", "im", "Park", "groß"]  # which normalization does not change
TAG, OTHER = ">>deu<<", ">>deu_Latn<<"


def trained(**options) -> bytes:
    """Train a SentencePiece model as other programs do, with special ids of their own."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=model,
        hard_vocab_limit=False,
        minloglevel=2,
        **{"bos_id": -1, "eos_id": 0, "unk_id": 1, "vocab_size": 90, **options},
    )
    return model.getvalue()


def processor_of(spm: bytes) -> sentencepiece.SentencePieceProcessor:
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(spm)
    return processor


def pieces_of(spm: bytes) -> list[str]:
    """Return SentencePiece's pieces in another order, without special ones."""
    processor = processor_of(spm)
    ids = range(processor.vocab_size())
    return [
        str(processor.id_to_piece(i))
        for i in reversed(ids)
        if not processor.is_control(i) and not processor.is_unknown(i)
    ]


MODELS = [trained(), trained(model_type="bpe", byte_fallback=True, vocab_size=360)]
ENTRIES = [[*SPECIAL_PIECES, TAG, OTHER, *pieces_of(spm)] for spm in MODELS]
TOKENIZERS = [
    SpmVocabTokenizer.build(spm, entries, [TAG, OTHER])
    for spm, entries in zip(MODELS, ENTRIES, strict=True)
]
TEXTS = st.one_of(
    st.text(max_size=30),
    st.text("aHundelräst ▁½ﬁ<>/\ufdd0\u3000\n", max_size=30),
    st.builds("{}{}".format, st.sampled_from([TAG, OTHER]), st.sampled_from(TEXT)),
)


@pytest.mark.parametrize("number", [0, 1])
@given(text=TEXTS.filter(lambda text: not normalize_spaces(text).startswith(">>deu")))
@settings(max_examples=300, deadline=None)
def test_pieces_are_those_of_sentencepiece(number, text):
    """Every piece has an entry here, so ids are pieces, and what SentencePiece lacks is <unk>."""
    tokenizer, processor = TOKENIZERS[number], processor_of(MODELS[number])
    text = normalize_spaces(text)
    expected = processor.encode(text, out_type=str)
    unknown = [processor.is_unknown(i) for i in processor.encode(text)]
    ids = tokenizer.to_ids(text)
    assert [i == UNK_ID for i in ids] == unknown
    assert [
        piece if is_unknown else tokenizer.pieces()[i]
        for i, piece, is_unknown in zip(ids, expected, unknown, strict=True)
    ] == expected
    if UNK_ID not in ids:
        assert tokenizer.to_text(ids) == normalize_spaces(processor.decode(expected))


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(text=TEXTS)
@settings(max_examples=300, deadline=None)
def test_spans_cover_the_text_in_order(tokenizer, text):
    normal, spans = tokenizer.spans(text)
    assert normal == normalize_spaces(text)
    assert len(spans) == len(tokenizer.to_ids(text)) == len(tokenizer.to_pieces(text))
    for (start, end), (later, _) in itertools.pairwise(spans):
        assert 0 <= start <= end <= len(normal)
        assert start <= later


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(text=TEXTS)
@settings(max_examples=100, deadline=None)
def test_normalization_does_not_change_ids(tokenizer, text):
    normal = tokenizer.normalize(text)
    assert tokenizer.normalize(normal) == normal
    assert tokenizer.to_ids(normal) == tokenizer.to_ids(text)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(words=st.lists(st.sampled_from(WORDS), min_size=1), tag=st.booleans())
@settings(max_examples=100, deadline=None)
def test_spans_give_the_text_of_each_token(tokenizer, words, tag):
    text = f"{TAG} {' '.join(words)}" if tag else " ".join(words)
    normal, spans = tokenizer.spans(text)
    assert spans[-1][1] == len(normal)
    for (start, end), surface in zip(spans, tokenizer.to_pieces(text), strict=True):
        if not surface.startswith("<0x"):
            assert surface.replace("▁", " ").strip() == normal[start:end].strip()


def test_a_tag_is_one_token_only_at_the_start():
    tokenizer = TOKENIZERS[0]
    tag, other = tokenizer.ids_of([TAG, OTHER])
    assert tokenizer.tag_ids(TAG) == [tag]
    words = tokenizer.to_ids("der Hund")
    for text in (f"{TAG}der Hund", f"  {TAG} der Hund"):
        assert tokenizer.to_ids(text) == [tag, *words]
        assert tokenizer.to_text(tokenizer.to_ids(text)) == "der Hund"
    assert tokenizer.to_ids(f"{OTHER} der Hund") == [other, *words]
    assert tag not in tokenizer.to_ids(f"der {TAG} Hund")
    assert tokenizer.to_ids(f"{TAG}{TAG}").count(tag) == 1
    assert tokenizer.user_defined_symbols() == [TAG, OTHER]


def test_special_entries_are_never_in_text():
    processor = processor_of(MODELS[0])
    for name in SPECIAL_PIECES:  # what SentencePiece does not know is one piece of its text
        ids = TOKENIZERS[0].to_ids(name)
        assert all(i > EOS_ID or i == UNK_ID for i in ids)
        assert len(ids) == len(processor.encode(name))


def test_a_piece_without_an_entry_is_unknown():
    spm, entries = MODELS[0], ENTRIES[0]
    piece = TOKENIZERS[0].to_pieces("Hund")[-1]
    smaller = SpmVocabTokenizer.build(spm, [e for e in entries if e != piece], [TAG])
    assert smaller.to_ids("Hund")[-1] == UNK_ID
    assert smaller.to_pieces("Hund")[-1] == piece


TRIMMED = [
    tokenizer.trimmed([p for n, p in enumerate(entries) if n % 3 or n < 6 or len(p) in (1, 6)])
    for tokenizer, entries in zip(TOKENIZERS, ENTRIES, strict=True)
]


@pytest.mark.parametrize("number", [0, 1])
@given(text=TEXTS)
@settings(max_examples=300, deadline=None)
def test_a_trimmed_vocabulary_splits_all_text_into_what_is_left(number, text):
    """Text of kept pieces has the same tokens, other text the same characters."""
    before, after = TOKENIZERS[number], TRIMMED[number]
    assert len(after) < len(before)
    pieces, ids = before.pieces_of(before.to_ids(text)), after.to_ids(text)
    if {*pieces} <= {*after.pieces()}:
        assert after.pieces_of(ids) == pieces
    assert ids.count(UNK_ID) == pieces.count("<unk>")
    assert after.to_text(ids) == before.to_text(before.to_ids(text))
    assert after.trimmed(after.pieces()).model == after.model


def test_lines_are_split_alike_in_batches():
    lines = [*TEXT * 9, f"{TAG} {TEXT[0]}", ""]
    for tokenizer in TOKENIZERS:
        assert tokenizer.to_ids_batch(lines) == [tokenizer.to_ids(line) for line in lines]
        assert [token for line in lines for token in tokenizer.to_inner_ids(line)]


def test_inner_ids_have_no_space_before():
    for tokenizer in TOKENIZERS:
        assert tokenizer.to_text([*tokenizer.to_ids("Hund"), *tokenizer.to_inner_ids("Hund")]) == (
            "HundHund"
        )


@pytest.mark.parametrize("shared", [True, False])
def test_two_models_may_share_a_vocabulary(tmp_path, shared):
    """The files of a run bring back the same tokenizers, whether the two models are one or two."""
    entries = list(dict.fromkeys([*ENTRIES[0], *ENTRIES[1]]))
    src, tgt = (SpmVocabTokenizer.build(spm, entries, [TAG]) for spm in MODELS)
    run = RunFolder(tmp_path)
    size = len(entries)
    config = TokenizerConfig(kind="spm_vocab", vocab_size=size, shared=shared)
    for saved in (Tokenizers(src, src if shared else tgt), Tokenizers(src, tgt)):
        save_tokenizers(run, saved)
        loaded = load_tokenizers(run, config)
        assert loaded.is_shared == shared
        for ours, theirs in zip(saved, loaded, strict=True):
            assert theirs.kind == "spm_vocab"
            assert theirs.to_ids(TEXT[3]) == ours.to_ids(TEXT[3])
    other = SpmVocabTokenizer.build(MODELS[1], entries[:-1], [])
    save_tokenizers(run, Tokenizers(src, other))
    if shared:
        with pytest.raises(UserError, match="must be shared"):
            load_tokenizers(run, config)


def damaged(**fields) -> bytes:
    header = {"pieces": [*SPECIAL_PIECES, "a"], "tags": [], **fields}
    return KIND_MARK + b"spm_vocab\n" + json.dumps(header).encode() + b"\n" + MODELS[0]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (damaged(pieces=["a", "b", "c", "d"]), "its first entries are not <pad> <unk> <s> </s>"),
        (damaged(pieces=[*SPECIAL_PIECES, "a", "a"]), "an entry is listed twice"),
        (damaged(pieces=[*SPECIAL_PIECES, "\ud800"]), "an entry is not valid Unicode"),
        (damaged(tags=["b"]), "the tag 'b' is not an entry"),
        (damaged(tags=["</s>"]), "the tag '</s>' is not an entry"),
        (damaged(pieces=[*SPECIAL_PIECES, ""], tags=[""]), "a tag is empty"),
        (damaged(pieces=[1]), "damaged"),
        (damaged(more=1), "damaged"),
        (KIND_MARK + b"spm_vocab\n" + b"[" * 100_000 + b"\n", "damaged"),
        (KIND_MARK + b"spm_vocab\n\xff", "damaged"),
        (damaged()[:-200], "not a SentencePiece model"),
        (damaged()[: -len(MODELS[0])] + b"nothing", "not a SentencePiece model"),
    ],
)
def test_damaged_files_are_refused(model, message):
    with pytest.raises(UserError, match=message):
        Tokenizer.from_model(model)
