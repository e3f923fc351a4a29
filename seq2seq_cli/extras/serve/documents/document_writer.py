"""Writes a document with translations; the markup of a sentence follows the alignment of words.

Markup around words of the source goes around the words aligned with them. Markup whose words have
no translation is left out, except in XML; a link goes around the nearest word.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from seq2seq_cli.extras.serve.documents.document import Document, Gap, Sentence, Span
from seq2seq_cli.extras.serve.messages import SentenceOutput
from seq2seq_cli.text.sentences import separator
from seq2seq_cli.text.words import is_word_character, word_spans

Range = tuple[int, int]


class DocumentWriter:
    """Writes a document with translations in place of its sentences, in order."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._pieces = iter(document.pieces)
        self._last = ""  # translation
        self._written = ""  # with its markup

    def add(self, translation: SentenceOutput) -> str:
        """Return the translation of the next sentence, with the text before it.

        A single space between sentences is left out after Chinese and Japanese ones.
        """
        text = ""
        for piece in self._pieces:
            if isinstance(piece, Sentence):
                self._last = translation.text
                self._written = self._with_markup(piece, translation)
                return text + self._written
            if isinstance(piece, Gap):
                marks = tuple(self._document.emphasis_marks)
                ends_emphasis = (text or self._written).endswith(marks)
                is_free = piece.text == "" or (piece.text == " " and not ends_emphasis)
                text += separator(self._last) if is_free else piece.text
            else:
                text += piece
        raise AssertionError("there is a translation for each sentence")

    def _with_markup(self, sentence: Sentence, translation: SentenceOutput) -> str:
        if not sentence.spans:
            return self._document.escape(translation.text)
        words = _AlignedWords(sentence.text, translation)
        nodes = [_Node(span, *words.target_range(span)) for span in sentence.spans]
        last = 0
        for node in nodes:  # in their order, so that what they are halves of stays nested
            if node.span.is_unpaired:
                node.start = node.end = last = max(last, node.start)
        writer = _MarkupWriter(sentence.text, translation.text, nodes, self._document)
        return "".join(writer.write((0, len(translation.text)), _tree(nodes)))

    def rest(self) -> str:
        """Return the text after the last sentence."""
        return "".join(piece for piece in self._pieces if isinstance(piece, str))


