import pytest
import torch

from seq2seq_cli.config import ModelConfig
from seq2seq_cli.decoding.search import NEVER_OUTPUT, greedy_search
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.text.tokenizer import BOS_ID, EOS_ID, PAD_ID


def build(seed: int) -> Transformer:
    """Random weights whose EOS is likely enough that sentences end at different times."""
    torch.manual_seed(seed)
    config = ModelConfig(d_model=16, heads=2, layers=2, d_ff=32, dropout=0.0, tie_embeddings=False)
    model = Transformer(config, 12, 12, False, PAD_ID).eval()
    with torch.no_grad():
        model.projection.weight.mul_(3)
    return model


def naive_greedy(model: Transformer, src: list[int], max_length: int) -> list[int]:
    """One sentence, the whole prefix again at every step, no cache."""
    output: list[int] = []
    while len(output) < max_length:
        logits = model(torch.tensor([src]), torch.tensor([[BOS_ID, *output]]))[0, -1]
        logits[list(NEVER_OUTPUT)] = -torch.inf
        token = int(logits.argmax())
        if token == EOS_ID:
            break
        output.append(token)
    return output


def random_sources(count: int) -> list[list[int]]:
    lengths = torch.randint(1, 9, (count,)).tolist()
    return [[*torch.randint(4, 12, (length,)).tolist(), EOS_ID] for length in lengths]


def padded(sources: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, sources))
    return torch.tensor([src + [PAD_ID] * (longest - len(src)) for src in sources])


@pytest.mark.parametrize("seed", range(8))
def test_a_batch_with_cache_is_the_naive_search_of_each_sentence(seed):
    model = build(seed)
    sources = random_sources(10)
    limits = [2 * len(src) + 5 for src in sources]
    found = greedy_search(model, padded(sources), limits)
    with torch.no_grad():
        naive = [naive_greedy(model, s, n) for s, n in zip(sources, limits, strict=True)]
    assert found == naive


def test_the_sentences_of_these_tests_end_at_different_times():
    lengths = set()
    for seed in range(8):
        model, sources = build(seed), random_sources(10)
        lengths |= {len(ids) for ids in greedy_search(model, padded(sources), [15] * 10)}
    assert len(lengths) > 3


def test_no_output_is_longer_than_its_limit():
    sources = random_sources(6)
    found = greedy_search(build(0), padded(sources), [1, 2, 3, 4, 5, 6])
    assert all(len(ids) <= limit for ids, limit in zip(found, [1, 2, 3, 4, 5, 6], strict=True))


def test_special_tokens_are_never_output():
    for seed in range(4):
        found = greedy_search(build(seed), padded(random_sources(10)), [20] * 10)
        assert not {id_ for ids in found for id_ in ids} & {*NEVER_OUTPUT, EOS_ID}
