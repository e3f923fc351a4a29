"""Documents: the sentences of a text, and everything between them."""

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_LINK = re.compile(r"\[|<a\s", re.IGNORECASE)
_LONG_NUMBER = re.compile("(?<=&#)[0-9]{9,}")  # Python refuses to convert 4,300 digits or more


class Span(NamedTuple):
    """Markup around a part of a sentence, which may be empty; a line break if it is white space."""

    start: int  # in the text of the sentence
    end: int
    before: str  # markup
    after: str = ""
    replaces: bool = False  # `before` includes the words, which are not translated
    depth: int = 0  # greater for a span inside another
    is_unpaired: bool = False  # half of an element that goes on in another paragraph

    @property
    def is_line_break(self) -> bool:
        return not self.before.strip() and not self.after

    @property
    def is_link(self) -> bool:
        return self.start < self.end and bool(self.after) and bool(_LINK.match(self.before))


class Sentence(NamedTuple):
    """Text without markup, and the markup inside it.

    Spans are in the order of their markup; they are nested or disjoint, an outer one comes first.
    """

    text: str
    spans: tuple[Span, ...] = ()

    @property
    def needs_alignment(self) -> bool:
        """True if placing its markup needs an alignment; line breaks do not."""
        return not all(span.is_line_break for span in self.spans)


class Gap(NamedTuple):
    """White space between two sentences of a paragraph."""

    text: str


Piece = str | Sentence | Gap  # a string is copied


def enclose(span: Span, inner: str, before: str, after: str) -> str:
    """Return text with markup around it; `before` and `after` are what it stands between."""
    return f"{span.before}{inner}{span.after}"


@dataclass(frozen=True)
class Document:
    """The pieces of a text in order, and how its format writes plain text and markup."""

    pieces: Sequence[Piece]
    escape: Callable[[str], str] = str
    enclose: Callable[[Span, str, str, str], str] = enclose
    emphasis_marks: str = ""  # characters that end emphasis only before a space or punctuation
    keeps_elements: bool = False  # also those whose words have no translation

    @property
    def sentences(self) -> list[Sentence]:
        return [piece for piece in self.pieces if isinstance(piece, Sentence)]

    def sentence_starts(self) -> list[int]:
        """Return the start of each sentence in a text without markup."""
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
    """Read text of HTML: replace character references."""
    return html.unescape(_LONG_NUMBER.sub(lambda digits: digits[0].lstrip("0")[:9], text))
