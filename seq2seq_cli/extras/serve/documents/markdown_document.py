"""Markdown: the text of blocks is translated; markup is copied."""

import re
import unicodedata
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.common.utils import normalizeReference, unescapeAll
from markdown_it.token import Token

from seq2seq_cli.extras.serve.documents.document import Document, Piece, Span, enclose
from seq2seq_cli.extras.serve.documents.paragraphs import (
    Mark,
    SentenceSplitter,
    has_letters,
    paragraph_pieces,
)
from seq2seq_cli.text.words import is_spaceless

_FRONT_MATTER = re.compile(  # in YAML or TOML
    r"\ufeff?(?:(?:---[ \t]*\r?\n(?:.*?\n)??(?:---|\.\.\.)|\+\+\+[ \t]*\r?\n(?:.*?\n)??\+\+\+)"
    r"[ \t]*(?:\r?\n|\Z))?",
    re.DOTALL,
)
_ALERT = re.compile(r"\[![A-Za-z]+\]\s*")  # [!NOTE], the first line of a note of GitHub
_LINE_BREAK = re.compile(r"<br(?=[\s/>])", re.IGNORECASE)
_LINE_END = re.compile(r"\r\n?|\n")  # as CommonMark has them, and no others
# In scripts without spaces, and Korean, text goes on directly after an address.
_ADDRESS = r"https?://(?:(?!\]\()[!-;=?-~\u00c0-\u0dff\u0f00-\u0fff\u10a0-\u10ff\u1200-\u137f\u1e00-\u1fff])+(?<![.,;:!?)\]'\"*_~،؛؟])"
_TOKEN = re.compile(
    r"(?P<hard_break>(?:(?<! ) {2,}+|\\)\n)"
    r"|(?P<soft_break> ?\n)"
    r"|(?P<ticks>`+)"
    r"|(?P<object>\[\^[^\[\]\s]+\](?::\s+)?|^\[[ xX]\](?=\s)|^(?:&(?:nb|en|em)sp;)+"
    r"|<[A-Za-z][A-Za-z0-9+.-]*:[^<>\s]*>|<[^<>\s@]+@[^<>\s]+>"
    rf"|{_ADDRESS})"
    r"|(?P<escape>\\[!-/:-@\[-`{-~]|&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][0-9A-Za-z]{1,31});)"
    r"|(?P<html></?[A-Za-z][^<>]*>)"
    r"|(?P<comment><!--)"
    r"|(?P<open>!?\[)"
    r"|(?P<close>\])"
    r"|(?P<blank>_{4,}|\*{4,}|~{3,}|(?<!\S)_{2,3}(?!\S))"  # to fill in, or a hidden password
    r"|(?P<emphasis>\*{1,3}|(?<!\w)_{1,3}(?=\S)|(?<=\S)_{1,3}(?!\w)|~~)"
)
_PART = r"(?:\\[!-~]|[^()\s])*+"  # of an address, between parentheses
_TARGET = re.compile(
    rf"\(\s*+(?:<(?:\\.|[^<>\\\n])*+>"
    rf"|(?!<){_PART}(?:\({_PART}(?:\({_PART}\){_PART})*+\){_PART})*+)"
    r"(?:\s+(?:\"(?:\\.|[^\"\\])*+\"|'(?:\\.|[^'\\])*+'|\((?:\\.|[^()\\])*+\)))?\s*\)"
    r"|\[[^\[\]\n]*\]",
    re.DOTALL,
)
_SPECIAL = re.compile(
    r"[\\`*|\[\]<]|(?<![^\W_])_|_(?![^\W_])|~(?=~)|(?<=~)~"
    r"|&(?=#?[0-9A-Za-z]{1,31};)|(?<!\S)#(?=#*\s*$)"  # which would end a heading
)
_BLOCK = re.compile(r"^(\d+(?=[.)]\s)|(?=[-+]\s|>|#{1,6}\s|[-=]{2,}\s*$))")
_DELIMITER = re.compile(r"\*{1,3}|_{1,3}|~~")
_ELEMENTS = {"*": ["em"], "**": ["strong"], "***": ["em", "strong"], "~~": ["del"]}
_LONGEST_LABEL = 999  # characters, in CommonMark
_Delimiters = defaultdict[int, list[str]]  # by the number of a token


class _Slice(NamedTuple):
    """Text of a line of a paragraph between two offsets of the source."""

    start: int
    end: int
    text: str  # with what makes its end a hard break


