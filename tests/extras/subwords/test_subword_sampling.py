"""Sampled segmentations: their distribution, and what they depend on."""

import math
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from commands import ROOT
from number_task import number_pairs, write_pairs

from seq2seq_cli.config.regularization import SubwordSampling
from seq2seq_cli.config.schema import TrainingConfig
from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.data.batch_sampler import BatchSampler
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.data.token_store import open_store
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.subwords.sampler import SubwordSampler, learned_pieces, make_samplers
from seq2seq_cli.extras.subwords.segmenters import LearnedPiece
from seq2seq_cli.tokenizers.tokenizer import EOS_ID, PAD_ID, Tokenizer, Tokenizers

STRENGTHS = {"bpe": 0.1, "unigram": 0.3}
SEED = [7, 0]
Distribution = dict[tuple[str, ...], float]


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return (ROOT / "data/quickstart/train.de").read_text().splitlines()[:600]


@pytest.fixture(scope="module", params=STRENGTHS)
def tokenizer(request, lines) -> Tokenizer:
    """With bytes, a symbol of the user's, and text without spaces."""
    config = TokenizerConfig(
        kind=request.param, vocab_size=700, user_defined_symbols=("<tag>",), split_digits=True
    )
    return Tokenizer.fit([*lines, *["我想喝啤酒", "我喝茶想你"] * 20], config)


def sampler_of(tokenizer: Tokenizer, strength: float | None = None, longest: int = 10_000):
    strength = STRENGTHS[tokenizer.kind] if strength is None else strength
    return SubwordSampler(tokenizer, strength, longest, SEED)


def ids_of(tokenizer: Tokenizer, texts: list[str]) -> list[np.ndarray]:
    return [np.array([*ids, EOS_ID], np.int32) for ids in tokenizer.to_ids_batch(texts)]


