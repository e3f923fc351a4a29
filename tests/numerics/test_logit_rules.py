"""Logit rules, compared with their definitions."""

import itertools

import pytest
import torch
from torch import Tensor

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.decoding.requests import NEVER_OUTPUT, Request
from seq2seq_cli.decoding.search.logit_rules import LogitRules
from seq2seq_cli.tokenizers.tokenizer import EOS_ID

TOKENS = 9


def apply_rules(logits_WV: Tensor, past_WT: list[list[int]], **options: float) -> Tensor:
    """Apply the rules to the logits of one sentence with W hypotheses."""
    config = DecodingConfig(**options)
    request = Request([4, EOS_ID], max_length=100)
    rules = LogitRules([request], config, (), torch.device("cpu"))
    logits_1WV = logits_WV[None].clone()
    rules.apply(logits_1WV, torch.tensor(past_WT, dtype=torch.int64)[None])
    return logits_1WV[0]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_no_repeat_ngram_size_forbids_exactly_the_repeated_ngrams(n):
    for length in range(9):
        past = [list(ids) for ids in itertools.product((4, 5, 6), repeat=length)][:600]
        logits = apply_rules(torch.zeros(len(past), TOKENS), past, no_repeat_ngram_size=n)
        for ids, row in zip(past, logits, strict=True):
            ngrams = {tuple(ids[i : i + n]) for i in range(length - n + 1)}
            begun = ids[length - n + 1 :] if length >= n else None
            expected = {t for t in range(TOKENS) if begun is not None and (*begun, t) in ngrams}
            forbidden = {t for t, logit in enumerate(row.tolist()) if logit == -torch.inf}
            assert forbidden - {*NEVER_OUTPUT} == expected, ids


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    logits = torch.tensor([0.0, 0.0, 0.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.0])[None]
    actual = apply_rules(logits, [[4, 5, 4, 8]], repetition_penalty=4.0)
    assert actual[0, EOS_ID:].tolist() == [-1.0, 0.5, -8.0, 3.0, -3.0, 0.0]
