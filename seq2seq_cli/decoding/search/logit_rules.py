"""Rules about the next token: lengths, prefixes, repetition, banned words.

B sentences still being decoded, W hypotheses of each, T target positions so far, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.decoding.requests import NEVER_OUTPUT, Request
from seq2seq_cli.decoding.search.banned_words import BannedWords
from seq2seq_cli.tokenizers.tokenizer import EOS_ID


class LogitRules:
    """The rules of one batch. Each only lowers logits, so that no hypothesis gains by it."""

    def __init__(
        self,
        requests: Sequence[Request],
        config: DecodingConfig,
        word_rules: Sequence[BannedWords],
        device: torch.device,
    ) -> None:
        """`device` is the one that holds the logits."""
        never = NEVER_OUTPUT[:-1] if config.replace_unk else NEVER_OUTPUT
        self._never = torch.tensor(never, device=device)
        self._repetition_penalty = config.repetition_penalty
        self._ngram = config.no_repeat_ngram_size
        self._word_rules = word_rules
        self.take(requests)

    def take(self, requests: Sequence[Request]) -> None:
        """Apply to these sentences from now on."""
        # The lengths at which a rule begins or ends to hold for one of the sentences, or for all.
        self._requests = requests
        self._min_max_length = min(request.max_length for request in requests)
        self._max_min_length = max(request.min_length for request in requests)

    def at_max_length(self, length: int) -> list[int]:
        """Return the rows whose translations may not become longer than `length` tokens."""
        if length < self._min_max_length:  # the usual case: no loop over the sentences
            return []
        return [b for b, request in enumerate(self._requests) if request.max_length <= length]

    def apply(self, logits_BWV: Tensor, past_BWT: Tensor) -> None:
        """Change the logits of the token after `past_BWT` in place."""
        length = past_BWT.size(2)
        given = [
            (b, request.prefix[length], logits_BWV[b, :, request.prefix[length]].clone())
            for b, request in enumerate(self._requests)
            if length < len(request.prefix)
        ]
        if length and self._repetition_penalty != 1:
            penalty = self._repetition_penalty  # Keskar et al. 2019, section 4.1
            seen_BWT = logits_BWV.gather(-1, past_BWT)
            lowered_BWT = torch.where(seen_BWT > 0, seen_BWT / penalty, seen_BWT * penalty)
            logits_BWV.scatter_(-1, past_BWT, lowered_BWT)
        logits_BWV.index_fill_(-1, self._never, -torch.inf)
        if full := self.at_max_length(length):
            ends_BW = logits_BWV[full, :, EOS_ID]
        if self._ngram and length >= self._ngram:
            grams = past_BWT.unfold(-1, self._ngram, 1)  # B, W, places, n
            begun = past_BWT[..., length - (self._ngram - 1) :]
            repeats = (grams[..., :-1] == begun[:, :, None]).all(dim=-1)
            limits = torch.where(repeats, -torch.inf, torch.inf).to(logits_BWV.dtype)
            logits_BWV.scatter_reduce_(-1, grams[..., -1], limits, "amin")
        for rule in self._word_rules:
            rule.apply(logits_BWV, past_BWT)
        if length < self._max_min_length:
            short = [b for b, request in enumerate(self._requests) if request.min_length > length]
            is_all = len(short) == len(self._requests)  # filling a slice is faster than rows
            logits_BWV[slice(None) if is_all else short, :, EOS_ID] = -torch.inf
        if full:  # at the maximum length no rule may forbid the end
            logits_BWV[full] = -torch.inf
            logits_BWV[full, :, EOS_ID] = ends_BW
        for b, token, logits_W in given:
            force(logits_BWV[b], token, logits_W)
        for b, request in enumerate(self._requests):
            if length == len(request.prefix) and request.after_prefix is not None:
                # Only tokens that do not continue the word before them.
                logits_WV, ids = logits_BWV[b], request.after_prefix.ids
                logits_WN = logits_WV[:, ids]
                logits_WV.fill_(-torch.inf)
                logits_WV[:, ids] = logits_WN


def force(logits_WV: Tensor, token: int, logits_W: Tensor) -> None:
    """Allow that token only, with these logits, even if a rule forbids it; W may be missing."""
    logits_WV.fill_(-torch.inf)
    logits_WV[..., token] = logits_W
