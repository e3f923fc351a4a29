"""Greedy search, or one with sampled tokens: each token of a hypothesis is final.

B sentences still being decoded, W hypotheses of each, V target vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.decoding.requests import Hypothesis
from seq2seq_cli.decoding.search.active_batch import ActiveBatch
from seq2seq_cli.decoding.search.sampling import sampler
from seq2seq_cli.decoding.search.top_k import top_k
from seq2seq_cli.tokenizers.tokenizer import EOS_ID


class GreedySearch:
    """Independent hypotheses of each sentence: one, or `n_best` that are sampled."""

    def __init__(self, batch: ActiveBatch, config: DecodingConfig, vocab_size: int) -> None:
        self._batch = batch
        self._width = config.n_best
        sampling = config.sampling
        self._choose = sampler(config, batch.requests, vocab_size) if sampling else argmax_token
        self._growing = [set(range(self._width)) for _ in batch.requests]

    def advance(self, logits_BWV: Tensor) -> None:
        batch = self._batch
        batch.check_finite(logits_BWV[..., EOS_ID])
        if logits_BWV.size(1) < self._width:  # the first step: all hypotheses begin alike
            batch.reorder(batch.last_BW.new_zeros(len(batch.active), self._width))
            logits_BWV = logits_BWV.expand(-1, self._width, -1).contiguous()
        batch.rules.apply(logits_BWV, batch.past_BWT)
        batch.append(self._choose(logits_BWV, batch.active))

    def finished(self) -> set[int]:
        """Return the rows whose hypotheses have all ended or reached their maximum length."""
        rows = set(self._batch.rules.at_max_length(self._batch.length))
        for row, tokens in enumerate(self._batch.last_BW.tolist()):
            growing = self._growing[self._batch.active[row]]
            growing.difference_update(w for w, token in enumerate(tokens) if token == EOS_ID)
            if not growing:
                rows.add(row)
        return rows

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, up to their first EOS."""
        return [
            [Hypothesis(ids[: [*ids, EOS_ID].index(EOS_ID)], 0.0) for ids in of_sentence]
            for of_sentence in self._batch.outputs
        ]


def argmax_token(logits_BWV: Tensor, sentences: Sequence[int]) -> Tensor:
    """Return the most probable token of each hypothesis, BW; EOS where the rules leave none."""
    best_BW1, tokens_BW1 = top_k(logits_BWV, 1)
    return tokens_BW1.masked_fill(best_BW1 == -torch.inf, EOS_ID)[..., 0]
