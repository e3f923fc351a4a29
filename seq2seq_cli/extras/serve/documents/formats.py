"""The formats of documents, by name; plain text, in which every line is a paragraph."""

import re
from collections.abc import Callable
from typing import Literal

from seq2seq_cli.extras.serve.documents.document import Document, Piece
from seq2seq_cli.extras.serve.documents.html_document import read_html
from seq2seq_cli.extras.serve.documents.markdown_document import read_markdown
from seq2seq_cli.extras.serve.documents.paragraphs import SentenceSplitter, paragraph_pieces
from seq2seq_cli.extras.serve.documents.subtitles import read_subtitles

FormatName = Literal["text", "html", "markdown", "subtitles"]

_LINE_END = re.compile("(\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])")  # as str.splitlines has them


def read_plain_text(text: str, splitter: SentenceSplitter) -> Document:
    """Split plain text; line ends and blanks are kept."""
    pieces: list[Piece] = []
    for number, part in enumerate(_LINE_END.split(text)):
        if number % 2:
            pieces.append(part)
        else:
            pieces += paragraph_pieces(part, splitter)
    return Document(tuple(pieces))


READERS: dict[FormatName, Callable[[str, SentenceSplitter], Document]] = {
    "text": read_plain_text,
    "html": read_html,
    "markdown": read_markdown,
    "subtitles": read_subtitles,
}
