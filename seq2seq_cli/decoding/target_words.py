"""The target vocabulary, by where its words end: prefixes and required phrases."""

import functools

from seq2seq_cli.decoding.requests import Ids, Phrase, WordEnds
from seq2seq_cli.errors import UserError
from seq2seq_cli.text.quoting import SPACE
from seq2seq_cli.text.sentences import OPENING
from seq2seq_cli.text.words import continues_word, is_spaceless
from seq2seq_cli.tokenizers.tokenizer import EOS_ID, UNK_ID, Tokenizer


class TargetWords:
    """The target vocabulary, by whether a token continues the word before it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoded: tuple[Ids, str] = ([], "")  # the tokens that `_has` saw last, and their text
        of_parts = not tokenizer.is_of_words  # where symbols of the user's stand alone
        self.continues_word = [of_parts and continues_word(p[:1]) for p in tokenizer.pieces()]
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
        is_mark = not continues_word(text[:1]) and text[:1] not in OPENING
        attaches = is_spaceless(text[:1]) or (
            is_mark and self._tokenizer.to_pieces(text)[0] == SPACE
        )
        inner = tuple(self._tokenizer.to_inner_ids(text)) if attaches else first
        inner = first if UNK_ID in inner else inner
        word_ends = self._word_ends if continues_word(text[-1:]) else None
        inner_bytes = frozenset(filter(self._tokenizer.continues_character, first + inner))
        is_in = None if self._word_ends is None else functools.partial(self._has, text)
        return Phrase(first, inner, word_ends, inner_bytes, is_in)

    def prefix(self, text: str) -> tuple[tuple[int, ...], WordEnds | None]:
        """Return the tokens of a prefix, and those that may follow if white space ends it."""
        stripped = text.rstrip()
        is_whole = stripped not in ("", text) and not is_spaceless(stripped[-1])
        return self._ids(text), self._word_ends if is_whole else None

    def _has(self, phrase: str, ids: Ids) -> bool:
        """Return True if a text of tokens contains the phrase, however it is split into tokens."""
        known, text = self._decoded
        if known != ids:
            text = self._tokenizer.to_text(ids)
            self._decoded = [*ids], text
        before, *others = text.split(phrase)
        for after in others:
            begins_word = not (continues_word(before[-1:]) and continues_word(phrase[0]))
            ends_word = not (continues_word(phrase[-1]) and continues_word(after[:1]))
            if begins_word and ends_word:
                return True
            before = phrase + after
        return False

    def _ids(self, text: str) -> tuple[int, ...]:
        ids = tuple(self._tokenizer.to_ids(text))
        if UNK_ID in ids:
            raise UserError(f"{text!r} is outside this run's target vocabulary")
        return ids
