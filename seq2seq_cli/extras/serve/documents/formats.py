"""The formats of documents, by name; plain text, in which every line is a paragraph."""

from collections.abc import Callable
from typing import Literal

from seq2seq_cli.extras.serve.documents.document import Document, Piece
from seq2seq_cli.extras.serve.documents.html_document import read_html
from seq2seq_cli.extras.serve.documents.markdown_document import read_markdown
from seq2seq_cli.extras.serve.documents.paragraphs import SentenceSplitter, paragraph_pieces
from seq2seq_cli.extras.serve.documents.subtitles import read_subtitles
from seq2seq_cli.extras.serve.documents.xml_document import read_xml

FormatName = Literal["text", "html", "markdown", "subtitles", "xml"]
Reader = Callable[[str, SentenceSplitter], Document]


def read_plain_text(text: str, splitter: SentenceSplitter) -> Document:
    """Split plain text; line ends and blanks are kept."""
    pieces: list[Piece] = []
    for line in text.splitlines(keepends=True):
        (content,) = line.splitlines()
        pieces += [*paragraph_pieces(content, splitter), line[len(content) :]]
    return Document(pieces)


READERS: dict[FormatName, Reader] = {
    "text": read_plain_text,
    "html": read_html,
    "markdown": read_markdown,
    "subtitles": read_subtitles,
    "xml": read_xml,
}


def words_of(text: str, read: Reader) -> str:
    """Return the sentences of a text, without markup; the text itself if it has none."""
    if read is read_plain_text:
        return text
    return "\n".join(each.text for each in read(text, SentenceSplitter()).sentences) or text
