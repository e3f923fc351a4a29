"""Subtitles (SubRip and WebVTT): the words of every speaker in a cue are a paragraph."""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from seq2seq_cli.extras.serve.documents.document import Document, Piece, escape_html, unescape_html
from seq2seq_cli.extras.serve.documents.paragraphs import (
    Mark,
    SentenceSplitter,
    has_letters,
    paragraph_pieces,
)

_LINE = re.compile(r".*?(?:\r\n|[\r\n]|\Z)", re.DOTALL)
_TIMES = re.compile(r"\s*(?:\d+:)?\d+:\d+[.,]\d+\s*-->")
_TAG = r"<[/ ]*+[A-Za-z0-9.:_-]*+[/ ]*+>|\{\\[^{}]*+\}"  # <i>, <00:01.500>, {\an8}


class _Syntax(NamedTuple):
    """What is markup in the text of a cue, as a regular expression, and how text is written."""

    markup: str
    unescape: Callable[[str], str] = str
    escape: Callable[[str], str] = str


# In WebVTT all words in a tag are markup, such as the name of a voice. Players of SubRip show them,
# unless they are attributes.
_WEB_VTT = _Syntax(rf"{_TAG}|<[^\s\d<>][^<>]*+>", unescape_html, escape_html)
_SUBRIP = _Syntax(rf"{_TAG}|<(?i:font|v)\b[^<>]*+>|<[A-Za-z]++ ++[A-Za-z-]++ *+=[^<>]*+>")


def read_subtitles(text: str, splitter: SentenceSplitter) -> Document:
    """Split subtitles; numbers, times, settings and comments are kept.

    The lines of a speaker are translated together; the translation has as many lines as its
    source, if it has enough words.
    """
    pieces: list[Piece] = []
    cue: list[str] = []
    in_cue = False
    syntax = _WEB_VTT if text.lstrip("\ufeff").startswith("WEBVTT") else _SUBRIP
    for line in _LINE.findall(text):
        is_time = _TIMES.match(line) is not None
        if in_cue and line.strip() and not is_time:
            cue.append(line)
            continue
        # A cue may end without a blank line, at the number of the next one.
        number = [cue.pop()] if is_time and cue and cue[-1].strip().isdigit() else []
        pieces += _cue_pieces(cue, splitter, syntax)
        pieces += [*number, line]
        cue, in_cue = [], is_time
    pieces += _cue_pieces(cue, splitter, syntax)
    return Document(pieces, syntax.escape)


def _cue_pieces(cue: Sequence[str], splitter: SentenceSplitter, syntax: _Syntax) -> Iterator[Piece]:
    """Yield the pieces of a cue's lines; a dash begins the words of another speaker."""
    markup = re.compile(syntax.markup)
    speaker = re.compile(rf"(?:{syntax.markup})*+[-–—‐][^\S\r\n]*")
    starts = [n for n, line in enumerate(cue) if n == 0 or speaker.match(line)]
    for start, end in itertools.pairwise([*starts, len(cue)]):
        dash = speaker.match(cue[start])
        text, marks = "", list[Mark]()
        for number in range(start, end):
            content = cue[number].rstrip("\r\n")
            line_end = cue[number][len(content) :]
            if number == start and dash:
                content = content[dash.end() :]
            for part in re.split(f"({syntax.markup})", content.strip()):
                if markup.fullmatch(part):
                    marks.append(Mark.of_tag(len(text), part))
                else:
                    text += syntax.unescape(part)
            if number + 1 < end:
                marks.append(Mark(len(text), line_end, "point"))
                text += " "
        if has_letters(text):
            yield dash[0] if dash else ""
            yield from paragraph_pieces(text, splitter, marks, syntax.escape)
            yield line_end
        else:
            yield from cue[start:end]
