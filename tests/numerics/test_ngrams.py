"""Hashed embeddings of n-grams against a naive sum over the n-grams of every token."""

import pytest
import torch
from small_models import build, random_sources
from torch import nn

from seq2seq_cli.model.ngrams import NgramEmbedding
from seq2seq_cli.model.packing import Packed, Padded
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.native import library as native
from seq2seq_cli.tokenizers.tokenizer import PAD_ID


def table(longest: int, buckets: int, dropout: float = 0.0) -> NgramEmbedding:
    torch.manual_seed(longest)
    ngrams = NgramEmbedding(longest, buckets, 8, dropout)
    with torch.no_grad():
        ngrams.embedding.weight.normal_()
        ngrams.embedding.weight[0] = 0
    return ngrams


def batch_of(sources: list[list[int]]) -> torch.Tensor:
    rows = [torch.tensor(source) for source in sources]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD_ID)


def naive_row(ngram: list[int | None], buckets: int) -> int:
    """The row of an n-gram; None is the start symbol."""
    number = 0
    for token in ngram:
        number = number * 1_000_003 + (1 if token is None else token + 2)
    return 1 + number % (2**31 - 1) % (buckets - 1)


def naive_sums(ngrams: NgramEmbedding, source: list[int]) -> torch.Tensor:
    weight_VD = ngrams.embedding.weight
    sequence, sums = [None, *source], []
    for end in range(2, len(sequence) + 1):
        longest = min(ngrams.longest, end)
        found = [sequence[end - n : end] for n in range(2, longest + 1)]
        sums.append(sum(weight_VD[naive_row(ngram, len(weight_VD))] for ngram in found))
    return torch.stack(sums)


@pytest.mark.parametrize("longest", [2, 3, 6, 16])
@pytest.mark.parametrize("buckets", [2, 50])
def test_sums_are_of_all_ngrams_that_end_at_a_token(longest, buckets):
    ngrams = table(longest, buckets).eval()
    sources = random_sources(10)
    ids_BS = batch_of(sources)
    padded_BSD = ngrams(ids_BS, Padded(ids_BS != PAD_ID))
    packed_1RD = ngrams(ids_BS, Packed(ids_BS != PAD_ID))
    expected = [naive_sums(ngrams, source) for source in sources]
    for sums_SD, expected_SD in zip(padded_BSD, expected, strict=True):
        torch.testing.assert_close(sums_SD[: len(expected_SD)], expected_SD)
    num_tokens = sum(map(len, sources))
    torch.testing.assert_close(packed_1RD[0, :num_tokens], torch.cat(expected))
    assert not packed_1RD[0, num_tokens:].any()


def test_training_leaves_out_whole_ngrams_and_keeps_the_mean():
    bigrams = table(2, 1_000, dropout=0.25)
    ids_BS = torch.randint(4, 12, (1, 4_000))
    layout = Padded(ids_BS != PAD_ID)
    whole_SD, kept_SD = bigrams.eval()(ids_BS, layout)[0], bigrams.train()(ids_BS, layout)[0]
    ratios_SD = kept_SD / whole_SD
    is_left_out_S = (ratios_SD == 0).all(1)
    assert 0.2 < is_left_out_S.float().mean() < 0.3
    torch.testing.assert_close(
        ratios_SD[~is_left_out_S].mean(), torch.tensor(4 / 3), rtol=0.01, atol=0
    )
    assert ratios_SD[~is_left_out_S].std() < 1e-4


@pytest.mark.skipif(not native.precisions(), reason="not compiled")
def test_what_is_left_out_depends_on_the_sentence_and_not_on_its_batch():
    """As all dropout of fused operations: the number of the sentence and the position decide."""
    ngrams = table(4, 1_000, dropout=0.5).train()
    ngrams.dropout.key = 7
    sources = random_sources(12)
    numbers_B = torch.arange(12)

    def sums(chosen: list[int]) -> list[torch.Tensor]:
        ids_BS = batch_of([sources[number] for number in chosen])
        layout = Packed(ids_BS != PAD_ID, numbers_B[chosen])
        rows_RD = ngrams(ids_BS, layout)[0, : layout.num_tokens]
        return list(rows_RD.split([len(sources[number]) for number in chosen]))

    whole = sums(list(range(12)))
    parts = [*sums([0, 1, 2, 3]), *sums([9, 8, 7])]
    for one, other in zip(parts, [*whole[:4], whole[9], whole[8], whole[7]], strict=True):
        assert torch.equal(one, other)


def test_ngrams_with_a_token_that_is_cut_off_add_nothing():
    """So the encoder cannot know the token."""
    model = build(1, ngrams=4, positions="rotary")
    one, other = (torch.tensor([[5, 6, token, 7, 8, 9, 10, 11]]) for token in (4, 11))
    is_cut_BS = torch.arange(8)[None] == 2
    states = [model.encode(ids_BS, cut_BS=is_cut_BS).states_BSD for ids_BS in (one, other)]
    assert torch.equal(*states)
    assert not torch.equal(*(model.encode(ids_BS).states_BSD for ids_BS in (one, other)))


def test_a_model_learns_ngrams_of_its_text_alone():
    """The table starts with zeros, so an n-gram that training has not met adds nothing."""
    config = build(3, ngrams=3, ngram_buckets=500).config
    model = Transformer(config, 12, 12, False, PAD_ID).eval()
    assert not model.src_ngrams.embedding.weight.any()
    ids_BS = batch_of(random_sources(4))
    model.encode(ids_BS).states_BSD[..., 0].square().sum().backward()
    gradient_VD = model.src_ngrams.embedding.weight.grad
    assert gradient_VD is not None
    met = {naive_row([None, *row.tolist()][:2], 500) for row in ids_BS}
    assert all(gradient_VD[row].any() for row in met)
    assert not gradient_VD[0].any()
    assert gradient_VD.any(1).sum() < 60  # of 500