class _AlignedWords:
    """The words of a sentence and of its translation, with their alignment."""

    def __init__(self, source: str, translation: SentenceOutput) -> None:
        self._source, self._target = source, translation.text
        self._tgt_words = word_spans(translation.text)
        src_words = translation.source_words or word_spans(source)
        self._src_starts, self._src_ends = [s for s, _ in src_words], [end for _, end in src_words]
        self._breaks = [end for _, end in self._tgt_words[:-1]]
        self._targets: dict[int, list[int]] = {}
        for src, tgt in sorted(translation.alignment):
            if src < len(src_words) and tgt < len(self._tgt_words):
                self._targets.setdefault(src, []).append(tgt)
        self._aligned = sorted(self._targets)  # source words

    def target_range(self, span: Span) -> Range:
        """Return the range of a span in the translation; an empty range for a single position."""
        if (span.start, span.end) == (0, len(self._source)):
            return 0, len(self._target)
        if span.is_line_break:  # goes to the end of a word after the same share of the text
            expected = span.start / len(self._source) * len(self._target)
            after = bisect_left(self._breaks, expected)
            near = self._breaks[max(0, after - 1) : after + 1]
            place = min(near, key=lambda end: abs(end - expected), default=0)
            return place, place
        words = range(
            bisect_right(self._src_ends, span.start), bisect_left(self._src_starts, span.end)
        )
        targets = sorted(t for word in words for t in self._targets.get(word, ()))
        if span.start == span.end or not targets:
            place = self._place(span.start)
            if span.is_link:
                word = bisect_left(self._tgt_words, place, key=lambda word: word[1])
                if word < len(self._tgt_words):
                    return self._without_punctuation(span, *self._tgt_words[word])
            return place, place
        cuts_a_word = self._cuts_a_word(span, words)
        is_exact = span.replaces or cuts_a_word
        first, last = _longest_run(targets, gap=0 if is_exact else 1)
        start, end = self._tgt_words[first][0], self._tgt_words[last][1]
        if is_exact:
            # The same text in or near the aligned words. If there is none: these words, if the
            # span has whole words; else the position after them, so that no other text is lost or
            # marked.
            text = self._source[span.start : span.end]
            before = self._source[self._src_starts[words[0]] : span.start]
            found = self._target.find(before + text, start, end) + len(before)
            if found >= len(before):
                return found, found + len(text)
            found = self._target.find(text, max(0, start - len(text)))
            found = found if 0 <= found <= end else self._target.find(text)
            if found >= 0:
                return found, found + len(text)
            if cuts_a_word and not span.is_link:
                return end, end
        return self._without_punctuation(span, start, end)

    def _cuts_a_word(self, span: Span, words: range) -> bool:
        """Return True if a letter or digit follows an end of the span: H<sub>2</sub>O.

        With `replaces`, also if its own end is punctuation: not-<code>null</code>.
        """
        before = self._source[self._src_starts[words[0]] : span.start]
        after = self._source[span.end : self._src_ends[words[-1]]]
        if span.replaces:
            return any(map(is_word_character, before + after))
        ends = (before[-1:], self._source[span.start]), (self._source[span.end - 1], after[:1])
        return any(is_word_character(a) and is_word_character(b) for a, b in ends)

    def _place(self, position: int) -> int:
        """Return the position of markup without words: next to the same word."""
        is_before_word = self._source[position : position + 1].strip() and not (
            self._source[max(0, position - 1) : position].strip()
        )
        word = bisect_left(self._aligned, bisect_left(self._src_starts, position))
        if is_before_word:
            if word < len(self._aligned):
                return self._tgt_words[min(self._targets[self._aligned[word]])][0]
            return len(self._target)
        if word == 0:
            return 0
        targets = sorted(self._targets[self._aligned[word - 1]])
        start, end = self._tgt_words[_longest_run(targets, gap=1)[1]]
        return self._before_punctuation(position, start, end)

    def _without_punctuation(self, span: Span, start: int, end: int) -> Range:
        """Leave out what is around the span in its first and last word, such as punctuation."""
        end = self._before_punctuation(span.end, start, end)
        start = self._after_punctuation(span.start, start, end)
        if is_word_character(self._source[span.start]):
            while start < end - 1 and not is_word_character(self._target[start]):
                start += 1
        return start, end

    def _before_punctuation(self, position: int, start: int, end: int) -> int:
        """Return the end of target words, without what follows `position` in its source word.

        That is the same text, such as the comma after f(), or punctuation.
        """
        _, rest = self._divided_word(position)
        if rest and self._target.endswith(rest, start + 1, end):
            return end - len(rest)
        if place := self._dividing(rest[:1], position, start, end):
            return place
        if is_word_character(self._source[position - 1]):
            while end - 1 > start and not is_word_character(self._target[end - 1]):
                end -= 1
        return end

    def _after_punctuation(self, position: int, start: int, end: int) -> int:
        """Return the start of target words, without what precedes `position` in its source word."""
        rest, _ = self._divided_word(position)
        if rest and self._target.startswith(rest, start, end - 1):
            return start + len(rest)
        place = self._dividing(rest[-1:], position, start, end)
        return place + 1 if place else start

    def _divided_word(self, position: int) -> tuple[str, str]:
        """Return the parts of the source word around `position`, which are empty at its ends."""
        word = bisect_right(self._src_ends, position)
        if word == len(self._src_ends) or self._src_starts[word] >= position:
            return "", ""
        start, end = self._src_starts[word], self._src_ends[word]
        return self._source[start:position], self._source[position:end]

    def _dividing(self, mark: str, position: int, start: int, end: int) -> int:
        """Return where a mark divides a translation as it does the word (either/or), or 0."""
        if not mark or is_word_character(mark):
            return 0
        word, target = "".join(self._divided_word(position)), self._target[start:end]
        is_one = word.count(mark) == target.count(mark) == len(target.split()) == 1
        is_inside = is_one and 0 < target.index(mark) < len(target) - 1
        return start + target.index(mark) if is_inside else 0


