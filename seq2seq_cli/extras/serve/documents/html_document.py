"""HTML: the text of every block is a paragraph; markup is copied.

Tags are found as browsers find them; everything but the sentences is a slice of the source.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from seq2seq_cli.extras.serve.documents.document import Document, Piece, escape_html, unescape_html
from seq2seq_cli.extras.serve.documents.paragraphs import (
    Mark,
    SentenceSplitter,
    has_letters,
    paragraph_pieces,
)
from seq2seq_cli.text.sentences import sentence_spans


def _names(text: str) -> set[str]:
    return set(text.split())


# Elements in running text; all others begin and end paragraphs (HTML Living Standard, 3.2.5).
_INLINE = _names(
    "a abbr acronym area b bdi bdo big cite code data del dfn em embed font i img ins kbd label "
    "map mark meter nobr output progress q rp rt ruby s samp slot small span strike strong sub "
    "sup time tt u var wbr"
)
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "wbr"}
_RAW = {"iframe", "noembed", "noframes", "script", "style", "xmp"}  # no text is escaped in them
_WITHOUT_TAGS = _RAW | {"textarea", "title"}
_OBJECTS = _names("audio canvas iframe math object picture select svg textarea video")
_KEPT = {"code", "kbd", "samp", "template", "tt", "var"}  # no words to read, unless translate=yes
_IN_TEXT = _INLINE | _OBJECTS
# Only running text is in them, so that custom elements are a part of it; others may be blocks.
_OF_INLINE = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}
# The start tags that end an element without an end tag (HTML Living Standard, 13.1.2.4).
_GROUPS_OF_ROWS = {"tbody", "tfoot", "thead"}
_ROWS = {"tr", *_GROUPS_OF_ROWS}
_CELLS = {"td", "th", *_ROWS}
_BLOCKS = _names(
    "address article aside blockquote center dd details dialog dir div dl dt fieldset figcaption "
    "figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr li main menu nav ol p pre search "
    "section summary table ul xmp"
)
_ENDED_BY = {
    **{"p": _BLOCKS | _CELLS, "li": {"li"}, "dt": {"dd", "dt"}, "dd": {"dd", "dt"}},
    **{"td": _CELLS, "th": _CELLS, "tr": _ROWS, "option": {"option", "optgroup"}},
    **dict.fromkeys(_GROUPS_OF_ROWS, _GROUPS_OF_ROWS),
}
BLANKS = " \t\n\r\f"
_SPACE = re.compile(f"[{BLANKS}]+")

# Markup as the standard's tokenizer has it (HTML Living Standard, 13.2.5). No expression goes back
# over what it has matched, so that time grows with the text.
_NAME = rf"[^{BLANKS}/>][^{BLANKS}/>=]*+"
_VALUE = rf"\"[^\"]*+\"|'[^']*+'|[^{BLANKS}\"'>][^{BLANKS}>]*+"
_ATTRIBUTE = re.compile(rf"({_NAME})(?:[{BLANKS}]*+=[{BLANKS}]*+({_VALUE})?+)?+")
ATTRIBUTES = (
    rf"(?P<attributes>(?:[{BLANKS}/]*+{_NAME}(?:[{BLANKS}]*+=[{BLANKS}]*+(?:{_VALUE})?+)?+)*+"
    rf"[{BLANKS}/]*+)>"
)
_MARKUP = re.compile(
    r"<!--(?:-?>|.*?(?:--!?>|\Z))"
    r"|<(?:[!?]|/(?![A-Za-z]))[^>]*+>"
    rf"|<(?P<slash>/?)(?P<name>[A-Za-z][^{BLANKS}/>]*+){ATTRIBUTES}",
    re.DOTALL,
)
_MARKUP_START = re.compile("<[A-Za-z!?/]")


class Event(NamedTuple):
    """Text or markup, by its position in the source."""

    start: int
    end: int
    kind: Literal["text", "open", "close", "other"]
    name: str = ""
    is_kept: bool = False  # not translated, as the element itself says
    is_inline: bool = False  # part of running text


def _events(source: str) -> Iterator[Event]:
    """Yield text and markup in order; an unfinished tag is text."""
    position = depth_of_pre = 0
    while start := _MARKUP_START.search(source, position):
        match = _MARKUP.match(source, start.start())
        if match is None:
            break
        yield from _texts(source, position, match.start(), by_line=depth_of_pre > 0)
        yield (event := _markup_event(match))
        position = match.end()
        if event.name == "pre":
            depth_of_pre = max(0, depth_of_pre + (1 if event.kind == "open" else -1))
        if event.kind == "open" and event.name in _WITHOUT_TAGS:
            end = re.compile(f"</{event.name}[{BLANKS}/>]", re.IGNORECASE).search(source, position)
            content_end = end.start() if end else len(source)
            yield Event(position, content_end, "text")
            position = content_end
    yield from _texts(source, position, len(source), by_line=depth_of_pre > 0)


def _texts(source: str, start: int, end: int, *, by_line: bool) -> Iterator[Event]:
    """Yield text; a line of preformatted text is a paragraph."""
    while by_line and (line_end := source.find("\n", start, end)) >= 0:
        yield Event(start, line_end, "text")
        yield Event(line_end, line_end + 1, "other")
        start = line_end + 1
    yield Event(start, end, "text")


def _markup_event(match: re.Match[str]) -> Event:
    start, end = match.span()
    if match["name"] is None:
        is_doctype = match[0][:9].lower() == "<!doctype"
        return Event(start, end, "other", is_inline=not is_doctype)
    name = match["name"].lower()
    if match["slash"]:
        return Event(start, end, "close", name, is_inline=name in _IN_TEXT)
    translate = translate_attribute(match["attributes"])
    is_kept = name in _KEPT | _OBJECTS and translate not in ("", "yes")
    is_kept |= name in _RAW or translate == "no"
    # Only elements of SVG and MathML end with /> (HTML Living Standard, 13.1.2.1).
    is_empty = name in _VOID or (name in ("math", "svg") and match["attributes"].endswith("/"))
    kind: Literal["other", "open"] = "other" if is_empty else "open"
    return Event(start, end, kind, name, is_kept, name in _IN_TEXT)


def _with_omitted_ends(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events, with an empty one for each end tag that is left out.

    Inline elements get none, as they may overlap others.
    """
    opened: list[str] = []
    num_opened = Counter[str]()
    for event in events:
        if "-" in event.name and opened and opened[-1] in _OF_INLINE:
            event = event._replace(is_inline=True)
        is_end = event.kind == "close" and num_opened[event.name] > 0
        ends = _ENDED_BY if event.kind != "close" else {}
        while opened and (
            opened[-1] != event.name if is_end else event.name in ends.get(opened[-1], ())
        ):
            name = opened.pop()
            num_opened[name] -= 1
            yield Event(event.start, event.start, "close", name, is_inline=name in _IN_TEXT)
        if is_end:
            num_opened[opened.pop()] -= 1
        elif event.kind == "open" and (event.name in _OBJECTS or not event.is_inline):
            opened.append(event.name)
            num_opened[event.name] += 1
        yield event


