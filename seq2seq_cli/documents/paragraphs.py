"""Paragraphs: running text with markup in it, taken apart into sentences."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from seq2seq_cli.documents.document import Gap, Piece, Sentence, Span
from seq2seq_cli.text.sentences import sentence_spans

Range = tuple[int, int]

_LETTER = re.compile(r"[^\W\d_]")


class SentenceSplitter(NamedTuple):
    """How the lines of a run's training text end: after a sentence, or after several."""

    inner_marks: str = ""  # punctuation that does not end a sentence in the training text
    most: float = 1  # sentences that are translated together
    longest: int = 1_000  # characters, beyond which a sentence is cut, at spaces if it has any

    def ranges(self, text: str) -> list[Range]:
        """Return where the parts are that are translated at once, without space around them."""
        ranges = sentence_spans(text, self.inner_marks)
        if 1 < len(ranges) <= self.most:
            ranges = [(ranges[0][0], ranges[-1][1])]
        return [part for range_ in ranges for part in self._parts(text, *range_)]

    def _parts(self, text: str, start: int, end: int) -> Iterator[Range]:
        while end - start > self.longest:
            last = start + self.longest
            cut = text.rfind(" ", start + self.longest // 2, last)
            cut = last if cut < 0 else cut
            yield start, cut
            start = cut + len(text[cut:end]) - len(text[cut:end].lstrip())
        yield start, end


class Mark(NamedTuple):
    """Markup at a place of a paragraph's text."""

    position: int
    markup: str
    kind: Literal["open", "close", "point", "replace"]  # replace: stands for text that is kept
    name: str = ""  # by which open and close belong together
    end: int = -1  # of the text that a `replace` stands for


def has_letters(text: str) -> bool:
    """Return True if there is something to translate: numbers, signs and emoji stay as they are."""
    return _LETTER.search(text) is not None


def paragraph_pieces(
    text: str,
    splitter: SentenceSplitter,
    marks: Sequence[Mark] = (),
    escape: Callable[[str], str] = str,
) -> Iterator[Piece]:
    """Take a paragraph apart: its sentences with the markup in them, and what is between them.

    Markup around whole sentences stays outside of them; that which begins or ends inside one is
    divided at the ends of sentences. `marks` are in the order of the text; `escape` writes text
    that is no sentence.
    """
    kept = [(mark.position, mark.end) for mark in marks if mark.kind == "replace"]
    sentences = [
        sentence
        for sentence in _undivided(splitter.ranges(text), kept)
        if has_letters(_without(text, sentence, kept))
    ]
    spans, outside = _divided(marks, sentences)
    position = 0
    for number, (start, end) in enumerate(sentences):
        yield from _between(text, (position, start), outside, escape, is_inner=number > 0)
        relative = [s._replace(start=s.start - start, end=s.end - start) for s in spans[number]]
        yield Sentence(text[start:end], tuple(relative))
        position = end
    yield from _between(text, (position, len(text)), outside, escape, is_inner=False)


def _undivided(sentences: Sequence[Range], kept: Sequence[Range]) -> list[Range]:
    """Return the sentences, joined where text that is kept goes across their ends."""
    joined: list[Range] = []
    for start, end in sentences:
        if joined and any(first < start and joined[-1][1] < last for first, last in kept):
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _without(text: str, sentence: Range, kept: Sequence[Range]) -> str:
    """Return the part of a sentence that is not kept."""
    start, end = sentence
    inner = [edge for range_ in kept if start <= range_[0] and range_[1] <= end for edge in range_]
    edges = [start, *inner, end]
    return " ".join(text[i:j] for i, j in zip(edges[::2], edges[1::2], strict=True))


def _divided(
    marks: Sequence[Mark], sentences: Sequence[Range]
) -> tuple[list[list[Span]], list[Mark]]:
    """Divide marks into the spans inside of each sentence, and those outside of sentences."""
    partners = _partners(marks)
    spans: list[list[Span]] = [[] for _ in sentences]
    outside: list[Mark] = []
    done: set[int] = set()
    for number, mark in enumerate(marks):
        if number in done:
            continue
        first, partner = mark.position, partners.get(number)
        last = max(first, mark.end) if partner is None else marks[partner].position
        after = "" if partner is None else marks[partner].markup
        is_inside = any(start < edge < end for edge in (first, last) for start, end in sentences)
        if mark.kind == "replace":
            is_inside = any(start <= first and last <= end for start, end in sentences)
        if not is_inside:
            outside.append(mark)
            continue
        done.update([] if partner is None else [partner])
        for place, (start, end) in zip(spans, sentences, strict=True):
            common = Span(max(first, start), min(last, end), mark.markup, after)
            if common.start < common.end or start < first == last < end:
                place.append(common._replace(replaces=mark.kind == "replace"))
    return spans, outside


def _partners(marks: Sequence[Mark]) -> dict[int, int]:
    """Return for each opening mark, by number, the mark that closes it."""
    partners: dict[int, int] = {}
    opened: list[int] = []
    for number, mark in enumerate(marks):
        if mark.kind == "open":
            opened.append(number)
        elif mark.kind == "close" and mark.name in (marks[n].name for n in opened):
            while marks[opened[-1]].name != mark.name:  # never closed
                opened.pop()
            partners[opened.pop()] = number
    return partners


def _between(
    text: str,
    place: Range,
    outside: list[Mark],
    escape: Callable[[str], str],
    *,
    is_inner: bool,
) -> Iterator[Piece]:
    """Yield what is between sentences: text, and the marks in it, which are taken from the list."""
    position, end = place
    is_space = is_inner and not text[position:end].strip()
    if is_space and position == end:
        yield Gap("")
    is_after_break = False
    while True:
        mark = outside.pop(0) if outside and outside[0].position <= end else None
        is_break = mark is not None and not mark.markup.strip()
        part = text[position : mark.position if mark else end]
        if part.strip() or (part and not is_break and not is_after_break):
            yield Gap(part) if is_space else escape(part)
        if mark is None:
            return
        yield mark.markup
        is_after_break = is_break
        position = max(position, mark.position, mark.end)
