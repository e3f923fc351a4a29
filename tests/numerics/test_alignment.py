"""Word alignments and replaced unknown words, computed from known attention weights."""

import numpy as np
import pytest
from faults.hostile_lines import ATOMS
from hypothesis import given
from hypothesis import strategies as st

from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.decoding.lines.merging import Outputs, SegmentResult, merge_segments
from seq2seq_cli.decoding.lines.segmentation import Bounds, segment_lines
from seq2seq_cli.decoding.search.scoring import GivenScore
from seq2seq_cli.decoding.translation import Translation
from seq2seq_cli.text.words import is_spaceless, split_words
from seq2seq_cli.tokenizers.tokenizer import UNK_ID, Tokenizer, Tokenizers

SEEN = "the quick brown fox , über den Hund ! a b c . 私 は 東京 に 行きます 。"
LEARNED = [SEEN, SEEN.replace(" ", ""), *SEEN.split()] * 4
KINDS = ("bpe", "unigram", "char", "word")
TOKENIZERS = {
    kind: Tokenizer.fit(LEARNED, TokenizerConfig(kind=kind, vocab_size=400)) for kind in KINDS
}


def identity(size: int) -> np.ndarray:
    return np.eye(size, dtype=np.float32)


ALIGNED = Outputs(alignment=True)


def echo(
    kind: str, line: str, outputs: Outputs = ALIGNED, banned: tuple[str, ...] = (), **bounds: int
) -> Translation:
    """Translate a line to itself, with each token attending to itself."""
    tokenizer = TOKENIZERS[kind]
    limits = Bounds(bounds.get("max_length", 500), bounds.get("tokens", 500))
    (segments,), _ = segment_lines([line], tokenizer, limits)
    results = [
        [
            SegmentResult(
                segment,
                segment.ids,
                0.0,
                GivenScore([], np.eye(len(segment.ids), dtype=np.float32)),
            )
        ]
        for segment in segments
    ]
    tokenizers = Tokenizers(tokenizer, tokenizer)
    return merge_segments(line, results, tokenizers, outputs, is_ranked=False, banned=banned)[0]


@pytest.mark.parametrize(
    "line",
    [
        "a Maria b",
        "a Maria Magdalena b",
        "Maria a",
        "a Maria",
        "Maria Magdalena Anna",
        "a x y b z c Anna",
        "a Maria . the fox quick x y . b",
    ],
)
@pytest.mark.parametrize("bounds", [{}, {"tokens": 1}, {"max_length": 2, "tokens": 2}], ids=str)
def test_unknown_words_are_replaced_one_to_one(line, bounds):
    translation = echo("word", line, **bounds)
    assert "<unk>" in translation.tokens
    assert translation.text == line
    words = range(len(line.split()))
    assert translation.alignment == tuple(zip(words, words, strict=True))
    assert translation.attention == tuple(tuple(float(a == b) for b in words) for a in words)


def test_unknown_characters_stay_within_their_words():
    translation = echo("char", "the fñx quïïck a")
    assert translation.tokens.count("<unk>") == 2  # what follows one another is one token
    assert translation.text == "the fñx quïïck a"
    assert translation.alignment == ((0, 0), (1, 1), (2, 2), (3, 3))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_without_spaces_every_character_is_a_word(kind):
    line = "私は東京に行きます。"
    translation = echo(kind, line)
    assert translation.text == line
    assert translation.attention is not None and translation.alignment is not None
    assert [len(row) for row in translation.attention] == [10] * 10
    assert [target for _, target in sorted(translation.alignment, key=lambda link: link[1])] == [
        *range(10)
    ]
    distances = [abs(source - target) for source, target in translation.alignment]
    assert max(distances) <= 3  # characters of one token
    assert echo(kind, "は a 魑魅 東京").text == "は a 魑魅 東京"


lines = st.lists(
    st.text(max_size=4) | st.sampled_from([" ", " ", *SEEN.split(), "Maria", "漢字", "。", *ATOMS]),
    max_size=14,
).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@given(line=lines, tokens=st.integers(1, 40))
def test_identity_attention_restores_any_line_and_links_shared_tokens(kind, line, tokens):
    translation = echo(kind, line, tokens=tokens)
    assert translation.alignment is not None and translation.attention is not None
    if not translation.tokens:
        return
    text = " ".join(line.encode("utf-8", "replace").decode().split())
    assert "".join(translation.text.split()) == "".join(text.split())
    assert (
        len(translation.attention)
        == len(split_words(translation.text))
        == len(translation.alignment)
    )
    assert all(len(row) == len(split_words(line)) for row in translation.attention)
    for row in translation.attention:
        assert sum(row) == pytest.approx(1, abs=0.01)
    if kind in ("char", "word"):
        assert split_words(translation.text) == split_words(text)
    if kind in ("char", "word") and not is_spaceless(text):  # tokens are words, or parts of one
        assert all(source == target for source, target in translation.alignment)