def read_markdown(source: str, splitter: SentenceSplitter) -> Document:
    """Split Markdown (CommonMark with tables); a paragraph becomes one line."""
    front = _FRONT_MATTER.match(source)
    assert front is not None
    position = front.end()
    line_ends = _LINE_END.finditer(source, position)
    starts = [position, *(end.end() for end in line_ends), len(source)]
    plain = source.replace("\0", "\ufffd")  # as the parser does
    references: dict[str, Any] = {}
    blocks = MarkdownIt("commonmark").enable("table").disable("inline")
    pieces: list[Piece] = [source[:position]]
    for before, token in pairwise(blocks.parse(source[position:], references)):
        content = token.content
        if before.type in ("th_open", "td_open"):
            content = content.replace("|", r"\|")  # as it is in a cell, which the parser undoes
        slices = _slices(token, content, plain, starts, position)
        if slices and _ALERT.fullmatch(slices[0].text):
            slices = slices[1:]
        if not slices:
            continue
        breaks = [source[a.end - a.text.endswith("\\") : b.start] for a, b in pairwise(slices)]
        raw = "\n".join(line.text for line in slices)
        text, marks = _marked(raw, _tokens(raw, references.get("references", {})), breaks)
        pieces.append(source[position : slices[0].start])
        position = slices[-1].end
        if has_letters(text):
            pieces += paragraph_pieces(text, splitter, marks, _escape)
        else:
            pieces.append(source[slices[0].start : position])
    pieces.append(source[position:])
    return Document(pieces, _escape, _enclose, emphasis_marks="*_~")


def _escape(text: str) -> str:
    """Write text so that no character of it is markup."""
    return _BLOCK.sub(r"\1\\", _SPECIAL.sub(r"\\\g<0>", text))


def _enclose(span: Span, inner: str, before: str, after: str) -> str:
    """Write markup around text; emphasis in HTML where its delimiters would be text."""
    if not _DELIMITER.fullmatch(span.before):
        return enclose(span, inner, before, after)
    for delimiter in (span.before, span.before.replace("_", "*")):
        touching = re.compile(rf"(?<!\\)\{delimiter[0]}$")
        touches = (
            touching.search(before) or touching.search(inner) or inner.startswith(delimiter[0])
        )
        opens = _flanks(delimiter, inner[:1], before[-1:])
        if opens and _flanks(delimiter, inner[-1:], after[:1]) and not touches:
            return f"{delimiter}{inner}{delimiter}"
    names = _ELEMENTS[span.before.replace("_", "*")]
    opening = "".join(f"<{name}>" for name in names)
    return opening + inner + "".join(f"</{name}>" for name in reversed(names))


def _flanks(delimiter: str, inside: str, outside: str) -> bool:
    """Return True if emphasis can begin or end between these characters (CommonMark 6.2)."""
    is_in_word = delimiter[0] != "_" and _is_in_word(inside)
    return bool(inside.strip()) and (is_in_word or not _is_in_word(outside))


def _is_in_word(character: str) -> bool:
    """Return True if a character is no white space, punctuation or symbol."""
    return bool(character.strip()) and unicodedata.category(character)[0] not in "PSZ"


def _slices(
    token: Token, content: str, source: str, starts: Sequence[int], position: int
) -> list[_Slice]:
    """Return the lines of a token's content, none where they are not in the source."""
    if token.type != "inline" or token.map is None:
        return []
    slices: list[_Slice] = []
    for number, line in enumerate(content.split("\n"), token.map[0]):
        text = line.strip()
        start = source.find(text, max(position, starts[number]), starts[number + 1])
        if start < 0:
            return []
        position = start + len(text)
        slices.append(_Slice(start, position, line.lstrip()))
    return slices


class _Inline(NamedTuple):
    """Markup in a paragraph; a link has two, its bracket and its target."""

    start: int
    end: int
    kind: str
    markup: str = ""


def _tokens(raw: str, labels: Collection[str]) -> list[_Inline]:
    """Return the markup of a paragraph; `labels` are the labels of references."""
    runs: dict[int, list[int]] = {}
    for run in re.finditer("`+", raw):
        runs.setdefault(len(run[0]), []).append(run.start())
    tokens: list[_Inline] = []
    brackets: list[int] = []  # the numbers of tokens that open one
    last_comment = raw.rfind("-->")
    position = 0
    while match := _TOKEN.search(raw, position):
        kind, position = str(match.lastgroup), match.end()
        if kind == "ticks":
            same = runs.get(len(match[0]), [])  # none if the first one is escaped
            closing = bisect_left(same, position)
            kind = "code" if closing < len(same) else "text"
            position = same[closing] + len(match[0]) if kind == "code" else position
        elif kind == "comment":  # which <!--> and <!---> are too
            kind = "html" if match.start() < last_comment - 1 else "text"
            position = raw.find("-->", match.start() + 2) + 3 if kind == "html" else position
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
    label = raw[first.end : min(match.start(), first.end + _LONGEST_LABEL + 1)]
    is_label = len(label) <= _LONGEST_LABEL and normalizeReference(label) in labels
    target = _TARGET.match(raw, match.end())
    end, markup = match.end(), "]"
    if target and target[0] != "[]":
        end = target.end()
        markup = f"]{target[0]}"
    elif is_label:
        end = target.end() if target else end
        markup = f"][{label}]"  # keeps the label, as the text is translated
    else:
        tokens.append(_Inline(match.start(), end, "text", markup))
        return end
    if first.markup == "![":
        tokens[opening:] = [_Inline(first.start, end, "object", raw[first.start : end])]
    else:
        tokens[opening] = first._replace(kind="link")
        tokens.append(_Inline(match.start(), end, "target", markup))
    return end


