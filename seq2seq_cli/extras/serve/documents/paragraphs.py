"""Paragraphs: running text with markup, split into sentences."""

import re
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from seq2seq_cli.extras.serve.documents.document import Gap, Piece, Sentence, Span
from seq2seq_cli.text.sentences import sentence_spans

Range = tuple[int, int]

_LETTER = re.compile(r"[^\W\d_]")
_LINE = re.compile(r"[^\n]+")
_TAG_NAME = re.compile(r"</?\s*([A-Za-z][\w-]*)")
_VOID_TAGS = ("br", "img", "wbr", "hr", "input")
_MAX_DEPTH = 30  # of elements in a paragraph; elements further inside are left out


class SentenceSplitter(NamedTuple):
    """How to split text into sentences, as in the lines of a run's training text."""

    inner_marks: str = ""  # punctuation that does not end a sentence in the training text
    most: float = 1  # sentences that are translated together
    longest: int = 1_000  # characters; a longer sentence is cut, at spaces if it has any

    def ranges(self, text: str) -> list[Range]:
        """Return the ranges that are translated at once, without space around them.

        A line feed ends a sentence.
        """
        ranges: list[Range] = []
        for line in _LINE.finditer(text):
            spans = sentence_spans(line[0], self.inner_marks)
            if 1 < len(spans) <= self.most:
                spans = [(spans[0][0], spans[-1][1])]
            for first, last in spans:
                start, end = line.start() + first, line.start() + last
                while end - start > self.longest:
                    cut = text.rfind(" ", start + self.longest // 2, start + self.longest)
                    cut = start + self.longest if cut < 0 else cut
                    ranges.append((start, cut))
                    start = cut
                    while text[start : start + 1].isspace():
                        start += 1
                ranges.append((start, end))
        return ranges


class Mark(NamedTuple):
    """Markup at a position of a paragraph's text."""

    position: int
    markup: str
    kind: Literal["open", "close", "point", "replace"]  # replace: includes text that is kept
    name: str = ""  # the same for open and close
    end: int = -1  # of the text of a `replace`
    closing: str = ""  # markup that closes an `open`

    @classmethod
    def of_tag(cls, position: int, markup: str) -> "Mark":
        """Return the mark of a tag of HTML, or of markup without a name."""
        name = _TAG_NAME.match(markup)
        if name is None or markup.endswith("/>") or name[1].lower() in _VOID_TAGS:
            return cls(position, markup, "point")
        if markup.startswith("</"):
            return cls(position, markup, "close", name[1])
        return cls(position, markup, "open", name[1], closing=f"</{name[1]}>")


def has_letters(text: str) -> bool:
    """Return True if there is something to translate; numbers, signs and emoji are copied."""
    return _LETTER.search(text) is not None


def paragraph_pieces(
    text: str,
    splitter: SentenceSplitter,
    marks: Sequence[Mark] = (),
    escape: Callable[[str], str] = str,
) -> Iterator[Piece]:
    """Split a paragraph into sentences with their markup, and the text between them.

    Markup around whole sentences stays outside of them; markup that begins or ends inside one is
    divided at the ends of sentences. `marks` are in the order of the text, whose line feeds end
    sentences; `escape` writes text outside of sentences.
    """
    marks = list(_nested(marks))
    partners: dict[int, int] = {}  # the number of the closing mark by the number of the opening one
    opened: list[int] = []
    for number, mark in enumerate(marks):
        if mark.kind == "open":
            opened.append(number)
        elif mark.kind == "close" and opened and marks[opened[-1]].name == mark.name:
            partners[opened.pop()] = number
    kept = [(mark.position, mark.end) for mark in marks if mark.kind == "replace"]
    sentences = _undivided(splitter.ranges(text), kept)
    room = 4 * (len(text) + sum(len(mark.markup) for mark in marks))
    sentences = _undivided(sentences, _long_elements(marks, partners, sentences, room))
    sentences = [range_ for range_ in sentences if _has_words(text, range_, kept)]
    spans, outside = _divided(marks, partners, sentences)
    position = 0
    for number, (start, end) in enumerate(sentences):
        yield from _between(text, (position, start), outside, escape, is_inner=number > 0)
        relative = [s._replace(start=s.start - start, end=s.end - start) for s in spans[number]]
        yield Sentence(text[start:end].replace("\n", " "), tuple(relative))
        position = end
    yield from _between(text, (position, len(text)), outside, escape, is_inner=False)


def _nested(marks: Sequence[Mark]) -> Iterator[Mark]:
    """Yield marks so that elements are nested or disjoint.

    Overlapping elements are divided, as browsers do. A tag that closes nothing in this paragraph
    (but perhaps an element opened before) comes after the element around it.
    """
    to_come = Counter(mark.name for mark in marks if mark.kind == "close")
    opened: list[Mark] = []
    again: list[Mark] = []  # divided elements, which are opened again unless they end here
    left_out: Counter[str] = Counter()
    strays: list[Mark] = []
    for mark in marks:
        if again and not (mark.kind == "close" and mark.position == again[0].position):
            yield from reversed(again)
            opened += reversed(again)
            again = []
        to_come[mark.name] -= mark.kind == "close"
        if mark.kind == "open" and len(opened) == _MAX_DEPTH:
            left_out[mark.name] += 1
        elif mark.kind == "open":
            opened.append(mark)
            yield mark
        elif mark.kind != "close":
            yield mark
        elif left_out[mark.name]:
            left_out[mark.name] -= 1
        elif ended := next((other for other in again if other.name == mark.name), None):
            again.remove(ended)
        elif mark.name not in {other.name for other in opened}:
            strays.append(mark)
        else:
            while opened[-1].name != mark.name:
                inner = opened.pop()
                again.append(inner._replace(position=mark.position))
                yield Mark(mark.position, inner.closing, "close", inner.name)
            opened.pop()
            yield mark
        if not any(to_come[other.name] for other in (*opened, *again)):
            yield from (stray._replace(position=mark.position) for stray in strays)
            strays = []
    yield from (*reversed(again), *strays)


def _long_elements(
    marks: Sequence[Mark], partners: Mapping[int, int], sentences: Sequence[Range], room: int
) -> list[Range]:
    """Return the ranges of elements that are not divided at ends of sentences.

    Copies of their markup would exceed `room`, in characters: a long tag around parts of hundreds
    of sentences, or hundreds of tags.
    """
    starts, ends = [start for start, _ in sentences], [end for _, end in sentences]
    long: list[Range] = []
    for opening, closing in sorted(partners.items()):
        first, last = marks[opening].position, marks[closing].position
        if _is_inside(first, sentences) or _is_inside(last, sentences):
            num_copies = max(0, bisect_left(starts, last) - bisect_right(ends, first) - 1)
            room -= num_copies * (len(marks[opening].markup) + len(marks[closing].markup))
            if room < 0:
                long.append((first, last))
    return long


def _is_inside(position: int, sentences: Sequence[Range]) -> bool:
    """Return True if a position is inside a sentence, not at an end."""
    number = bisect_left(sentences, (position,)) - 1
    return number >= 0 and position < sentences[number][1]


def _undivided(sentences: Sequence[Range], kept: Sequence[Range]) -> list[Range]:
    """Return the sentences, joined where a kept range crosses their boundary."""
    joined: list[Range] = []
    ranges = deque(sorted(kept))
    reach = 0
    for start, end in sentences:
        while ranges and joined and ranges[0][0] < joined[-1][1]:
            reach = max(reach, ranges.popleft()[1])
        if joined and start < reach:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _has_words(text: str, sentence: Range, kept: Sequence[Range]) -> bool:
    """Return True if there is something to translate outside of the kept ranges."""
    start, end = sentence
    first, last = bisect_left(kept, (start, start)), bisect_left(kept, (end, end))
    edges = [start, *(edge for range_ in kept[first:last] for edge in range_), end]
    return any(has_letters(text[i:j]) for i, j in zip(edges[::2], edges[1::2], strict=True))


def _divided(
    marks: Sequence[Mark], partners: Mapping[int, int], sentences: Sequence[Range]
) -> tuple[list[list[Span]], deque[Mark]]:
    """Divide marks into the spans inside of each sentence, and marks outside of sentences."""
    starts, ends = [start for start, _ in sentences], [end for _, end in sentences]
    spans: list[list[Span]] = [[] for _ in sentences]
    outside: deque[Mark] = deque()
    done: set[int] = set()
    closing = set(partners.values())
    depth = 0
    for number, mark in enumerate(marks):
        depth += (number - 1 in partners) - (number in closing)
        if number in done:
            continue
        first, partner = mark.position, partners.get(number)
        last = max(first, mark.end) if partner is None else marks[partner].position
        after = "" if partner is None else marks[partner].markup
        common = range(bisect_right(ends, first), bisect_left(starts, last))
        is_inside = _is_inside(first, sentences) or _is_inside(last, sentences)
        if mark.kind == "replace":
            is_inside = len(common) == 1 and starts[common[0]] <= first and last <= ends[common[0]]
        if not is_inside:
            outside.append(mark)
            continue
        before = mark.markup
        if partner is not None and first == last and partner > number + 1:  # around a picture
            before = "".join(inner.markup for inner in marks[number : partner + 1])
            after = ""
            done.update(range(number, partner))
        done.update([] if partner is None else [partner])
        for place in common:
            start, end = max(first, starts[place]), min(last, ends[place])
            is_unpaired = partner is None and mark.kind in ("open", "close")
            is_kept = mark.kind == "replace"
            spans[place].append(Span(start, end, before, after, is_kept, depth, is_unpaired))
    return spans, outside


def _between(
    text: str,
    place: Range,
    outside: deque[Mark],
    escape: Callable[[str], str],
    *,
    is_inner: bool,
) -> Iterator[Piece]:
    """Yield the text between sentences, and the marks in it, which are removed from `outside`."""
    position, end = place
    is_space = is_inner and not text[position:end].strip()
    needs_gap = is_space and position == end
    is_after_break = False
    while True:
        mark = outside.popleft() if outside and outside[0].position <= end else None
        if needs_gap and (mark is None or mark.kind == "open"):  # after what closes
            yield Gap("")
            needs_gap = False
        is_break = mark is not None and not mark.markup.strip()
        part = text[position : mark.position if mark else end]
        if part.strip() or (part and not is_break and not is_after_break):
            yield Gap(part) if is_space else escape(part)
        if mark is None:
            return
        yield mark.markup
        is_after_break = is_break
        position = max(position, mark.position, mark.end)