def _longest_run(numbers: Sequence[int], gap: int) -> Range:
    """Return the first and last number of the longest run with gaps of at most `gap`.

    So a single word that is aligned far away does not pull the markup there.
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number - runs[-1][-1] <= gap + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    longest = max(runs, key=lambda run: len(set(run)))
    return longest[0], longest[-1]


@dataclass
class _Node:
    """A span with its range in the translation, and the spans inside."""

    span: Span
    start: int
    end: int
    children: "list[_Node]" = field(default_factory=list)
    has_link: bool = False


def _tree(nodes: Sequence[_Node]) -> list[_Node]:
    """Return the outermost spans; the range of each includes the ranges of the spans inside.

    Markup without words at the start or end of a span stays there.
    """
    roots: list[_Node] = []
    opened: list[_Node] = []
    for node in nodes:
        while opened and opened[-1].span.depth >= node.span.depth:
            opened.pop()
        if opened and node.span.start == node.span.end:
            around = opened[-1]
            if node.span.start == around.span.start:
                node.start = node.end = around.start
            elif node.span.end == around.span.end:
                node.start = node.end = around.end
        (opened[-1].children if opened else roots).append(node)
        opened.append(node)
    for node in reversed(nodes):  # children first
        node.has_link = node.span.is_link or any(child.has_link for child in node.children)
        node.start = min([node.start, *(child.start for child in node.children)])
        node.end = max([node.end, *(child.end for child in node.children)])
    return roots


class _MarkupWriter:
    """Writes a translation with markup."""

    def __init__(self, source: str, text: str, nodes: Sequence[_Node], document: Document) -> None:
        self._source, self._text, self._document = source, text, document
        self._line_start = 0
        cuts = {edge for node in nodes if node.span.is_link for edge in (node.start, node.end)}
        edges = sorted(cuts.union(*word_spans(text)))
        words = [(start, end) for start, end in pairwise(edges) if text[start:end].strip()]
        self._starts, self._ends = [start for start, _ in words], [end for _, end in words]

    def write(
        self, place: Range, nodes: Sequence[_Node], around: tuple[str, str] = ("", "")
    ) -> Iterator[str]:
        """Yield a part of the translation; if spans overlap, the later one is shortened.

        `around` is the markup directly before and after that part.
        """
        source, text = self._source, self._text
        position, end = place
        written = around[0]
        num_links = sum(node.has_link for node in nodes)
        for node in sorted(nodes, key=lambda node: node.start):
            span = node.span
            num_links -= node.has_link
            most = end
            if num_links:  # leave a word for each later link
                last = bisect_left(self._starts, end) - num_links - 1
                most = self._ends[last] if last >= 0 and self._ends[last] > position else position
            start = min(max(node.start, position), most)
            stop = min(max(node.end, start), most)
            if start == stop and node.has_link:
                first, last = bisect_left(self._starts, position), bisect_left(self._starts, most)
                if first < last:
                    word = min(bisect_left(self._starts, start), last - 1)
                    start, stop = self._starts[word], min(self._ends[word], most)
            if span.is_line_break and not text[self._line_start : start].strip():
                continue  # no line is empty
            yield (part := self._document.escape(text[position:start]))
            written = part or written
            is_object = span.start == span.end or not span.after
            needs_space = start == stop and is_object and bool(span.before.strip())
            if needs_space and source[max(0, span.start - 1) : span.start].isspace():
                yield " " * (start > 0 and not text[start - 1].isspace())
            inner = ""
            if not span.replaces:
                tags = span.before, span.after
                inner = "".join(self.write((start, stop), node.children, tags))
            had_words = bool(source[span.start : span.end].strip())
            is_lost = had_words and bool(span.after) and not inner.strip()
            if not is_lost or self._document.keeps_elements:
                after = text[stop : stop + 1] if stop < end else around[1]
                inner = self._document.enclose(span, inner, written, after)
            yield inner
            written = inner or written
            if needs_space and source[span.end : span.end + 1].isspace():
                yield " " * bool(text[stop : stop + 1].strip())
            position = stop
            if span.is_line_break:
                position += text[stop : stop + 1].isspace()
                self._line_start = position
        yield self._document.escape(text[position:end])
