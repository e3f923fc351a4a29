"""Markdown: the text of its blocks is translated; its markup comes out as it went in."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from seq2seq_cli.documents.document import Document, Piece
from seq2seq_cli.documents.paragraphs import Mark, SentenceSplitter, has_letters, paragraph_pieces

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n.*?\n---[ \t]*(?:\n|\Z)", re.DOTALL)
_HARD_BREAK = re.compile(r"(?: {2,}|\\)$")
_NAME = re.compile(r"</?\s*([A-Za-z][\w-]*)")
_TARGET = r"\]\([^()\s]*(?:\([^()]*\)[^()\s]*)*(?:\s+(?:\"[^\"]*\"|'[^']*'))?\)|\]\[[^\]\n]*\]"
_INLINE = re.compile(
    r"(?P<escape>\\[!-/:-@\[-`{-~])"
    r"|(?P<code>(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))"
    rf"|(?P<object>!\[[^\]\n]*(?:{_TARGET})|\[\^[^\]\s]+\](?::\s+)?|^\[[ xX]\](?=\s)"
    r"|<[A-Za-z][A-Za-z0-9+.-]*:[^<>\s]*>|<[^<>\s@]+@[^<>\s]+>|https?://[^\s<>]*[^\s<>.,;:!?)\]'\"])"
    r"|(?P<html></?[A-Za-z][^<>]*>)"
    rf"|(?P<target>{_TARGET})"
    r"|(?P<bracket>\[)"
    r"|(?P<emphasis>\*{1,3}|(?<!\w)_{1,3}(?=\S)|(?<=\S)_{1,3}(?!\w)|~~)"
)
_SPECIAL = re.compile(r"[\\`*\[\]<]|(?<!\w)_|_(?!\w)")
_BLOCK = re.compile(r"^(\d+(?=[.)]\s)|(?=[-+#>]\s))")


class _Slice(NamedTuple):
    """Text of a paragraph between two offsets of the source."""

    start: int
    end: int


def read_markdown(source: str, splitter: SentenceSplitter) -> Document:
    """Take Markdown (CommonMark with tables) apart; a paragraph becomes one line."""
    return Document(tuple(piece for piece in _pieces(source, splitter) if piece != ""), _escape)


def _escape(text: str) -> str:
    """Write text so that no character of it is markup."""
    text = _SPECIAL.sub(r"\\\g<0>", text)
    return _BLOCK.sub(r"\1\\", text)


def _pieces(source: str, splitter: SentenceSplitter) -> Iterator[Piece]:
    front = _FRONT_MATTER.match(source)
    position = front.end() if front else 0
    body = source[position:]
    yield source[:position]
    starts, offset = [], position
    for line in body.splitlines(keepends=True):
        starts.append(offset)
        offset += len(line)
    for token in MarkdownIt("commonmark").enable("table").parse(body):
        for slices in _paragraphs(token, source, [*starts, len(source)], position):
            yield source[position : slices[0].start]
            position = slices[-1].end
            yield from _paragraph_pieces(source, slices, splitter)
    yield source[position:]


def _paragraphs(
    token: Token, source: str, starts: Sequence[int], position: int
) -> Iterator[list[_Slice]]:
    """Yield the lines of a token's text, those between two hard breaks together.

    Nothing is yielded where they are not in the source as the parser has them.
    """
    if token.type != "inline" or token.map is None:
        return
    found: list[list[_Slice]] = [[]]
    for number, line in enumerate(token.content.split("\n"), token.map[0]):
        if number + 1 >= len(starts):
            return
        text = line.strip()
        start = source.find(text, max(position, starts[number]), starts[number + 1])
        if start < 0:
            return
        position = start + len(text.removesuffix("\\"))
        found[-1].append(_Slice(start, position))
        if _HARD_BREAK.search(line):
            found.append([])
    yield from filter(None, found)


def _paragraph_pieces(
    source: str, slices: Sequence[_Slice], splitter: SentenceSplitter
) -> Iterator[Piece]:
    raw = " ".join(source[start:end] for start, end in slices)
    text, marks = _marked(raw)
    if has_letters(text):
        yield from paragraph_pieces(text, splitter, marks, _escape)
    else:
        yield source[slices[0].start : slices[-1].end]


def _marked(raw: str) -> tuple[str, list[Mark]]:
    """Return the text of a paragraph without markup, and the markup."""
    text, marks, position = "", list[Mark](), 0
    opened: list[str] = []
    for match in _INLINE.finditer(raw):
        text += raw[position : match.start()]
        position = match.end()
        kind, markup, place = match.lastgroup, match[0], len(text)
        kind = "code" if match["code"] else kind
        if kind == "escape":
            text += markup[1:]
        elif kind == "code":
            text += markup.strip("`").strip()
            marks.append(Mark(place, markup, "replace", end=len(text)))
        elif kind == "object":
            marks.append(Mark(place, markup, "point"))
        elif kind == "html":
            marks.append(_html_mark(place, markup))
        elif kind == "bracket" and _closes(raw, match.end()):
            marks.append(Mark(place, markup, "open", "link"))
        elif kind == "target" and any(mark.name == "link" for mark in marks):
            marks.append(Mark(place, markup, "close", "link"))
        elif kind == "emphasis" and _is_emphasis(raw, match, opened):
            is_end = bool(opened) and opened[-1] == markup
            opened = opened[:-1] if is_end else [*opened, markup]
            marks.append(Mark(place, markup, "close" if is_end else "open", markup))
        else:
            text += markup
    return text + raw[position:], marks


def _closes(raw: str, position: int) -> bool:
    """Whether the bracket before this position begins a link."""
    target = re.compile(_TARGET).search(raw, position)
    return target is not None and "[" not in raw[position : target.start()].replace("![", "")


def _is_emphasis(raw: str, match: re.Match[str], opened: Sequence[str]) -> bool:
    before, after = raw[: match.start()][-1:], raw[match.end() :][:1]
    if opened and opened[-1] == match[0]:
        return bool(before.strip())
    return bool(after.strip()) and raw.find(match[0], match.end()) > 0


def _html_mark(place: int, markup: str) -> Mark:
    name = _NAME.match(markup)
    assert name is not None, "the pattern of markup has one"
    if markup.endswith("/>") or name[1].lower() in ("br", "img", "wbr", "hr", "input"):
        return Mark(place, markup, "point")
    return Mark(place, markup, "close" if markup.startswith("</") else "open", name[1])
