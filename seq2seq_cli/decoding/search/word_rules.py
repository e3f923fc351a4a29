"""Words in token sequences: banned words, and the ends of required words and prefixes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from seq2seq_cli.decoding.requests import Ids, Phrase, WordEnds
from seq2seq_cli.errors import UserError
from seq2seq_cli.text.quoting import SPACE, unquote
from seq2seq_cli.text.sentences import OPENING
from seq2seq_cli.text.words import continues_word, is_spaceless
from seq2seq_cli.tokenizers.tokenizer import EOS_ID, UNK_ID, Tokenizer


class TargetWords:
    """The target vocabulary, by whether a token continues the word before it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.surfaces = [unquote(piece.replace(SPACE, " ")) for piece in tokenizer.pieces()]
        of_parts = not tokenizer.is_of_words  # where symbols of the user's stand alone
        self.continues_word = [of_parts and _continues_word(s[:1]) for s in self.surfaces]
        ends = (
            token
            for token in range(EOS_ID, len(tokenizer))
            if not self.continues_word[token]
            and not tokenizer.is_byte(token)  # which may be part of a letter
        )
        self._word_ends = WordEnds(ends) if any(self.continues_word) else None

    def phrase(self, text: str) -> Phrase:
        """Return the tokens of a required phrase: whole words, where spaces separate words."""
        first = self._ids(text)
        text = self._tokenizer.normalize(text)
        # No space precedes a text in a script without spaces, and marks; but where marks are words
        # of their own, as in tokenized text, the vocabulary has `▁.`.
        is_mark = not _continues_word(text[:1]) and text[:1] not in OPENING
        attaches = is_spaceless(text[:1]) or (
            is_mark and self._tokenizer.to_pieces(text)[0] == SPACE
        )
        inner = tuple(self._tokenizer.to_inner_ids(text)) if attaches else first
        inner = first if UNK_ID in inner else inner
        word_ends = self._word_ends if _continues_word(text[-1:]) else None
        inner_bytes = frozenset(filter(self._tokenizer.continues_character, first + inner))
        return Phrase(first, inner, word_ends, inner_bytes)

    def prefix(self, text: str) -> tuple[tuple[int, ...], WordEnds | None]:
        """Return the tokens of a prefix, and those that may follow if white space ends it."""
        stripped = text.rstrip()
        is_whole = stripped not in ("", text) and not is_spaceless(stripped[-1])
        return self._ids(text), self._word_ends if is_whole else None

    def _ids(self, text: str) -> tuple[int, ...]:
        ids = tuple(self._tokenizer.to_ids(text))
        if UNK_ID in ids:
            raise UserError(f"{text!r} is outside this run's target vocabulary")
        return ids


class BannedWords:
    """Words that no translation may contain, however they are split into tokens.

    When tokens have spelt a banned word, a letter must follow, which makes it another word. In a
    script without spaces, and of punctuation, the token that would complete the word is forbidden.
    Anything else (a phrase, or any word if tokens are words) is forbidden in its usual tokens only.
    """

    def __init__(self, words: Sequence[str], tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        normalized = [tokenizer.normalize(word) for word in words]
        if "" in normalized:
            raise UserError("decoding.banned_words: an empty word cannot be banned")
        target = TargetWords(tokenizer)
        self._ends_word_V = ~torch.tensor(target.continues_word)
        of_parts = any(target.continues_word)
        spaceless = [
            word
            for word in normalized
            if is_spaceless(word) or (of_parts and not any(map(_continues_word, word)))
        ]
        whole = [word for word in normalized if of_parts and all(map(_continues_word, word))]
        self._words = frozenset(whole)
        others = [word for word in normalized if word not in (*whole, *spaceless)]
        sequences = (tokenizer.to_ids(word) for word in others)
        self._sequences = [ids for ids in sequences if UNK_ID not in ids]
        self._completing = {
            word: [(token, s) for token, s in enumerate(target.surfaces) if set(s) & set(word)]
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
        start = len(text)  # of the last word
        while start and _continues_word(text[start - 1]):
            start -= 1
        if text[start:] in self._words:
            logits_V[: len(self._ends_word_V)][self._ends_word_V.to(logits_V.device)] = -torch.inf
        for word, candidates in self._completing.items():
            tail = text[max(0, len(text) - len(word) + 1) :]
            for token, surface in candidates:
                if word in tail + surface:
                    logits_V[token] = -torch.inf


def _continues_word(character: str) -> bool:
    """Whether this character continues the word before it; the end of the text does not."""
    return bool(character) and continues_word(character)
