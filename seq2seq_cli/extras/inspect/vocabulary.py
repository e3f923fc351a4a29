"""A vocabulary: what is in it, how it splits a text, and which embeddings are close to each other.

V vocabulary, D d_model.
"""

import difflib
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor
from torch.nn import functional as F

from seq2seq_cli.console import counted, printable
from seq2seq_cli.errors import UserError
from seq2seq_cli.text.quoting import SPACE
from seq2seq_cli.text.words import split_words, words_of_spans
from seq2seq_cli.tokenizers.tokenizer import EOS_ID, UNK_ID, Tokenizer, Tokenizers

Side = Literal["source", "target"]

_EXAMPLES = 8  # learned pieces in each list
_MOST_LISTED = 20  # symbols
_NEIGHBORS = 10
_SUGGESTIONS = 5


@dataclass(frozen=True)
class Vocabulary:
    """The entries of one vocabulary, by type."""

    kind: str
    size: int
    special: dict[str, int]  # id by name
    symbols: dict[str, int]  # of tokenizer.user_defined_symbols, and tags
    features: int  # number of entries that stand for features of sources
    bytes: int  # number of entries that spell characters without an entry
    pieces: int  # number of entries that were learned from the text
    first: list[str]  # of these: the lowest ids, which bpe and unigram give to frequent pieces
    longest: list[str]
    shortest: list[str]
    sample: list[str]  # at equal distances

    def rows(self, side: str) -> list[tuple[str, str]]:
        """Return the labels and texts of the rows; `side` is source, target or both."""
        label, shared = f"{side} vocabulary", ""
        if side == "both":
            label, shared = "vocabulary", ", shared by source and target"
        rows = [
            (label, f"{self.size:,} {self.kind}{shared}"),
            ("  special tokens", _ids(self.special)),
            ("  user symbols", _ids(self.symbols)),
            ("  features", f"{self.features:,}" if self.features else ""),
            ("  bytes", f"{self.bytes:,}" if self.bytes else ""),
        ]
        return [
            *(row for row in rows if row[1]),
            ("  learned pieces", f"{self.pieces:,}"),
            ("    first", " ".join(self.first)),
            ("    shortest", " ".join(self.shortest)),
            ("    longest", " ".join(self.longest)),
            ("    sample", " ".join(self.sample)),
        ]


def _ids(tokens: dict[str, int]) -> str:
    listed = [f"{name} {token}" for name, token in list(tokens.items())[:_MOST_LISTED]]
    more = len(tokens) - len(listed)
    return ", ".join(listed) + (f" and {more:,} more" if more else "")


def read_vocabularies(tokenizers: Tokenizers, symbols: Collection[str]) -> dict[str, Vocabulary]:
    """Read the vocabulary of `both` sides, or of `source` and `target`."""
    sides = {"source": tokenizers.src, "target": tokenizers.tgt}
    sides = {"both": tokenizers.src} if tokenizers.is_shared else sides
    return {side: _read_vocabulary(tokenizer, symbols) for side, tokenizer in sides.items()}


