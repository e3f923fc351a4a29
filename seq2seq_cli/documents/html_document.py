"""HTML: the text of every block is a paragraph; markup comes out as it went in.

Python's own parser says where markup is; the rest is a matter of slices of the source, so that
nothing is written anew but the sentences.
"""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from typing import Literal, NamedTuple

from seq2seq_cli.documents.document import Document, Piece, escape_html
from seq2seq_cli.documents.paragraphs import (
    Mark,
    SentenceSplitter,
    has_letters,
    paragraph_pieces,
)
from seq2seq_cli.text.sentences import sentence_spans

# Elements in running text; all others begin and end paragraphs (HTML Living Standard, 3.2.5).
_INLINE = frozenset(
    re.findall(
        r"\w+",
        "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark "
        "meter nobr output q rp rt ruby s samp small span strike strong sub sup time tt u var wbr",
    )
)
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "wbr"}
_NO_TEXT = {"script", "style", "template"}
_OBJECTS = {"audio", "canvas", "iframe", "math", "object", "select", "svg", "textarea", "video"}
_KEPT = {"code", "kbd", "samp", "tt", "var"}  # words of programs, unless translate=yes
_IN_TEXT = _INLINE | _OBJECTS | {"!"}
_BLANKS = " \t\n\r\f"
_SPACE = re.compile(f"[{_BLANKS}]+")


class _Event(NamedTuple):
    """Text or markup that begins at an offset of the source, up to where the next one begins."""

    offset: int
    kind: Literal["text", "open", "close", "other"]
    name: str = ""
    is_kept: bool | None = None  # what the element itself says about its content