def bpe_dropout(
    symbols: tuple[str, ...], pieces: Mapping[str, LearnedPiece], p: float, result: Distribution
) -> Distribution:
    """The exact distribution of the paper's algorithm 1, from all outcomes of each step."""
    merges = [
        (-pieces[a + b].score, i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in pieces
    ]
    share = result.pop(symbols)
    for _, i in sorted(merges):
        merged = (*symbols[:i], symbols[i] + symbols[i + 1], *symbols[i + 2 :])
        inner = bpe_dropout(merged, pieces, p, {merged: share * (1 - p)})
        for segmentation, probability in inner.items():
            result[segmentation] = result.get(segmentation, 0) + probability
        share *= p
    result[symbols] = result.get(symbols, 0) + share  # every merge was dropped
    return result


def splits(text: str) -> Iterator[tuple[str, ...]]:
    if not text:
        yield ()
    for end in range(1, len(text) + 1):
        yield from ((text[:end], *rest) for rest in splits(text[end:]))


def unigram_sampling(text: str, pieces: Mapping[str, LearnedPiece], alpha: float) -> Distribution:
    """P(x)^α of all segmentations x, normalized."""
    weights = {
        split: math.exp(alpha * sum(pieces[piece].score for piece in split))
        for split in splits(text)
        if all(piece in pieces for piece in split)
    }
    return {split: weight / sum(weights.values()) for split, weight in weights.items()}


def words_in_one_stretch(lines: list[str], pieces: Mapping[str, LearnedPiece]) -> list[str]:
    """Words of six letters in which every two neighbours stand side by side in some piece."""
    joined = {pair for piece in pieces for pair in pairwise(piece)}
    words = dict.fromkeys(word for line in lines for word in line.split() if len(word) == 6)
    return [word for word in words if all(pair in joined for pair in pairwise(f"▁{word}"))]


def test_sampled_segmentations_have_the_published_distribution(tokenizer, lines):
    pieces, strength, count = learned_pieces(tokenizer.model), STRENGTHS[tokenizer.kind], 20_000
    words = words_in_one_stretch(lines, pieces)[:4]
    assert len(words) == 4
    for text in words:
        word = f"▁{text}"
        if tokenizer.kind == "bpe":
            expected = bpe_dropout(tuple(word), pieces, strength, {tuple(word): 1.0})
        else:
            expected = unigram_sampling(word, pieces, strength)
        assert sum(expected.values()) == pytest.approx(1)
        sentences = ids_of(tokenizer, [text]) * count
        sampled = sampler_of(tokenizer)(sentences, range(count), epoch=1)
        found = Counter(tuple(tokenizer.pieces_of(list(ids[:-1]))) for ids in sampled)
        assert len(found) > 5
        assert found.keys() <= expected.keys()
        for split, share in expected.items():
            deviation = math.sqrt(share * (1 - share) / count)
            assert abs(found[split] / count - share) < 5 * deviation + 5 / count, split


def test_sampling_keeps_the_text(tokenizer, lines):
    odd = ["<tag> 🍺 Bier<tag>haus 2026", "我想喝啤酒 我喝茶想你", "▁ \ufdd0 a", "x" * 300]
    texts = [*lines[:200], *odd]
    sentences = ids_of(tokenizer, texts)
    sampled = sampler_of(tokenizer)(sentences, range(len(texts)), epoch=3)
    assert [list(ids) for ids in sampled] != [ids.tolist() for ids in sentences]
    for ids, text in zip(sampled, texts, strict=True):
        assert tokenizer.to_text(list(ids)) == tokenizer.normalize(text)
        assert ids[-1] == EOS_ID


def test_dropping_no_merge_is_no_sampling(tokenizer, lines):
    sentences = ids_of(tokenizer, lines[:100])
    sampled = sampler_of(tokenizer, 0.0)(sentences, range(100), epoch=1)
    is_same = all(a is b for a, b in zip(sampled, sentences, strict=True))
    assert is_same == (tokenizer.kind == "bpe")  # α = 0 makes all segmentations equally probable


def test_a_pair_is_sampled_alike_in_any_batch_and_anew_in_every_epoch(tokenizer, lines):
    sentences = ids_of(tokenizer, lines[:60])
    sampler = sampler_of(tokenizer)
    whole = [list(ids) for ids in sampler(sentences, range(60), epoch=2)]
    order = random.Random(1).sample(range(60), 60)
    fresh = sampler_of(tokenizer)
    for start in range(0, 60, 7):
        batch = order[start : start + 7]
        sampled = fresh([sentences[i] for i in batch], batch, epoch=2)
        assert [list(ids) for ids in sampled] == [whole[i] for i in batch]
    for other in (
        sampler(sentences, range(60), epoch=3),
        sampler(sentences, range(1, 61), epoch=2),
        SubwordSampler(tokenizer, STRENGTHS[tokenizer.kind], 10_000, [7, 1])(
            sentences, range(60), 2
        ),
    ):
        assert sum(list(a) != b for a, b in zip(other, whole, strict=True)) > 30


def test_a_sentence_that_would_get_too_long_is_not_sampled(tokenizer, lines):
    sentences = ids_of(tokenizer, lines)
    free = sampler_of(tokenizer)(sentences, range(len(lines)), epoch=1)
    longest = 14
    limited = sampler_of(tokenizer, longest=longest)(sentences, range(len(lines)), epoch=1)
    assert max(map(len, free)) > longest
    for usual, ids, kept in zip(sentences, free, limited, strict=True):
        assert list(kept) == (list(ids) if len(ids) <= longest else usual.tolist())


@pytest.fixture
def samplers_and_store(tokenizer, tmp_path, lines):
    for side in ("src", "tgt"):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines))
    text = ParallelText.of(src=tmp_path / "src", tgt=tmp_path / "tgt")
    tokenizers = Tokenizers(tokenizer, tokenizer)
    strength = STRENGTHS[tokenizer.kind]
    training = TrainingConfig(subword_sampling=SubwordSampling(src=strength, tgt=strength))
    return make_samplers(tokenizers, training, 256), open_store(text, tokenizers, "error")


def test_batches_have_at_most_about_tokens_per_batch_tokens(samplers_and_store):
    samplers, store = samplers_and_store
    batches = BatchSampler(store, 500, seed=1, samplers=samplers)
    made = batches.batches(1, 0, len(batches))
    sizes = [max(batch.num_tokens, batch.num_src_tokens) for batch in made]
    assert max(sizes) < 1.1 * 500
    assert np.median(sizes) > 0.8 * 500
    plain = BatchSampler(store, 500, seed=1)
    assert len(batches) > len(plain)
    padding = 1 - sum(b.num_tokens + b.num_src_tokens for b in made) / sum(
        b.num_positions for b in made
    )
    estimate, of_plain = (each.first_buffer().padding() for each in (batches, plain))
    assert estimate == pytest.approx(padding, abs=0.05)
    assert of_plain < estimate < of_plain + 0.1