def translate_attribute(attributes: str) -> str:
    """Return the value of `translate`; "no" also for the class notranslate, "none" if missing."""
    values: dict[str, str] = {}
    for attribute in _ATTRIBUTE.finditer(attributes):
        value = (attribute[2] or "").strip("\"'")
        values.setdefault(attribute[1].lower(), unescape_html(value))
    if "notranslate" in values.get("class", "").split():
        return "no"
    return values.get("translate", "none").strip().lower()


@dataclass
class _Paragraph:
    """The running text of a block so far, and the markup in it."""

    start: int  # in the source
    parts: list[str] = field(default_factory=list)
    length: int = 0  # of the text
    marks: list[Mark] = field(default_factory=list)
    last_object: int = -1  # position; space around it is kept

    def add(self, text: str) -> None:
        """Add text; white space becomes one space."""
        text = _SPACE.sub(" ", text)
        if self.parts and self.parts[-1].endswith(" ") and self.length != self.last_object:
            text = text.removeprefix(" ")
        if text:
            self.parts.append(text)
            self.length += len(text)

    def add_markup(self, event: Event, raw: str, kept: str | None) -> None:
        """Add a tag, or a whole element that is kept; the sentence includes its words `kept`."""
        if kept and len(sentence_spans(kept)) == 1:
            self.add(kept)
            position = self.length - len(kept)
            self.marks.append(Mark(position, raw, "replace", end=self.length))
        elif kept is None and event.kind == "open":
            closing = f"</{event.name}>"
            self.marks.append(Mark(self.length, raw, "open", event.name, closing=closing))
        elif kept is None and event.kind == "close":
            last = self.marks[-1] if self.marks else None
            if last and (last.kind, last.position) == ("open", self.length):  # an icon, often
                self.last_object = self.length
            self.marks.append(Mark(self.length, raw, "close", event.name))
        else:
            self.marks.append(Mark(self.length, raw, "point"))
            self.last_object = self.length

    def pieces(self, raw: str, splitter: SentenceSplitter) -> Iterator[Piece]:
        """Yield the pieces of the finished paragraph, whose source is `raw`."""
        text = "".join(self.parts)
        if not has_letters(text):
            yield raw
            return
        leading = raw[: len(raw) - len(raw.lstrip(BLANKS))]
        trailing = raw[len(raw.rstrip(BLANKS)) :]
        text = text.removesuffix(" ") if trailing else text
        offset = 1 if leading else 0
        text = text[offset:]
        marks = [
            m._replace(position=min(max(m.position - offset, 0), len(text)), end=m.end - offset)
            for m in self.marks
        ]
        yield leading
        yield from paragraph_pieces(text, splitter, marks, escape_html)
        yield trailing


