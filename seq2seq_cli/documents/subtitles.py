"""Subtitles (SubRip and WebVTT): the words of every speaker in a cue are a paragraph."""

import itertools
import re
from collections.abc import Iterator, Sequence

from seq2seq_cli.documents.document import Document, Piece
from seq2seq_cli.documents.paragraphs import Mark, SentenceSplitter, has_letters, paragraph_pieces

_LINE = re.compile(r".*?(?:\r\n|[\r\n]|\Z)", re.DOTALL)
_TIMES = re.compile(r"\s*(?:\d+:)?\d+:\d+[.,]\d+\s*-->")
_MARKUP = re.compile(r"</?[A-Za-z0-9.:/ \"'=#_-]*>|\{\\[^}]*\}")  # <i>, <v Paul>, {\an8}
_DASH = re.compile(r"[-–—‐]\s*")
_NAME = re.compile(r"</?\s*([A-Za-z]*)")


def read_subtitles(text: str, splitter: SentenceSplitter) -> Document:
    """Take subtitles apart; numbers, times, settings and comments are kept.

    Lines of a cue that continue one another are translated together; a translation has as many
    lines as its source, if it has the words for them.
    """
    pieces: list[Piece] = []
    cue: list[str] = []
    in_cue = False
    for line in _LINE.findall(text):
        if _TIMES.match(line):
            in_cue = True
        elif in_cue and line.strip():
            cue.append(line)
            continue
        else:
            pieces += _cue_pieces(cue, splitter)
            cue, in_cue = [], False
        pieces.append(line)
    pieces += _cue_pieces(cue, splitter)
    return Document(tuple(piece for piece in pieces if piece != ""))


def _cue_pieces(cue: Sequence[str], splitter: SentenceSplitter) -> Iterator[Piece]:
    """Yield the pieces of the lines of a cue; a dash begins the words of another speaker."""
    starts = [n for n, line in enumerate(cue) if n == 0 or _DASH.match(line)]
    for start, end in itertools.pairwise([*starts, len(cue)]):
        yield from _speaker_pieces(cue[start:end], splitter)


def _speaker_pieces(lines: Sequence[str], splitter: SentenceSplitter) -> Iterator[Piece]:
    dash = _DASH.match(lines[0])
    text, marks = "", list[Mark]()
    for number, line in enumerate(lines):
        content = line.rstrip("\r\n")
        if number == 0 and dash:
            content = content[dash.end() :]
        for part in re.split(f"({_MARKUP.pattern})", content.strip()):
            if _MARKUP.fullmatch(part):
                marks.append(_mark(len(text), part))
            else:
                text += part
        if number + 1 < len(lines):
            marks.append(Mark(len(text), line[len(line.rstrip("\r\n")) :], "point"))
            text += " "
    if not has_letters(text):
        yield from lines
        return
    yield dash[0] if dash else ""
    yield from paragraph_pieces(text, splitter, marks)
    yield lines[-1][len(lines[-1].rstrip("\r\n")) :]


def _mark(position: int, markup: str) -> Mark:
    if not (name := _NAME.match(markup)):
        return Mark(position, markup, "point")
    return Mark(position, markup, "close" if markup.startswith("</") else "open", name[1])