def sources_of(tokenizer: Tokenizer, batches: list[Batch]) -> list[str]:
    rows = [row for batch in batches for row in batch.src_BS.tolist()]
    return sorted(tokenizer.to_text([i for i in row if i != PAD_ID]) for row in rows)


def test_an_epoch_has_every_pair_once(samplers_and_store, tokenizer, lines):
    """Also if its batches are asked for one by one, or from the middle of a pool on."""
    samplers, store = samplers_and_store
    batches = BatchSampler(store, 25, seed=1, samplers=samplers)
    assert len(batches) > 260  # more than two pools
    made = batches.batches(2, 0, len(batches))
    assert sources_of(tokenizer, made) == sorted(map(tokenizer.normalize, lines))
    again = BatchSampler(store, 25, seed=1, samplers=samplers)
    for position in (150, 3, len(batches) - 1):
        (found,) = again.batches(2, position, 1)
        assert found.src_BS.equal(made[position].src_BS)
        assert found.labels_BT.equal(made[position].labels_BT)


def test_sampled_batches_have_at_most_pairs_per_batch(samplers_and_store):
    samplers, store = samplers_and_store
    batches = BatchSampler(store, 10_000, seed=1, samplers=samplers, pairs_per_batch=7)
    sizes = [len(batch.src_BS) for batch in batches.batches(1, 0, len(batches))]
    assert (max(sizes), sum(sizes), len(sizes)) == (7, len(store), math.ceil(len(store) / 7))


@pytest.mark.parametrize("used", [5, 128, 150])
def test_another_batch_size_leaves_the_pairs_that_were_not_used(
    samplers_and_store, tokenizer, lines, used
):
    samplers, store = samplers_and_store
    first = BatchSampler(store, 25, seed=1, samplers=samplers).batches(3, 0, used)
    other = BatchSampler(store, 75, seed=1, samplers=samplers)
    rest = other.batches(3, 0, 1_000, [[25, used]])
    assert sources_of(tokenizer, first + rest) == sorted(map(tokenizer.normalize, lines))


def test_batches_of_an_epoch_have_its_segmentations(samplers_and_store):
    samplers, store = samplers_and_store
    batches = BatchSampler(store, 500, seed=1, samplers=samplers)
    again = BatchSampler(store, 500, seed=1, samplers=samplers)
    for one, other in zip(batches.batches(2, 3, 2), again.batches(2, 3, 2), strict=True):
        assert one.src_BS.equal(other.src_BS) and one.labels_BT.equal(other.labels_BT)
    batch = batches.batches(1, 0, 1)[0]
    tokenizer_ids = [[i for i in row if i > 0] for row in batch.src_BS.tolist()]
    targets = [[i for i in row if i > 0] for row in batch.labels_BT.tolist()]
    assert tokenizer_ids != targets  # the same text on both sides, sampled apart


def test_long_stretches_are_sampled_apart_from_short_ones(tokenizer, lines):
    """A line of thousands of characters without a space costs its own memory, not that of all."""
    some = ids_of(tokenizer, lines[:40])
    long = ids_of(tokenizer, ["ab" * 2_000])
    alone = sampler_of(tokenizer)(some, range(40), epoch=1)
    tracemalloc.start()
    together = sampler_of(tokenizer)(some * 50 + long, [*range(40)] * 50 + [40], epoch=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 400_000_000
    for one, other in zip(alone * 50, together, strict=False):
        assert one.tolist() == other.tolist()
    assert tokenizer.to_text(together[-1].tolist()) == "ab" * 2_000


def test_a_reused_vocabulary_without_subwords_is_refused(tmp_path: Path):
    pairs = write_pairs(tmp_path, "train", number_pairs(100, seed=1))
    lines = Path(pairs["tgt"]).read_text().splitlines()
    words = Tokenizer.fit(lines, TokenizerConfig(kind="word", vocab_size=100))
    training = TrainingConfig(subword_sampling=SubwordSampling(tgt=0.1))
    with pytest.raises(UserError, match=r"subword_sampling: the vocabulary is of kind word"):
        make_samplers(Tokenizers(words, words), training, 256)
