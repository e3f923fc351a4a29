"""Rules about the next token: lengths, prefixes, repetition, banned words.

B sentences still being decoded, W hypotheses of each, T target positions so far, V vocabulary.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.decoding.requests import NEVER_OUTPUT, Ids, Request
from seq2seq_cli.decoding.target_words import TargetWords
from seq2seq_cli.errors import UserError
from seq2seq_cli.text.words import continues_word, is_spaceless
from seq2seq_cli.tokenizers.tokenizer import EOS_ID, UNK_ID, Tokenizer

# Bytes of a character, the token that may complete a word after them, and the text that it adds.
Completing = tuple[Ids, int, str]


class BannedWords:
    """Words that no translation may contain, however they are split into tokens.

    When tokens have spelt a banned word, a letter must follow, which makes it another word; a token
    that would both complete and end it, such as `17.`, is forbidden. In a script without spaces,
    and of punctuation, each token that would complete the word is. Anything else (a phrase, or any
    word if tokens are words) is forbidden in its usual tokens only.
    """

    def __init__(self, words: Sequence[str], tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        normalized = [tokenizer.normalize(word) for word in words]
        if "" in normalized:
            raise UserError("decoding.banned_words: an empty word cannot be banned")
        target = TargetWords(tokenizer)
        of_parts = any(target.continues_word)
        spaceless = [
            word
            for word in normalized
            if is_spaceless(word) or (of_parts and not any(map(continues_word, word)))
        ]
        whole = [word for word in normalized if of_parts and all(map(continues_word, word))]
        others = [word for word in normalized if word not in (*whole, *spaceless)]
        sequences = (tokenizer.to_ids(word) for word in others)
        self._sequences = [ids for ids in sequences if UNK_ID not in ids]
        all_tokens = range(len(tokenizer)) if spaceless or whole else ()
        surfaces = [tokenizer.surfaces([token])[0] for token in all_tokens]
        self._spaces = {token for token, text in enumerate(surfaces) if text.endswith(" ")}
        containing, ending = _tokens_that_end(frozenset(whole), surfaces)
        self._sequences += [[token] for token in containing]
        ending[""] = [token for token, goes_on in enumerate(target.continues_word) if not goes_on]
        self._ids_by_rest = {rest: torch.tensor(ids) for rest, ids in ending.items()}
        self._rests: dict[str, list[str]] = defaultdict(list)  # by the letters before them
        for word in whole:
            for place in range(len(word) + 1):
                if word[place:] in ending:
                    self._rests[word[:place]].append(word[place:])
        self._completing = {word: _completing(word, surfaces, tokenizer) for word in spaceless}

    def apply(self, logits_BWV: Tensor, past_BWT: Tensor) -> None:
        for logits_WV, past_WT in zip(logits_BWV, past_BWT.tolist(), strict=True):
            for logits_V, past in zip(logits_WV, past_WT, strict=True):
                self._forbid(logits_V, past)

    def allows(self, ids: Ids) -> bool:
        """Return True if a translation may begin with these tokens."""
        for place, token in enumerate(ids):
            logits_V = torch.zeros(len(self._tokenizer))
            self._forbid(logits_V, ids[:place])
            if logits_V[token] < 0:
                return False
        return True

    def _forbid(self, logits_V: Tensor, past: Ids) -> None:
        for *begun, last in self._sequences:
            if not begun or past[-len(begun) :] == begun:
                logits_V[last] = -torch.inf
        text = self._tokenizer.to_text(past)
        start = len(text)  # of the last word
        while start and continues_word(text[start - 1]):
            start -= 1
        last_word = "" if self._spaces.intersection(past[-1:]) else text[start:]
        for rest in self._rests.get(last_word, ()):
            logits_V[self._ids_by_rest[rest].to(logits_V.device)] = -torch.inf
        for word, candidates in self._completing.items():
            tail = text[max(0, len(text) - len(word) + 1) :]
            for begun, token, surface in candidates:
                if word in tail + surface and past[len(past) - len(begun) :] == begun:
                    logits_V[token] = -torch.inf


def _tokens_that_end(words: frozenset[str], surfaces: Sequence[str]) -> tuple[Ids, dict[str, Ids]]:
    """Return the tokens that contain one of the words, and by its last letters what ends a word."""
    letters = set(filter(continues_word, set("".join(surfaces))))
    containing: Ids = []
    ending: dict[str, Ids] = defaultdict(list)
    for token, surface in enumerate(surfaces):
        first, *others = "".join(c if c in letters else " " for c in surface).split(" ")
        if others:
            ending[first].append(token)
        if words.intersection(others[:-1]):
            containing.append(token)
    return containing, ending


def _completing(word: str, surfaces: Sequence[str], tokenizer: Tokenizer) -> list[Completing]:
    """Return the tokens that have a character of a word, and the last byte of its last one."""
    has_part = ((token, text) for token, text in enumerate(surfaces) if set(text) & set(word))
    of_text: list[Completing] = [([], token, text) for token, text in has_part]
    spelt = tokenizer.ids_of([f"<0x{byte:02X}>" for byte in word[-1].encode()])
    of_bytes = [(spelt[:-1], spelt[-1], word[-1])] if all(map(tokenizer.is_byte, spelt)) else []
    return of_text + of_bytes


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
    """Allow that token only, with these logits, even if another rule forbids it; W may lack."""
    logits_WV.fill_(-torch.inf)
    logits_WV[..., token] = logits_W