@pytest.mark.parametrize("max_length", range(2, 12))
@pytest.mark.parametrize("outputs", [Outputs(), ALIGNED])
def test_parts_of_a_word_stay_one_word(max_length, outputs):
    text = "Magdalena the quick fox Anna"
    assert echo("char", text, outputs, max_length=max_length).text == text


@pytest.mark.parametrize("outputs", [Outputs(), ALIGNED])
@pytest.mark.parametrize(("banned", "left"), [("Maria", "a Anna b"), ("Anna", "a Maria b")])
def test_banned_words_are_not_copied(banned, left, outputs):
    found = echo("word", "a Maria Anna b", outputs, (banned,))
    assert found.text == left
    if outputs is ALIGNED:
        assert len(found.attention) == 3


def test_attention_of_tokens_is_averaged_over_their_words():
    """Tokens of a word have equal weight, and so have the words of a source token."""
    tokenizers = Tokenizers(TOKENIZERS["word"], TOKENIZERS["char"])
    (segments,), _ = segment_lines(["a x y b"], tokenizers.src, Bounds(100, 100))
    rows = [[0.6, 0.4, 0.0], [0.2, 0.8, 0.0], [0.1, 0.1, 0.8], [0.0, 0.0, 1.0]]
    attention = np.array(rows, np.float32)
    ids = tokenizers.tgt.to_ids("c b")
    assert [len(ids), len(segments[0].ids), UNK_ID in ids] == [4, 3, False]
    results = [[SegmentResult(segments[0], ids, 0.0, GivenScore([], attention))]]
    linked, translation = (
        merge_segments("a x y b", results, tokenizers, outputs, is_ranked=False)[0]
        for outputs in (Outputs(alignment=True, attention=False), ALIGNED)
    )
    assert (linked.attention, linked.alignment) == (None, translation.alignment)
    assert translation.attention_MN is not None
    assert translation.attention_MN.nbytes == 4 * 2 * 4  # a float for each pair of words
    assert translation.attention == ((0.4, 0.3, 0.3, 0.0), (0.05, 0.025, 0.025, 0.9))
    assert translation.alignment == ((0, 0), (3, 1))


def test_empty_translation_of_a_segment_has_no_alignment():
    tokenizers = Tokenizers(TOKENIZERS["word"], TOKENIZERS["word"])
    (segments,), _ = segment_lines(["the. b"], tokenizers.src, Bounds(100, 1))
    assert len(segments) == 2
    ids = tokenizers.tgt.to_ids("b")
    forced = (
        GivenScore([], np.empty((0, len(segments[0].ids)), np.float32)),
        GivenScore([], np.ones((1, 1), np.float32)),
    )
    results = [
        [SegmentResult(segments[0], [], 0.0, forced[0])],
        [SegmentResult(segments[1], ids, 0.0, forced[1])],
    ]
    (translation,) = merge_segments(
        "the. b", results, tokenizers, Outputs(alignment=True), is_ranked=False
    )
    assert (translation.alignment, translation.attention) == (((1, 0),), ((0.0, 1.0),))


@pytest.mark.parametrize(("is_ranked", "texts"), [(True, ["a", "b"]), (False, ["a", "a", "b"])])
def test_a_ranked_list_has_no_text_twice_when_unknown_words_are_copied(is_ranked, texts):
    tokenizers = Tokenizers(TOKENIZERS["word"], TOKENIZERS["word"])
    ((segment,),), _ = segment_lines(["a"], tokenizers.src, Bounds(100, 100))
    given = GivenScore([], np.ones((1, 1), np.float32))
    known = [tokenizers.tgt.to_ids(text) for text in ("a", "b")]
    results = [SegmentResult(segment, ids, -1.0, given) for ids in ([UNK_ID], *known)]
    found = merge_segments("a", [results], tokenizers, Outputs(), is_ranked=is_ranked)
    assert [one.text for one in found] == texts
