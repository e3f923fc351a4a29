"""Which tokens may come next: lengths, prefixes, repetition, banned words.

B sentences still being decoded, W hypotheses of each, T target positions so far, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.decoding.requests import Request, WordEnds
from seq2seq_cli.decoding.word_rules import BannedWords
from seq2seq_cli.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID

NEVER_OUTPUT = (PAD_ID, BOS_ID, UNK_ID)


class LogitRules:
    """Of one batch. Every rule only lowers logits, so that no hypothesis gains by it."""

    def __init__(
        self,
        requests: Sequence[Request],
        config: DecodingConfig,
        banned: BannedWords | None,
        device: torch.device,
    ) -> None:
        """`device` is where the logits are."""
        never = NEVER_OUTPUT[:-1] if config.replace_unk else NEVER_OUTPUT
        self._never = torch.tensor(never, device=device)
        self._never_nor_end = torch.tensor((*never, EOS_ID), device=device)
        self._repetition_penalty = config.repetition_penalty
        self._ngram = config.no_repeat_ngram_size
        self._banned = banned
        self._looks_at_logits = bool(
            banned is not None or config.no_repeat_ngram_size or config.repetition_penalty != 1
        )
        self._take(requests)

    def keep(self, rows: Sequence[int]) -> None:
        """The given sentences go on, in that order."""
        self._take([self._requests[row] for row in rows])

    def _take(self, requests: Sequence[Request]) -> None:
        """Lengths from which on something holds for one of the sentences, or for all."""
        self._requests = requests
        self._first_full = min((request.max_length for request in requests), default=0)
        self._first_long = min((request.min_length for request in requests), default=0)
        self._last_short = max((request.min_length for request in requests), default=0)
        bound = (len(one.prefix) + (one.after_prefix is not None) for one in requests)
        self._first_free = max(bound, default=0)

    def full(self, length: int) -> list[int]:
        """Whose translations may not be longer."""
        if length < self._first_full:  # mostly: sentences in a batch are not asked one by one
            return []
        return [b for b, request in enumerate(self._requests) if request.max_length <= length]

    def forbidden(self, length: int) -> Tensor | None:
        """Tokens that no sentence may go on with after so many, if that is all there is to say.

        What is full ends all the same. None where a rule looks at logits, or differs among
        sentences.
        """
        if self._looks_at_logits or length < self._first_free:
            return None
        if length >= self._last_short:
            return self._never
        return self._never_nor_end if length < self._first_long else None

    def apply(self, logits_BWV: Tensor, past_BWT: Tensor) -> None:
        """Change the logits of the token after `past_BWT` in place."""
        length = past_BWT.size(2)
        if length and self._repetition_penalty != 1:
            _penalize(logits_BWV, past_BWT, self._repetition_penalty)
        logits_BWV.index_fill_(-1, self._never, -torch.inf)
        if full := self.full(length):
            ends_BW = logits_BWV[full, :, EOS_ID]
        if self._ngram and length >= self._ngram:
            _forbid_repeated(logits_BWV, past_BWT, self._ngram)
        if self._banned is not None:
            self._banned.apply(logits_BWV, past_BWT)
        if length < self._last_short:
            short = [b for b, request in enumerate(self._requests) if request.min_length > length]
            is_all = len(short) == len(self._requests)  # a slice is sooner filled than rows
            logits_BWV[slice(None) if is_all else short, :, EOS_ID] = -torch.inf
        if full:  # nothing may forbid the end of what is full
            logits_BWV[full] = -torch.inf
            logits_BWV[full, :, EOS_ID] = ends_BW
        for b, request in enumerate(self._requests):
            if length < len(request.prefix):
                _force(logits_BWV[b], request.prefix[length])
            elif length == len(request.prefix) and request.after_prefix is not None:
                _end_word(logits_BWV[b], request.after_prefix)


def _force(logits_WV: Tensor, token: int) -> None:
    """Nothing but that token, whatever another rule says of it."""
    kept_W = logits_WV[:, token].clone().nan_to_num_(neginf=-1e4)
    logits_WV.fill_(-torch.inf)
    logits_WV[:, token] = kept_W


def _end_word(logits_WV: Tensor, word_ends: WordEnds) -> None:
    """Nothing that would go on with the word before it."""
    ids_N = word_ends.ids_N.to(logits_WV.device)
    kept_WN = logits_WV[:, ids_N]
    logits_WV.fill_(-torch.inf)
    logits_WV[:, ids_N] = kept_WN


def _penalize(logits_BWV: Tensor, past_BWT: Tensor, penalty: float) -> None:
    """Tokens of the past become unlikelier (Keskar et al. 2019, section 4.1)."""
    seen_BWT = logits_BWV.gather(-1, past_BWT)
    lowered_BWT = torch.where(seen_BWT > 0, seen_BWT / penalty, seen_BWT * penalty)
    logits_BWV.scatter_(-1, past_BWT, lowered_BWT)


def _forbid_repeated(logits_BWV: Tensor, past_BWT: Tensor, n: int) -> None:
    """What would complete n tokens that stand in the past already."""
    grams = past_BWT.unfold(-1, n, 1)  # B, W, places, n
    begun = past_BWT[..., past_BWT.size(-1) - (n - 1) :]
    repeats = (grams[..., :-1] == begun[:, :, None]).all(dim=-1)
    limits = torch.where(repeats, -torch.inf, torch.inf).to(logits_BWV.dtype)
    logits_BWV.scatter_reduce_(-1, grams[..., -1], limits, "amin")