def _emphasis(raw: str, tokens: Sequence[_Inline]) -> tuple[_Delimiters, _Delimiters]:
    """Return what each token opens and closes of emphasis, which begins and ends in one link."""
    opening: _Delimiters = defaultdict(list)
    closing: _Delimiters = defaultdict(list)
    # Of links inside one another: what may be closed, with its token.
    frames = [(list[tuple[int, str]](), Counter[str]())]
    for number, (start, end, kind, markup) in enumerate(tokens):
        opened, counts = frames[-1]
        if kind == "link":
            frames.append(([], Counter()))
        elif kind == "target":
            frames.pop()
        elif kind == "emphasis":
            before, after = raw[max(0, start - 1) : start], raw[end : end + 1]
            # In scripts without spaces emphasis may begin and end anywhere, as writers mean it.
            closes = _flanks(markup, before, "" if is_spaceless(after) else after)
            opens = _flanks(markup, after, "" if is_spaceless(before) else before)
            while closes and markup and (closable := _closable(markup, counts)):
                first, found = opened.pop()
                counts[found] -= 1
                if found in closable:
                    part = min(found, markup, key=len)
                    opening[first].insert(0, part)
                    closing[number].append(part)
                    markup = markup.removeprefix(part)
                    if rest := found.removeprefix(part):
                        opened.append((first, rest))
                        counts[rest] += 1
            if opens and markup:
                opened.append((number, markup))
                counts[markup] += 1
    return opening, closing


def _closable(markup: str, counts: Mapping[str, int]) -> list[str]:
    """Return which open marks these may close: the same, or else three marks in part."""
    others = [markup[0] * length for length in ((1, 2) if len(markup) == 3 else (3,))]
    return [markup] if counts[markup] else [other for other in others if counts[other]]


def _marked(raw: str, tokens: Sequence[_Inline], breaks: Sequence[str]) -> tuple[str, list[Mark]]:
    """Return the text of a paragraph, whose lines `breaks` are between, and its markup."""
    parts, length, marks, position = list[str](), 0, list[Mark](), 0
    links: list[int] = []  # the numbers of marks
    opening, closing = _emphasis(raw, tokens)
    num_lines = 0
    for number, (start, end, kind, markup) in enumerate(tokens):
        parts.append(raw[position:start])
        position = end
        length += len(parts[-1])
        words = ""
        num_lines += markup.count("\n")
        markup = markup.replace("\n", " ") if kind != "hard_break" else breaks[num_lines - 1]
        if kind == "escape":
            words = _LINE_END.sub(" ", unescapeAll(markup))
        elif kind == "soft_break":
            words = " "
        elif kind in ("code", "hard_break"):
            words = "\n" if kind == "hard_break" else markup.strip("`").strip()
            marks.append(Mark(length, markup, "replace", end=length + len(words)))
        elif kind == "object":
            marks.append(Mark(length, markup, "point"))
        elif kind == "html" and _LINE_BREAK.match(markup):
            words = "\n"
            marks.append(Mark(length, markup, "replace", end=length + 1))
        elif kind == "html":
            marks.append(Mark.of_tag(length, markup))
        elif kind == "link":
            links.append(len(marks))
            marks.append(Mark(length, markup, "open", "link"))
        elif kind == "target":
            link = links.pop()
            marks[link] = marks[link]._replace(closing=markup)
            marks.append(Mark(length, markup, "close", "link"))
        elif kind == "emphasis":
            marks += [Mark(length, part, "close", part) for part in closing[number]]
            words = markup[sum(map(len, opening[number] + closing[number])) :]
            start = length + len(words)
            marks += [Mark(start, part, "open", part, closing=part) for part in opening[number]]
        else:
            words = markup
        parts.append(words)
        length += len(words)
    return "".join([*parts, raw[position:]]), marks
