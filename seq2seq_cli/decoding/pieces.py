"""Lines that are too long for the model, in pieces: at the ends of sentences, else at the limit."""

import itertools
import re

from seq2seq_cli.decoding.request import Ids
from seq2seq_cli.text.tokenizer import Tokenizer

_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])[」』”’）]*")


def pieces_of(ids: Ids, line: str, tokenizer: Tokenizer, limit: int, *, each: bool) -> list[Ids]:
    """Ids of the pieces of a line, each of at most `limit`; none for an empty line.

    Only a line that is too long is cut, or every sentence with `each`.
    """
    if not ids:
        return []
    if len(ids) <= limit and not each:
        return [ids]
    sentences = [tokenizer.to_ids(sentence) for sentence in sentences_of(line)]
    pieces: list[Ids] = []
    for sentence in (part for ids in sentences for part in _equal_parts(ids, limit)):
        if pieces and not each and len(pieces[-1]) + len(sentence) <= limit:
            pieces[-1] = pieces[-1] + sentence
        else:
            pieces.append(sentence)
    return pieces


def sentences_of(line: str) -> list[str]:
    """Cut after full stops, question and exclamation marks, with the quotes that follow them."""
    ends = [match.end() for match in _SENTENCE_END.finditer(line)]
    parts = (line[i:j].strip() for i, j in itertools.pairwise([0, *ends, len(line)]))
    return [part for part in parts if part]


def _equal_parts(ids: Ids, limit: int) -> list[Ids]:
    """As few as possible, of nearly equal length."""
    count = -(-len(ids) // limit)
    cuts = [len(ids) * i // count for i in range(count + 1)] if count else [0]
    return [ids[start:stop] for start, stop in itertools.pairwise(cuts)]
