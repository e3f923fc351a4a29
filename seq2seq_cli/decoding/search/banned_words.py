"""Words that no translation may contain.

B sentences, W hypotheses of each, T positions, V vocabulary.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from seq2seq_cli.decoding.requests import Ids
from seq2seq_cli.decoding.target_words import TargetWords
from seq2seq_cli.errors import UserError
from seq2seq_cli.text.words import continues_word, is_spaceless
from seq2seq_cli.tokenizers.tokenizer import UNK_ID, Tokenizer

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
            logits_V = torch.zeros(len(self._tokenizer), device="cpu")
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
