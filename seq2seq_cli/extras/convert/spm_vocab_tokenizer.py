"""The tokenizer of imported models: SentencePiece's pieces, looked up in a vocabulary of its own.

Marian (OPUS-MT), OpenNMT with CTranslate2 and Argos Translate number their entries independently of
the SentencePiece model that splits the text.
"""

import functools
import json
from collections.abc import Collection, Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict

from seq2seq_cli.config.types import TokenizerKind
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.text import quoting
from seq2seq_cli.tokenizers.sentencepiece_tokenizer import (
    encoded,
    open_model,
    parsed,
    user_defined_in,
    without_first_space,
)
from seq2seq_cli.tokenizers.sentencepiece_tokenizer import spans as spans_of
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, KIND_MARK, UNK_ID, Tokenizer

SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")  # the entries 0 to 3
_MARK = KIND_MARK + b"spm_vocab\n"
_BYTES = [f"<0x{value:02X}>" for value in range(256)]


class Entries(BaseModel):
    """The vocabulary, a line of JSON before the SentencePiece model."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    pieces: list[str]
    """All entries by id, the first four `SPECIAL_PIECES`."""
    tags: list[str]
    """Entries that are one token, only at the very start of a line."""
    quoted: bool = False
    """Whether SentencePiece gets ▁ in text quoted (`text/quoting.py`), as in bpe and unigram."""

    def mistake(self) -> str | None:
        """Return what is wrong with the entries."""
        entries = set(self.pieces)
        if tuple(self.pieces[: EOS_ID + 1]) != SPECIAL_PIECES:
            return f"its first entries are not {' '.join(SPECIAL_PIECES)}"
        if len(entries) < len(self.pieces):
            return "an entry is listed twice"
        if any("\ud800" <= character <= "\udfff" for character in "".join(self.pieces)):
            return "an entry is not valid Unicode"
        if lacking := [tag for tag in self.tags if tag not in entries - {*SPECIAL_PIECES}]:
            return f"the tag {short(repr(lacking[0]))} is not an entry"
        return "a tag is empty" if "" in self.tags else None


class SpmVocabTokenizer(Tokenizer):
    """A SentencePiece model whose pieces are looked up in another vocabulary.

    A piece without an entry is <unk>. Text goes to SentencePiece with single spaces, but unquoted.
    """

    def __init__(self, model: bytes, shared_with: Tokenizer | None = None) -> None:
        """Load the content of a file; raises UserError if it is damaged."""
        header, _, self.spm = model.removeprefix(_MARK).partition(b"\n")
        try:
            self._entries = Entries.model_validate(json.loads(header))
        except (ValueError, RecursionError):
            raise UserError("the vocabulary of this tokenizer is damaged") from None
        if mistake := self._entries.mistake():
            raise UserError(f"the vocabulary of this tokenizer is damaged: {mistake}")
        self.is_quoted = self._entries.quoted
        self._processor, _ = open_model(self.spm)
        super().__init__(model, self._entries.pieces, shared_with)
        apart = {*SPECIAL_PIECES, *self._entries.tags}
        self._known = {p: i for i, p in enumerate(self._pieces) if p not in apart}
        self._tags = sorted(self._entries.tags, key=len, reverse=True)  # the longest is found first

    @classmethod
    def build(
        cls, spm: bytes, pieces: Sequence[str], tags: Sequence[str], *, quoted: bool = False
    ) -> Self:
        """Return the tokenizer of a SentencePiece model and a vocabulary, given by id.

        Raises UserError for wrong entries, and if `spm` is no SentencePiece model.
        """
        given = Entries(pieces=list(pieces), tags=list(tags), quoted=quoted)
        entries = given.model_dump(exclude_defaults=True)
        return cls(_MARK + json.dumps(entries).encode("ascii") + b"\n" + spm)

    def trimmed(self, pieces: Sequence[str], tags: Sequence[str] = ()) -> "SpmVocabTokenizer":
        """Return the tokenizer with some of its entries, of which further ones are `tags`."""
        spm, entries = restricted(self.spm, pieces), self._entries
        tags = list(dict.fromkeys([*entries.tags, *tags]))
        return SpmVocabTokenizer.build(spm, pieces, tags, quoted=entries.quoted)

    @property
    def kind(self) -> TokenizerKind:
        return "spm_vocab"

    def split_tag(self, text: str) -> tuple[str | None, str]:
        """Return the tag that a line begins with, and the rest."""
        tag = next((tag for tag in self._tags if text.startswith(tag)), None)
        return tag, text.removeprefix(tag or "")

    def _prepared(self, text: str) -> str:
        text = quoting.normalize_spaces(text)
        return quoting.quote(text) if self.is_quoted else text

    def _unquoted(self, text: str) -> str:
        return quoting.unquote(text) if self.is_quoted else text

    def normalize(self, text: str) -> str:
        tag, text = self.split_tag(quoting.normalize_spaces(text))
        normalized = self._processor.normalize(self._prepared(text)).replace(quoting.SPACE, " ")
        return quoting.normalize_spaces(f"{tag or ''} {self._unquoted(normalized)}")

    def to_ids_batch(self, lines: Sequence[str], num_threads: int | None = None) -> list[list[int]]:
        split = [self.split_tag(quoting.normalize_spaces(line)) for line in lines]
        texts = [self._prepared(text) for _, text in split]
        pieces = encoded(self._processor, texts, str, num_threads)
        return [
            [*self.tag_ids(tag), *self._ids_of_pieces(of_line)]
            for (tag, _), of_line in zip(split, pieces, strict=True)
        ]

    def to_inner_ids(self, text: str) -> list[int]:
        processor = without_first_space(self.spm)
        return self._ids_of_pieces(processor.encode(self._prepared(text), out_type=str))

    def _ids_of_pieces(self, pieces: Sequence[str]) -> list[int]:
        return [self._known.get(piece, UNK_ID) for piece in pieces]

    @functools.cached_property
    def _bytes(self) -> dict[int, int]:
        is_byte, id_of = self._processor.is_byte, self._processor.piece_to_id
        return {
            self._known[piece]: value
            for value, piece in enumerate(_BYTES)
            if piece in self._known and is_byte(id_of(piece))
        }

    def to_pieces(self, text: str) -> list[str]:
        """Return the tokens of text, unknown ones as in the text."""
        tag, text = self.split_tag(quoting.normalize_spaces(text))
        pieces = self._processor.encode(self._prepared(text), out_type=str)
        return [tag, *pieces] if tag else list(pieces)

    def user_defined_symbols(self) -> list[str]:
        """Return tags, and the symbols of SentencePiece that have an entry."""
        defined = (symbol for symbol in user_defined_in(self.spm) if symbol in self._known)
        return [*self._entries.tags, *defined]

    @functools.cached_property
    def _tag_ids(self) -> set[int]:
        return set(self.ids_of(self._entries.tags))

    def surfaces(self, ids: Sequence[int]) -> list[str]:
        if not self._tag_ids.isdisjoint(ids):  # which add nothing, as BOS does
            ids = [BOS_ID if token in self._tag_ids else token for token in ids]
        return super().surfaces(ids)

    def spans(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        text = quoting.normalize_spaces(text)
        tag, rest = self.split_tag(text)
        start = len(text) - len(rest.lstrip())
        rest = text[start:]
        prepared, offsets = rest, list(range(len(rest) + 1))
        if self.is_quoted:
            prepared, offsets = quoting.quote_with_offsets(rest)
        found = spans_of(self._processor, prepared)
        spans = [(start + offsets[begin], start + offsets[end]) for begin, end in found]
        return text, [(0, len(tag)), *spans] if tag else spans


def restricted(model: bytes, pieces: Collection[str]) -> bytes:
    """Return a model of subwords that splits text into these pieces, characters and bytes alone.

    The other pieces are marked as unused, as SentencePiece's `SetVocabulary` does: BPE splits them
    again into what they were merged from, and unigram takes the best of the splits that are left.
    """
    proto, kept = parsed(model), {*pieces}
    for entry in proto.pieces:
        if entry.type == entry.NORMAL and len(entry.piece) > 1 and entry.piece not in kept:
            entry.type = entry.UNUSED
    return proto.SerializeToString()