def read_html(source: str, splitter: SentenceSplitter) -> Document:
    """Split HTML, a page or a part of one."""
    events = list(_with_omitted_ends(_events(source)))
    return Document(pieces_of_events(source, events, splitter), escape_html)


def pieces_of_events(
    source: str, events: Sequence[Event], splitter: SentenceSplitter
) -> list[Piece]:
    """Return the pieces of a text with markup; all text between blocks is a paragraph."""
    opened: dict[str, list[int]] = {}
    closing: dict[int, int] = {}  # numbers of events: the closing tag by its opening tag
    num_texts = [0]  # before each event
    for number, event in enumerate(events):
        if event.kind == "open":
            opened.setdefault(event.name, []).append(number)
        elif event.kind == "close" and opened.get(event.name):
            closing[opened[event.name].pop()] = number
        text = source[event.start : event.end] if event.kind == "text" else ""
        num_texts.append(num_texts[-1] + has_letters(unescape_html(text)))
    pieces: list[Piece] = []
    paragraph = _Paragraph(0)
    number = 0
    while number < len(events):
        event, last = events[number], number
        if event.is_kept and event.kind == "open":
            last = closing.get(number, len(events) - 1)
        elif event.name == "sup" and event.kind == "open":
            last = closing.get(number, number)
            if num_texts[last] > num_texts[number]:
                last = number  # neither a footnote nor an exponent
        raw = source[event.start : events[last].end]
        if event.kind == "text":
            paragraph.add(unescape_html(raw))
        elif event.is_inline:
            kept = None if last == number else ""
            if kept == "" and event.name not in _OBJECTS | {"sup"}:
                texts = (e for e in events[number : last + 1] if e.kind == "text")
                content = unescape_html("".join(source[e.start : e.end] for e in texts))
                kept = _SPACE.sub(" ", content).strip()
            paragraph.add_markup(event, raw, kept)
        else:
            pieces += [*paragraph.pieces(source[paragraph.start : event.start], splitter), raw]
            paragraph = _Paragraph(events[last].end)
        number = last + 1
    return [*pieces, *paragraph.pieces(source[paragraph.start :], splitter)]
