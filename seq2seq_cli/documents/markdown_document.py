"""Markdown: the text of its blocks is translated; its markup comes out as it went in."""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.common.utils import normalizeReference
from markdown_it.token import Token

from seq2seq_cli.documents.document import Document, Piece
from seq2seq_cli.documents.paragraphs import Mark, SentenceSplitter, has_letters, paragraph_pieces

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n.*?\n---[ \t]*(?:\n|\Z)", re.DOTALL)
_HARD_BREAK = re.compile(r"(?: {2,}|\\)$")
_NAME = re.compile(r"</?\s*([A-Za-z][\w-]*)")
_TOKEN = re.compile(
    r"(?P<escape>\\[!-/:-@\[-`{-~])"
    r"|(?P<ticks>`+)"
    r"|(?P<object>\[\^[^\]\s]+\](?::\s+)?|^\[[ xX]\](?=\s)"
    r"|<[A-Za-z][A-Za-z0-9+.-]*:[^<>\s]*>|<[^<>\s@]+@[^<>\s]+>|https?://[^\s<>]*[^\s<>.,;:!?)\]'\"])"
    r"|(?P<html></?[A-Za-z][^<>]*>)"
    r"|(?P<open>!?\[)"
    r"|(?P<close>\])"
    r"|(?P<emphasis>\*{1,3}|(?<!\w)_{1,3}(?=\S)|(?<=\S)_{1,3}(?!\w)|~~)"
)
_TARGET = re.compile(
    r"\([^()\s]*(?:\([^()]*\)[^()\s]*)*(?:\s+(?:\"[^\"]*\"|'[^']*'))?\)|\[[^\[\]\n]*\]"
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
    references: dict[str, Any] = {}
    for token in MarkdownIt("commonmark").enable("table").parse(body, references):
        for slices in _paragraphs(token, source, [*starts, len(source)], position):
            yield source[position : slices[0].start]
            position = slices[-1].end
            labels = references.get("references", {})
            yield from _paragraph_pieces(source, slices, splitter, labels)
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
    source: str, slices: Sequence[_Slice], splitter: SentenceSplitter, labels: Collection[str]
) -> Iterator[Piece]:
    raw = " ".join(source[start:end] for start, end in slices)
    text, marks = _marked(raw, _tokens(raw, labels))
    if has_letters(text):
        yield from paragraph_pieces(text, splitter, marks, _escape)
    else:
        yield source[slices[0].start : slices[-1].end]


class _Inline(NamedTuple):
    """Markup in a paragraph; that of a link begins in one place and ends in another."""

    start: int
    end: int
    kind: str
    markup: str = ""


def _tokens(raw: str, labels: Collection[str]) -> list[_Inline]:
    """Return the markup of a paragraph; `labels` are those of the document's references."""
    runs: dict[int, list[int]] = {}
    for run in re.finditer("`+", raw):
        runs.setdefault(len(run[0]), []).append(run.start())
    tokens: list[_Inline] = []
    brackets: list[int] = []  # the numbers of tokens that open one
    position = 0
    while match := _TOKEN.search(raw, position):
        kind, position = str(match.lastgroup), match.end()
        if kind == "ticks":
            same = runs[len(match[0])]
            closing = bisect_left(same, position)
            kind = "code" if closing < len(same) else "text"
            position = same[closing] + len(match[0]) if kind == "code" else position
        elif kind == "open":
            brackets.append(len(tokens))
        elif kind == "close" and brackets:
            position = _close_bracket(raw, match, tokens, brackets.pop(), labels)
            continue
        tokens.append(_Inline(match.start(), position, kind, raw[match.start() : position]))
    return tokens


def _close_bracket(
    raw: str, match: re.Match[str], tokens: list[_Inline], opening: int, labels: Collection[str]
) -> int:
    """Add what a closing bracket makes of the tokens since its opening one; return its end."""
    first = tokens[opening]
    label = raw[first.end : match.start()]
    end, markup = match.end(), "]"
    if target := _TARGET.match(raw, match.end()):
        end = target.end()
        markup = f"][{label}]" if target[0] == "[]" else f"]{target[0]}"
    elif normalizeReference(label) in labels:
        markup = f"][{label}]"  # the label stays, whatever the translation of the text is
    else:
        return end
    if first.kind == "open" and first.markup == "![":
        tokens[opening:] = [_Inline(first.start, end, "object", raw[first.start : end])]
    else:
        tokens[opening] = first._replace(kind="link")
        tokens.append(_Inline(match.start(), end, "target", markup))
    return end


def _marked(raw: str, tokens: Sequence[_Inline]) -> tuple[str, list[Mark]]:
    """Return the text of a paragraph without markup, and the markup."""
    text, marks, position = "", list[Mark](), 0
    opened: list[str] = []  # emphasis
    for start, end, kind, markup in tokens:
        text += raw[position:start]
        position = end
        place = len(text)
        if kind == "escape":
            text += markup[1:]
        elif kind == "code":
            text += markup.strip("`").strip()
            marks.append(Mark(place, markup, "replace", end=len(text)))
        elif kind == "object":
            marks.append(Mark(place, markup, "point"))
        elif kind == "html":
            marks.append(_html_mark(place, markup))
        elif kind == "link":
            marks.append(Mark(place, markup, "open", "link"))
        elif kind == "target":
            marks.append(Mark(place, markup, "close", "link"))
        elif kind == "emphasis" and _is_emphasis(raw, start, end, opened):
            is_end = opened[-1:] == [markup]
            opened = opened[:-1] if is_end else [*opened, markup]
            marks.append(Mark(place, markup, "close" if is_end else "open", markup))
        else:
            text += markup
    return text + raw[position:], marks


def _is_emphasis(raw: str, start: int, end: int, opened: Sequence[str]) -> bool:
    markup = raw[start:end]
    if opened and opened[-1] == markup:
        return bool(raw[:start][-1:].strip())
    return bool(raw[end:][:1].strip()) and raw.find(markup, end) > 0


def _html_mark(place: int, markup: str) -> Mark:
    name = _NAME.match(markup)
    assert name is not None, "the pattern of markup has one"
    if markup.endswith("/>") or name[1].lower() in ("br", "img", "wbr", "hr", "input"):
        return Mark(place, markup, "point")
    return Mark(place, markup, "close" if markup.startswith("</") else "open", name[1])
