"""The length limit that training pairs determine."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.data.statistics import LengthLimit

LENGTHS = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 3_000)), min_size=1, max_size=200)


def fitting(*pairs: tuple[int, int]) -> LengthLimit:
    src, tgt = np.array(pairs, dtype=np.int32).T
    return LengthLimit.fitting(src, tgt)


@given(LENGTHS)
def test_every_training_target_is_within_the_length_limit(pairs):
    limit = fitting(*pairs)
    options = limit.resolve(DecodingConfig())
    assert limit.factor >= 2 and limit.extra >= 20
    assert all(tgt <= options.max_length(src) for src, tgt in pairs)


def test_length_limit_of_ordinary_translation_and_of_long_targets():
    assert fitting((10, 9), (20, 25), (5, 8)) == LengthLimit(factor=2, extra=20)
    parses = [(n, 5 * n) for n in range(4, 30)]
    assert fitting(*parses) == LengthLimit(factor=5.5, extra=20)
    noisy = fitting(*[(10, 10)] * 999, (1, 200))
    assert noisy == LengthLimit(factor=2, extra=218)  # one pair of a thousand; 1.1 times 198


def test_given_length_limit_stays():
    limit = LengthLimit(factor=5.5, extra=30)
    assert limit.resolve(DecodingConfig(max_len_factor=0)).max_length(10) == 30
    assert limit.resolve(DecodingConfig(max_len_extra=1)).max_length(10) == 56


@given(LENGTHS)
def test_counted_lengths_have_the_limit_and_quantiles_of_all(pairs):
    src, tgt = np.array(pairs, dtype=np.int32).T
    codes, counts = np.unique(src.astype(np.int64) * 4_000 + tgt, return_counts=True)
    few_src, few_tgt = (side.astype(np.int32) for side in np.divmod(codes, 4_000))
    assert LengthLimit.fitting(few_src, few_tgt, counts) == fitting(*pairs)
    shares = [0, 0.5, 0.9, 0.99, 0.999, 1]
    for few, every in ((few_tgt, tgt), (few_tgt / few_src, tgt / src)):
        counted = np.quantile(few, shares, method="inverted_cdf", weights=counts)
        assert counted.tolist() == np.quantile(every, shares, method="inverted_cdf").tolist()
