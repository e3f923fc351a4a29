"""Which tokens may come next: lengths, prefixes, repetition, banned words.

B sentences still being decoded, W hypotheses of each, T target positions so far, V vocabulary.
"""

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from seq2seq_cli.decoding.request import Ids, Request
from seq2seq_cli.decoding_config import DecodingConfig
from seq2seq_cli.errors import UserError
from seq2seq_cli.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer

# Thai, kana, Chinese characters.
_SPACELESS = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]")
NEVER_OUTPUT = (PAD_ID, BOS_ID, UNK_ID)


class Rules:
    """Of one batch. Every rule only lowers logits, so that no hypothesis gains by it."""

    def __init__(
        self,
        requests: Sequence[Request],
        config: DecodingConfig,
        banned: "BannedWords | None",
        device: torch.device,
    ) -> None:
        """`device` is where the logits are."""
        never = NEVER_OUTPUT[:-1] if config.replace_unk else NEVER_OUTPUT
        self._never = torch.tensor(never, device=device)
        self._never_nor_end = torch.tensor((*never, EOS_ID), device=device)
        self._repetition_penalty = config.repetition_penalty
        self._ngram = config.no_repeat_ngram
        self._banned = banned
        self._looks_at_logits = bool(
            banned is not None or config.no_repeat_ngram or config.repetition_penalty != 1
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
        self._first_free = max((len(request.prefix) for request in requests), default=0)

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


def _force(logits_WV: Tensor, token: int) -> None:
    """Nothing but that token, whatever another rule says of it."""
    kept_W = logits_WV[:, token].clone().nan_to_num_(neginf=-1e4)
    logits_WV.fill_(-torch.inf)
    logits_WV[:, token] = kept_W


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


class BannedWords:
    """Words that no translation may hold, however they are cut into tokens.

    Where tokens have spelt a word, it may not end there: a letter must follow, and it becomes
    another word. Of Chinese, Japanese and Thai, which put no spaces between words, the token that
    would complete one is forbidden; anything else, like a phrase, or where a token is a word, is
    forbidden as its usual tokens.
    """

    def __init__(self, words: Sequence[str], tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        normalized = [tokenizer.normalize(word) for word in words]
        if "" in normalized:
            raise UserError("decoding.banned: an empty word cannot be banned")
        pieces = [piece.replace("▁", " ") for piece in tokenizer.pieces()]
        continues = [piece[:1].isalnum() for piece in pieces]
        self._ends_word_V = ~torch.tensor(continues)
        spaceless = [word for word in normalized if _SPACELESS.search(word)]
        words = [w for w in normalized if w.isalnum() and w not in spaceless and any(continues)]
        self._words = frozenset(words)
        others = [word for word in normalized if word not in (*words, *spaceless)]
        sequences = (tokenizer.to_ids(word) for word in others)
        self._sequences = [ids for ids in sequences if UNK_ID not in ids]
        self._completing = {
            word: [(token, p) for token, p in enumerate(pieces) if set(p) & set(word)]
            for word in spaceless
        }

    def apply(self, logits_BWV: Tensor, past_BWT: Tensor) -> None:
        for logits_WV, past_WT in zip(logits_BWV, past_BWT.tolist(), strict=True):
            for logits_V, past in zip(logits_WV, past_WT, strict=True):
                self._forbid(logits_V, past)

    def _forbid(self, logits_V: Tensor, past: Ids) -> None:
        for *begun, last in self._sequences:
            if not begun or past[-len(begun) :] == begun:
                logits_V[last] = -torch.inf
        text = self._tokenizer.to_text(past)
        if _last_word(text) in self._words:
            logits_V[: len(self._ends_word_V)][self._ends_word_V.to(logits_V.device)] = -torch.inf
        for word, candidates in self._completing.items():
            tail = text[-len(word) :]
            for token, piece in candidates:
                if word in tail + piece:
                    logits_V[token] = -torch.inf


def _last_word(text: str) -> str:
    start = len(text)
    while start and text[start - 1].isalnum():
        start -= 1
    return text[start:]