class _Parser(HTMLParser):
    """Collects events with their offsets."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=False)
        self.events: list[_Event] = []
        self._line_starts = [0]
        for line in source.split("\n"):
            self._line_starts.append(self._line_starts[-1] + len(line) + 1)
        self._depth_of_pre = 0
        # What is after the last > has no markup; to look for some takes time in Python's parser.
        end = source.rfind(">") + 1
        self.feed(source[:end])
        self.close()
        if source[end:]:
            self.events.append(_Event(end, "text"))

    def _add(
        self,
        kind: Literal["text", "open", "close", "other"],
        name: str = "",
        is_kept: bool | None = None,
        *,
        after: int = 0,
    ) -> None:
        line, column = self.getpos()
        offset = self._line_starts[line - 1] + column + after
        self.events.append(_Event(offset, kind, name, is_kept))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add("other" if tag in _VOID else "open", tag, _is_kept(tag, dict(attrs)))
        self._depth_of_pre += tag == "pre"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)  # outside of SVG and MathML, <b/> is <b>

    def handle_endtag(self, tag: str) -> None:
        self._add("close", tag)
        self._depth_of_pre = max(0, self._depth_of_pre - (tag == "pre"))

    def handle_data(self, data: str) -> None:
        if not self._depth_of_pre:
            self._add("text")
            return
        position = 0
        for part in re.split("(\n)", data):  # a line of preformatted text is a paragraph
            if part:
                self._add("other" if part == "\n" else "text", "\n", after=position)
            position += len(part)

    def handle_charref(self, name: str) -> None:
        self._add("text")

    def handle_entityref(self, name: str) -> None:
        self._add("text")

    def handle_comment(self, data: str) -> None:
        self._add("other", "!")

    def handle_decl(self, decl: str) -> None:
        self._add("other", "!doctype")

    def handle_pi(self, data: str) -> None:
        self._add("other", "?")

    def unknown_decl(self, data: str) -> None:
        self._add("other", "!")


def _is_kept(tag: str, attributes: dict[str, str | None]) -> bool | None:
    translate = (attributes.get("translate") or "").strip().lower()
    if translate == "no" or "notranslate" in (attributes.get("class") or "").split():
        return True
    if translate == "yes" or (translate == "" and "translate" in attributes):
        return False
    return True if tag in _KEPT | _NO_TEXT | _OBJECTS else None


@dataclass
class _Paragraph:
    """The running text of a block so far, and the markup in it."""

    start: int  # in the source
    text: str = ""
    marks: list[Mark] = field(default_factory=list)

    def add(self, raw: str) -> None:
        """Add text, in which all white space is as one space."""
        text = _SPACE.sub(" ", html.unescape(raw))
        objects = (mark.position for mark in self.marks[-1:] if mark.kind == "point")
        is_after_space = self.text.endswith(" ") and len(self.text) not in objects
        self.text += text.removeprefix(" ") if is_after_space else text

    def add_mark(self, event: _Event, raw: str) -> None:
        """Add the markup of one tag."""
        if event.kind in ("open", "close"):
            kind: Literal["open", "close"] = "open" if event.kind == "open" else "close"
            self.marks.append(Mark(len(self.text), raw, kind, event.name))
        else:
            self.marks.append(Mark(len(self.text), raw, "point"))

    def add_kept(self, event: _Event, raw: str) -> None:
        """Add a whole element that is kept; if it is words, the sentence needs them."""
        position = len(self.text)
        content = "" if event.name in _OBJECTS | {"sup"} else _text_of(raw)
        if len(sentence_spans(content)) == 1:
            self.add(content)
            position = len(self.text) - len(content)
            self.marks.append(Mark(position, raw, "replace", end=len(self.text)))
        else:
            self.marks.append(Mark(position, raw, "point"))

    def pieces(self, raw: str, splitter: SentenceSplitter) -> Iterator[Piece]:
        """Yield the pieces of the finished paragraph, whose source is `raw`."""
        if not has_letters(self.text):
            yield raw
            return
        leading = raw[: len(raw) - len(raw.lstrip(_BLANKS))]
        trailing = raw[len(raw.rstrip(_BLANKS)) :]
        text = self.text.rstrip(_BLANKS) if trailing else self.text
        offset = len(text) - len(text.lstrip(_BLANKS)) if leading else 0
        places = (
            m._replace(
                position=min(max(m.position - offset, 0), len(text) - offset), end=m.end - offset
            )
            for m in self.marks
        )
        yield leading
        yield from paragraph_pieces(text[offset:], splitter, list(places), escape_html)
        yield trailing


def read_html(source: str, splitter: SentenceSplitter) -> Document:
    """Take HTML, a page or a part of one, apart."""
    return Document(tuple(piece for piece in _pieces(source, splitter) if piece), escape_html)


def _pieces(source: str, splitter: SentenceSplitter) -> Iterator[Piece]:
    events = _Parser(source).events
    ends = [later.offset for _, later in pairwise(events)] + [len(source)]
    paragraph = _Paragraph(0)
    number = 0
    while number < len(events):
        event, last = events[number], number
        if event.kind == "open" and (event.is_kept or event.name == "sup"):
            last = _end_of_element(events, number)
            if not event.is_kept and has_letters(_text_of(source[event.offset : ends[last]])):
                last = number  # no footnote, no exponent
        raw = source[event.offset : ends[last]]
        if event.kind == "text":
            paragraph.add(raw)
        elif event.name in _IN_TEXT and last > number:
            paragraph.add_kept(event, raw)
        elif event.name in _IN_TEXT:
            paragraph.add_mark(event, raw)
        else:
            yield from paragraph.pieces(source[paragraph.start : event.offset], splitter)
            yield raw
            paragraph = _Paragraph(ends[last])
        number = last + 1
    yield from paragraph.pieces(source[paragraph.start :], splitter)


def _text_of(raw: str) -> str:
    return _SPACE.sub(" ", html.unescape(re.sub("<[^>]*>", "", raw))).strip()


def _end_of_element(events: Sequence[_Event], start: int) -> int:
    """Return the event that closes an element; the last one if nothing does."""
    depth = 0
    for number, event in enumerate(events[start:], start):
        if event.name == events[start].name:
            depth += (event.kind == "open") - (event.kind == "close")
            if depth == 0:
                return number
    return len(events) - 1
