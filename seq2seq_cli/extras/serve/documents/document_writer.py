"""Puts the translations of a document's sentences together."""

from seq2seq_cli.extras.serve.documents.document import Document, Gap, Sentence, SentenceTranslation
from seq2seq_cli.extras.serve.documents.tag_placement import place_tags
from seq2seq_cli.text.sentences import separator


class DocumentWriter:
    """Writes a document with translations in place of its sentences, one after the other."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._pieces = iter(document.pieces)
        self._last = ""  # translation

    def add(self, translation: SentenceTranslation) -> str:
        """Return what the translation of the next sentence adds, with what is before it.

        A single space between sentences is left out after Chinese and Japanese ones.
        """
        text = ""
        for piece in self._pieces:
            if isinstance(piece, Sentence):
                self._last = translation.text
                return text + place_tags(piece, translation, self._document.escape)
            if isinstance(piece, Gap):
                text += separator(self._last) if piece.text in ("", " ") else piece.text
            else:
                text += piece
        raise AssertionError("there is a translation for each sentence")

    def rest(self) -> str:
        """Return what is after the last sentence."""
        return "".join(piece for piece in self._pieces if isinstance(piece, str))
