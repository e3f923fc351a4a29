"""Random searches for the search in C, and the general search on the same weights."""

from collections.abc import Callable
from random import Random

import pytest
import torch
from small_models import random_sources

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.decoding.engines.base import DecodingState
from seq2seq_cli.decoding.engines.cpu_decoder import CpuDecoder
from seq2seq_cli.decoding.requests import Hypothesis, Ids, Request
from seq2seq_cli.tokenizers.tokenizer import EOS_ID

TextOf = Callable[[Ids], object]


class Stepwise:
    """A native decoder whose logits the general search asks for."""

    def __init__(self, decoder: CpuDecoder) -> None:
        self.device, self.precision = decoder.device, decoder.precision
        self.vocab_size = decoder.vocab_size
        self._decoder = decoder

    def start(self, src_BS: torch.Tensor) -> DecodingState:
        return self._decoder.start(src_BS)


def half_text(ids: Ids) -> tuple[int, ...]:
    """Tokens 4 and 5 are written alike, and 6 is not written."""
    return tuple(token // 2 for token in ids if token != 6)


def random_config(random: Random) -> tuple[DecodingConfig, TextOf]:
    beam_size = random.choice((1, 1, 2, 3, 4, 5, 6, 7, 8))
    n_best = random.randint(1, beam_size)
    config = DecodingConfig(
        beam_size=beam_size,
        n_best=n_best,
        length_penalty=random.choice((0, 0.6, 1, 2)),
        length_penalty_formula=random.choice(("power", "gnmt")),
        no_repeat_ngram_size=random.choice((0, 0, 1, 2, 3)),
        replace_unk=random.random() < 0.3,
        tokens_per_batch=random.choice((20, 300, 4096)),
    )
    return config, half_text if n_best > 1 and random.random() < 0.7 else tuple


def random_requests(random: Random) -> list[Request]:
    """Requests of all lengths, one with a source of EOS alone."""
    sources = [*random_sources(random.choice((1, 5, 20))), [EOS_ID]]
    requests = []
    for number, src in enumerate(sources):
        max_length = random.choice((0, 1, 3, 2 * len(src) + 5, 2 * len(src) + 5, 40))
        min_length = random.choice((0, 0, min(2, max_length), min(20, max_length)))
        requests.append(Request(src, max_length, min_length, number=number))
    return requests


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert [hypothesis.ids for hypothesis in ours] == [h.ids for h in theirs]
        scores = [hypothesis.score for hypothesis in theirs]
        assert [hypothesis.score for hypothesis in ours] == pytest.approx(
            scores, rel=1e-5, abs=1e-5
        )
