"""Lines that are too long for the model, in pieces: at the ends of sentences, else at the limit."""

import itertools
import re
from typing import NamedTuple

from seq2seq_cli.decoding.request import Ids
from seq2seq_cli.text.tokenizer import Tokenizer

_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])[」』”’）]*")


class Piece(NamedTuple):
    """A part of a line that is translated by itself."""

    ids: Ids
    text: str


def pieces_of(ids: Ids, line: str, tokenizer: Tokenizer, limit: int, *, each: bool) -> list[Piece]:
    """The pieces of a line, each of at most `limit` ids; none for an empty line.

    Only a line that is too long is cut, or every sentence with `each`.
    """
    if not ids:
        return []
    if len(ids) <= limit and not each:
        return [Piece(ids, line)]
    pieces: list[Piece] = []
    for sentence in sentences_of(line):
        for part in _parts(Piece(tokenizer.to_ids(sentence), sentence), tokenizer, limit):
            if pieces and not each and len(pieces[-1].ids) + len(part.ids) <= limit:
                last = pieces.pop()
                part = Piece(last.ids + part.ids, f"{last.text} {part.text}")
            pieces.append(part)
    return pieces


def sentences_of(line: str) -> list[str]:
    """Cut after full stops, question and exclamation marks, with the quotes that follow them."""
    ends = [match.end() for match in _SENTENCE_END.finditer(line)]
    parts = (line[i:j].strip() for i, j in itertools.pairwise([0, *ends, len(line)]))
    return [part for part in parts if part]


def _parts(sentence: Piece, tokenizer: Tokenizer, limit: int) -> list[Piece]:
    """As few as possible, of nearly equal length."""
    ids = sentence.ids
    count = -(-len(ids) // limit)
    if count <= 1:
        return [sentence] if count else []
    cuts = [len(ids) * i // count for i in range(count + 1)]
    parts = (ids[start:stop] for start, stop in itertools.pairwise(cuts))
    return [Piece(part, tokenizer.to_text(part)) for part in parts]
