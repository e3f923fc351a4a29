"""The formats of documents, by name."""

from collections.abc import Callable
from typing import Literal

from seq2seq_cli.extras.serve.documents.document import Document
from seq2seq_cli.extras.serve.documents.html_document import read_html
from seq2seq_cli.extras.serve.documents.markdown_document import read_markdown
from seq2seq_cli.extras.serve.documents.paragraphs import SentenceSplitter
from seq2seq_cli.extras.serve.documents.plain_text import read_plain_text
from seq2seq_cli.extras.serve.documents.subtitles import read_subtitles

FormatName = Literal["text", "html", "markdown", "subtitles"]

READERS: dict[FormatName, Callable[[str, SentenceSplitter], Document]] = {
    "text": read_plain_text,
    "html": read_html,
    "markdown": read_markdown,
    "subtitles": read_subtitles,
}
