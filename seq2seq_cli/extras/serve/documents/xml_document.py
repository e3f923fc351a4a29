"""XML: elements split the text, or are markup in it, as DeepL's API has it."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from html.entities import html5
from typing import NamedTuple

from seq2seq_cli.extras.serve.documents.document import Document, escape_html
from seq2seq_cli.extras.serve.documents.html_document import (
    ATTRIBUTES,
    BLANKS,
    Event,
    pieces_of_events,
    translate_attribute,
)
from seq2seq_cli.extras.serve.documents.paragraphs import SentenceSplitter

_NAME = rf"(?:[^\W\d]|:)[^{BLANKS}/>]*+"
_ENTITY = r"&[^\W\d][\w.-]*+;"
_MARKUP_START = re.compile(rf"<(?:[!?]|/?(?:[^\W\d]|:))|{_ENTITY}")
_MARKUP = re.compile(
    r"<!--.*?(?:-->|\Z)|<!\[CDATA\[.*?(?:\]\]>|\Z)|<\?.*?(?:\?>|\Z)"
    r"|<!(?P<doctype>[^>\[]*+)(?:\[.*?\]\s*+)?>"
    rf"|<(?P<slash>/?)(?P<name>{_NAME}){ATTRIBUTES}|{_ENTITY}",
    re.DOTALL,
)


class XmlTags(NamedTuple):
    """What elements do, by name; DeepL's options."""

    splitting: Set[str] = frozenset()
    non_splitting: Set[str] = frozenset()
    ignored: Set[str] = frozenset()  # not translated
    detects_outline: bool = True  # all others split, unless an element around them has text


_DETECTED = XmlTags()


def read_xml(source: str, splitter: SentenceSplitter, tags: XmlTags = _DETECTED) -> Document:
    """Split XML, a document or a part of one."""
    events = list(_events(source, tags.ignored))
    pieces = pieces_of_events(source, list(_with_structure(source, events, tags)), splitter)
    return Document(pieces, escape_html, keeps_elements=True)


def _events(source: str, ignored: Set[str]) -> Iterator[Event]:
    """Yield text and markup in order; an unfinished tag is text."""
    position = 0
    while (start := _MARKUP_START.search(source, position)) and (
        match := _MARKUP.match(source, start.start())
    ):
        yield Event(position, match.start(), "text")
        yield _markup_event(match, ignored)
        position = match.end()
    yield Event(position, len(source), "text")


def _markup_event(match: re.Match[str], ignored: Set[str]) -> Event:
    (start, end), name = match.span(), match["name"]
    if match[0][1:] in html5:
        return Event(start, end, "text")
    if name is None:  # also an entity of the document
        return Event(start, end, "other", is_inline=match["doctype"] is None)
    if match["slash"]:
        return Event(start, end, "close", name)
    if match["attributes"].endswith("/"):
        return Event(start, end, "other", name)
    is_kept = name in ignored or translate_attribute(match["attributes"]) == "no"
    return Event(start, end, "open", name, is_kept)


def _with_structure(source: str, events: Sequence[Event], tags: XmlTags) -> Iterator[Event]:
    """Yield the events; elements that do not split are inline."""
    opened, num_opened = [-1], Counter[str]()  # numbers of events, -1 is the document
    parents: list[int] = []
    with_text: set[int] = set()
    for number, event in enumerate(events):
        if event.kind == "close" and num_opened[event.name]:
            last = ""
            while last != event.name:
                last = events[opened.pop()].name
                num_opened[last] -= 1
        parents.append(opened[-1])
        if event.kind == "open":
            num_opened[event.name] += 1
            opened.append(number)
        elif event.kind == "text" and source[event.start : event.end].strip():
            with_text.add(opened[-1])
    for number, (event, parent) in enumerate(zip(events, parents, strict=True)):
        if parent in with_text:
            with_text.add(number)
        is_inline = event.name not in tags.splitting and (
            event.name in tags.non_splitting or parent in with_text or not tags.detects_outline
        )
        yield event._replace(is_inline=is_inline) if event.name else event
