"""Documents: the sentences of a text, and everything that stands between them."""

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """Markup around a part of a sentence, or at one place of it if the part is empty.

    Markup of white space is a line break.
    """

    start: int  # in the text of the sentence
    end: int
    before: str  # markup
    after: str = ""
    replaces: bool = False  # `before` stands in place of the words, which are not translated


class Sentence(NamedTuple):
    """What is translated at once: text without markup, and the markup inside it.

    Spans are ordered as their markup is; one that contains another comes first, and none overlap
    otherwise.
    """

    text: str
    spans: tuple[Span, ...] = ()

    @property
    def needs_alignment(self) -> bool:
        """Whether its markup cannot be placed without one; line breaks can."""
        return any(span.before.strip() or span.after for span in self.spans)


class Gap(NamedTuple):
    """White space between two sentences of a paragraph."""

    text: str


_LONG_NUMBER = re.compile("(?<=&#)[0-9]{9,}")  # Python refuses to convert 4,300 digits

Piece = str | Sentence | Gap  # a string comes out as it is


class SentenceTranslation(NamedTuple):
    """A translation of a sentence; the alignment (source word, target word) places its markup."""

    text: str
    alignment: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class Document:
    """The pieces of a text in order, and how its format writes plain text."""

    pieces: tuple[Piece, ...]
    escape: Callable[[str], str] = str

    @property
    def sentences(self) -> list[Sentence]:
        return [piece for piece in self.pieces if isinstance(piece, Sentence)]

    def sentence_starts(self) -> list[int]:
        """Return where in the text each sentence begins, if the text has no markup."""
        starts, position = [], 0
        for piece in self.pieces:
            if isinstance(piece, Sentence):
                starts.append(position)
            position += len(piece if isinstance(piece, str) else piece.text)
        return starts


def escape_html(text: str) -> str:
    """Write text in HTML, outside of attributes."""
    return html.escape(text, quote=False)


def unescape_html(text: str) -> str:
    """Read text of HTML: characters by name and number."""
    return html.unescape(_LONG_NUMBER.sub(lambda digits: digits[0].lstrip("0")[:9], text))
