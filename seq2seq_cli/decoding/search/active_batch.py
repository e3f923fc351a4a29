"""The sentences of a batch that are still being decoded, and everything that is held for them.

B sentences still being decoded, W hypotheses of each, T target positions so far.
"""

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from seq2seq_cli.decoding.engines.base import Decoder
from seq2seq_cli.decoding.requests import Ids, Request, not_finite
from seq2seq_cli.decoding.search.logit_rules import LogitRules
from seq2seq_cli.decoding.search.scoring import padded_ids
from seq2seq_cli.tokenizers.tokenizer import BOS_ID

_WORTH_COPYING = 0.75  # share of unfinished sentences at which it pays to copy them


class ActiveBatch:
    """The hypotheses of a search as they grow; every sentence begins with one, which is empty.

    Row b of every tensor belongs to sentence `active[b]` of the batch. Finished sentences stay
    until enough of them are finished to be worth the copying.
    """

    def __init__(self, decoder: Decoder, requests: Sequence[Request], rules: LogitRules) -> None:
        src_BS = padded_ids([request.src for request in requests]).to(decoder.device)
        self.state = decoder.start(src_BS)
        self.requests = requests
        self.rules = rules
        self.active = list(range(len(requests)))
        self.length = 0  # tokens of each hypothesis
        self.last_BW = src_BS.new_full((len(requests), 1), BOS_ID)
        # Sums of log-probabilities.
        self.sums_BW = src_BS.new_zeros(len(requests), 1, dtype=torch.float32)
        self.outputs: list[list[Ids]] = [[] for _ in requests]  # of those that have left
        self._past_BWT = src_BS.new_zeros(len(requests), 1, 0)
        self._new: list[Tensor] = []  # tokens after those, BW at every step

    @property
    def past_BWT(self) -> Tensor:
        """The tokens of every hypothesis."""
        if self._new:
            self._past_BWT = torch.cat([self._past_BWT, torch.stack(self._new, dim=2)], dim=2)
            self._new = []
        return self._past_BWT

    def reorder(self, origin_BW: Tensor) -> None:
        """Let hypothesis w of sentence b continue the present hypothesis origin_BW[b, w]."""
        self.state.reorder(origin_BW)
        index = origin_BW[:, :, None].expand(-1, -1, self.length)
        self._past_BWT = self.past_BWT.gather(1, index)

    def append(self, tokens_BW: Tensor) -> None:
        self.last_BW = tokens_BW
        self._new.append(tokens_BW)
        self.length += 1

    def check_finite(self, numbers_BW: Tensor) -> None:
        """Raise NotFiniteError for NaN or infinity in numbers made of logits, which may be -inf."""
        if not numbers_BW.max().item() < math.inf:
            is_finite_B = (numbers_BW.flatten(1) < math.inf).all(dim=1)
            raise not_finite(self.requests[int(is_finite_B.int().argmin())].number)

    def drop(self, finished: Collection[int]) -> None:
        """Let the finished rows leave, if copying the others is worth it."""
        unfinished = [row for row in range(len(self.active)) if row not in finished]
        if unfinished and len(unfinished) > _WORTH_COPYING * len(self.active):
            return
        for row in finished:
            self.outputs[self.active[row]] = self.past_BWT[row].tolist()
        self.active = [self.active[row] for row in unfinished]
        if not unfinished:
            return
        rows_B = torch.tensor(unfinished, dtype=torch.int64, device=self.last_BW.device)
        self.state.keep(rows_B)
        self.requests = [self.requests[row] for row in unfinished]
        self.rules.take(self.requests)
        self.last_BW, self.sums_BW = self.last_BW[rows_B], self.sums_BW[rows_B]
        self._past_BWT = self.past_BWT[rows_B]