def _read_vocabulary(tokenizer: Tokenizer, symbols: Collection[str]) -> Vocabulary:
    """Group the entries of a vocabulary by type; `symbols` are defined by the user."""
    entries = tokenizer.pieces()
    ids = range(EOS_ID + 1 + len(tokenizer.features), len(entries))
    is_byte = {token for token in ids if tokenizer.is_byte(token)}
    # A symbol has a second entry, after a space, in a vocabulary of words.
    defined = {entries[t]: t for t in ids if entries[t].removeprefix(SPACE) in symbols}
    learned = [entries[t] for t in ids if t not in is_byte and entries[t] not in defined]
    by_length = sorted(learned, key=lambda piece: len(piece.replace(SPACE, "")))
    step = max(1, len(learned) // _EXAMPLES)
    return Vocabulary(
        kind=tokenizer.kind,
        size=len(tokenizer),
        special={entries[token]: token for token in range(EOS_ID + 1)},
        symbols=defined,
        features=len(tokenizer.features),
        bytes=len(is_byte),
        pieces=len(learned),
        first=learned[:_EXAMPLES],
        longest=by_length[: -_EXAMPLES - 1 : -1],
        shortest=by_length[:_EXAMPLES],
        sample=learned[step // 2 :: step][:_EXAMPLES],
    )


class SplitToken(NamedTuple):
    """A token of a text."""

    piece: str
    id: int
    words: list[int]  # that it is part of, by number
    text: str  # that it stands for
    note: str  # "unknown", "byte", or nothing


@dataclass(frozen=True)
class Split:
    """A text as tokens and as words."""

    text: str  # normalized
    words: list[str]  # as alignments number them, from 0
    tokens: list[SplitToken]

    def report(self) -> dict[str, Any]:
        return asdict(self) | {"tokens": [token._asdict() for token in self.tokens]}

    def as_text(self) -> str:
        """Return a line for each token."""
        notes = [token.note for token in self.tokens]
        counts = {"token": len(notes), "word": len(self.words), "byte": notes.count("byte")}
        parts = [counted(count, noun) for noun, count in counts.items() if count]
        if unknown := notes.count("unknown"):
            parts.append(f"{unknown:,} unknown")
        head = f"text    {printable(self.text)}\ntokens  {', '.join(parts) or 'none'}"
        lines = [head, "", f"{'id':>8}{'word':>6}  piece"]
        for token in self.tokens:
            note = f"  ({token.note}: {token.text})" if token.note else ""
            words = "-".join(map(str, dict.fromkeys([*token.words[:1], *token.words[-1:]])))
            lines.append(f"{token.id:>8}{words:>6}  {printable(token.piece + note)}")
        return "\n".join(lines)


def split_text(tokenizer: Tokenizer, text: str) -> Split:
    """Split a text as the model sees it, without EOS."""
    spaced, spans = tokenizer.spans(text)
    ids = tokenizer.to_ids(text)
    words = words_of_spans(spaced, spans) if ids else []
    tokens = []
    for token, (start, end), of_token in zip(ids, spans, words, strict=True):
        note = "unknown" if token == UNK_ID else "byte" if tokenizer.is_byte(token) else ""
        (piece,) = tokenizer.pieces_of([token])
        tokens.append(SplitToken(piece, token, list(of_token), spaced[start:end].strip(), note))
    return Split(tokenizer.normalize(text), split_words(spaced), tokens)


class Neighbor(NamedTuple):
    """A token close to another one."""

    cosine: float
    id: int
    piece: str


@dataclass(frozen=True)
class Neighbors:
    """The tokens whose embeddings have the greatest cosine with the embedding of a token."""

    side: Side
    piece: str
    id: int
    nearest: list[Neighbor]

    def report(self) -> dict[str, Any]:
        return asdict(self) | {"nearest": [neighbor._asdict() for neighbor in self.nearest]}

    def as_text(self) -> str:
        """Return a line for each neighbor, the nearest first."""
        title = f"nearest to {printable(self.piece)} ({self.id}) among the {self.side} embeddings"
        lines = [f"{n.cosine:>8.3f}{n.id:>8}  {printable(n.piece)}" for n in self.nearest]
        return "\n".join([title, "", f"{'cosine':>8}{'id':>8}  piece", *lines])


def nearest_neighbors(
    vectors_VD: Tensor, tokenizer: Tokenizer, side: Side, token: str
) -> Neighbors:
    """Return the nearest neighbors of a token, given as `_find_token` takes it, without itself."""
    token_id = _find_token(tokenizer, side, token)
    pieces = tokenizer.pieces()
    cosines_V = F.cosine_similarity(vectors_VD, vectors_VD[token_id], dim=-1)
    order = cosines_V.argsort(descending=True, stable=True).tolist()
    order.remove(token_id)
    nearest = [Neighbor(float(cosines_V[t]), t, pieces[t]) for t in order[:_NEIGHBORS]]
    return Neighbors(side, pieces[token_id], token_id, nearest)


def _find_token(tokenizer: Tokenizer, side: Side, token: str) -> int:
    """Return the id of a token: its piece, its piece without ▁, or its id.

    The first of them that the vocabulary has counts. Raises UserError, with suggestions.
    """
    pieces = tokenizer.pieces()
    ids = {piece: number for number, piece in enumerate(pieces)}
    for piece in (token, SPACE + token):
        if piece in ids:
            return ids[piece]
    if token in map(str, range(len(pieces))):
        return int(token)
    text = token.replace(SPACE, " ").strip()
    split = tokenizer.pieces_of(tokenizer.to_ids(text))
    similar = difflib.get_close_matches(SPACE + text, pieces, _SUGGESTIONS, cutoff=0.5)
    raise UserError(
        f"the {side} vocabulary has no token {token!r}, which it splits into "
        f"{printable(' '.join(split)) or 'nothing'}; similar tokens: "
        f"{printable(', '.join(similar)) or 'none'}"
    )
