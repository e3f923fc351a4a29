"""Plain text: every line is a paragraph."""

import re

from seq2seq_cli.extras.serve.documents.document import Document, Piece
from seq2seq_cli.extras.serve.documents.paragraphs import SentenceSplitter, paragraph_pieces

_LINE_END = re.compile("(\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])")  # as str.splitlines has them


def read_plain_text(text: str, splitter: SentenceSplitter) -> Document:
    """Take plain text apart; line ends and blanks are kept."""
    pieces: list[Piece] = []
    for number, part in enumerate(_LINE_END.split(text)):
        if number % 2:
            pieces.append(part)
        else:
            pieces += paragraph_pieces(part, splitter)
    return Document(tuple(pieces))
