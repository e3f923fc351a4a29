"""Large text is shuffled in buffers: each pair once in an epoch, from any position on."""

import numpy as np
import pytest

from seq2seq_cli.config.regularization import SubwordSampling
from seq2seq_cli.config.schema import TrainingConfig
from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.data.batch_sampler import BatchSampler
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.data.token_store import TokenStore, open_store
from seq2seq_cli.extras.subwords.sampled_buffer import SubwordSamplers
from seq2seq_cli.extras.subwords.sampler import make_samplers
from seq2seq_cli.tokenizers.tokenizer import PAD_ID, Tokenizers, fit_tokenizers

NUM_PAIRS = 5 * 4_096 + 100  # five blocks, and a part of one
MOST_PAIRS = 2 * 4_096  # so that there are three buffers
OTHER_CASES = [(False, 0.9), (True, 0.4), (True, 0.9)]


@pytest.fixture(scope="module")
def tokenizers_and_store(tmp_path_factory) -> tuple[Tokenizers, TokenStore]:
    path = tmp_path_factory.mktemp("text") / "all.tsv"
    lengths = np.random.default_rng(1).integers(0, 5, NUM_PAIRS)
    rows = (f"{n}{' ja' * int(k)}\t{n}\n" for n, k in enumerate(lengths))
    path.write_text("".join(rows))
    text = ParallelText.of(pairs=path)
    tokenizers = fit_tokenizers(text, TokenizerConfig(kind="bpe", vocab_size=400))
    return tokenizers, open_store(text, tokenizers, "error", 99)


@pytest.fixture(
    params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "sampled"]
)
def samplers(request, tokenizers_and_store) -> SubwordSamplers | None:
    if not request.param:
        return None
    training = TrainingConfig(subword_sampling=SubwordSampling(src=0.2, tgt=0.2))
    return make_samplers(tokenizers_and_store[0], training, 99)


def numbers(tokenizers: Tokenizers, batches: list[Batch]) -> list[int]:
    """The numbers of the pairs, which are their targets."""
    rows = [row for batch in batches for row in batch.labels_BT.tolist()]
    return [int(tokenizers.tgt.to_text([i for i in row if i > PAD_ID])) for row in rows]


def test_an_epoch_has_every_pair_once_in_another_order(tokenizers_and_store, samplers):
    tokenizers, store = tokenizers_and_store
    sampler = BatchSampler(store, 500, 1, samplers, most_pairs=MOST_PAIRS)
    epochs = [numbers(tokenizers, sampler.batches(e, 0, len(sampler))) for e in (1, 2)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(NUM_PAIRS))
        blocks = {number // 4_096 for number in epoch[: MOST_PAIRS // 4]}
        assert len(blocks) == 2  # of the first buffer
    assert epochs[0] != epochs[1]
    one_buffer = BatchSampler(store, 500, 1, samplers)
    assert len(one_buffer) == pytest.approx(len(sampler), rel=0.02)


def test_batches_start_at_any_position(tokenizers_and_store, samplers):
    _, store = tokenizers_and_store
    sampler = BatchSampler(store, 500, 1, samplers, most_pairs=MOST_PAIRS)
    read_on = sampler.batches(2, 0, len(sampler))
    again = BatchSampler(store, 500, 1, samplers, most_pairs=MOST_PAIRS)
    for position in (0, len(sampler) // 2, len(sampler) - 2, len(sampler) // 3):
        found = again.batches(2, position, 3)
        expected = read_on[position : position + 3]
        assert all(a.src_BS.equal(b.src_BS) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("samplers", "share"),
    [(False, 0.4), *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHER_CASES)],
    indirect=["samplers"],
)
def test_another_batch_size_leaves_the_pairs_that_were_not_used(
    tokenizers_and_store, samplers, share
):
    tokenizers, store = tokenizers_and_store
    first = BatchSampler(store, 500, 1, samplers, most_pairs=MOST_PAIRS)
    used = int(share * len(first))
    parts = [[500, used]]
    second = BatchSampler(store, 900, 1, samplers, most_pairs=MOST_PAIRS)
    more = second.batches(1, 0, 3, parts)
    parts.append([900, 3])
    third = BatchSampler(store, 700, 1, samplers, most_pairs=MOST_PAIRS)
    left = third.num_left(1, parts)
    batches = [*first.batches(1, 0, used), *more, *third.batches(1, 0, left, parts)]
    assert sorted(numbers(tokenizers, batches)) == list(range(NUM_PAIRS))
    assert third.num_left(1, [[500, len(first)]]) == 0


def test_an_update_may_have_batches_of_two_buffers(tokenizers_and_store):
    tokenizers, store = tokenizers_and_store
    sampler = BatchSampler(store, 500, 1, most_pairs=MOST_PAIRS)
    pieces = [sampler.batches(1, start, 7) for start in range(0, len(sampler), 7)]
    assert sum(map(len, pieces)) == len(sampler)
    together = numbers(tokenizers, [batch for piece in pieces for batch in piece])
    assert together == numbers(tokenizers, sampler.batches(1, 0, len(sampler)))
