"""Splits lines into sentences, and says what joins them."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from seq2seq_cli.text.words import ATTACHED

BEFORE_SPACE = ".!?…‽؟۔।॥။።։\u17d4\u17d5།༎፧‼⁈⁉\u037e"  # end a sentence if a space follows
ANYWHERE = "。！？｡．"
MARKS = BEFORE_SPACE + ANYWHERE
_INVISIBLE = "\u200b\u200e\u200f\u202c\u2069"  # zero-width space, marks of direction
# After a mark, quotes that may open elsewhere close too.
CLOSING = _INVISIBLE + "\"'”’“‘»›«‹)]」』）》】"
CLOSING_ANYWHERE = re.sub("[“‘«‹]", "", CLOSING)  # “ opens here: 他笑了。“你好。”
OPENING = "\"'“‘„‚«‹¿¡([{-–—•"
_CLOSING, _CLOSING_ANYWHERE = re.escape(CLOSING), re.escape(CLOSING_ANYWHERE)
_BEFORE_SPACE = f"(?:[{BEFORE_SPACE}]|(?<=[\u0370-\u03ff\u1f00-\u1fff]{{2}});)"  # Greek asks with ;
_CLOSING_AFTER_SPACE = re.compile(r"[»›]\s++")  # as in French
_CANDIDATE = re.compile(
    f"(?<![{BEFORE_SPACE}])({_BEFORE_SPACE}++)[{_CLOSING}]*+\\s++"
    f"|(?<![{ANYWHERE}])([{ANYWHERE}]++)[{_CLOSING_ANYWHERE}{ATTACHED}]*+\\s*+"
)
_AT_THE_END = re.compile(f"((?:{_BEFORE_SPACE}|[{ANYWHERE}])++)[{_CLOSING}]*+(?:\\s[»›])?$")
# Before and after Unicode's compatibility normalization:
SAME_MARK = str.maketrans("！？｡．\u037e", "!?。.;")
_FULL_WIDTH = re.compile(f"[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef][{_CLOSING}]*$")

_LONGEST_ABBREVIATION = 12
TITLES = (
    "Mr|Mrs|Ms|Mx|Messrs|Dr|Drs|Prof|Rev|St|Ste|Mt|Ft|Gen|Col|Maj|Capt|Lt|Sgt|Gov|Sen|Rep|Pres"
    "|Hr|Hrn|Fr|Frl|Dipl|Ing|Mme|Mlle|Mgr|Sr|Sra|Srta|Ud|Uds|Sig|Dott"
)
SHORTENED = "bzw|ca|evtl|exkl|geb|ggf|inkl|sog|vgl|cf|resp|viz|vs|approx"  # in any case
BEFORE_NUMBERS = (
    "no|nos|nr|art|abb|abs|bd|ch|eq|fig|figs|kap|p|pp|sec|vol|s"
    "|jan|feb|mar|mär|apr|jun|jul|aug|sep|sept|oct|okt|nov|dec|dez"
)
_INITIAL = r"(?![àáýạ-ỹ가-힣])[^\W\d_]"  # in Vietnamese and Korean these are whole words
_LABELS = "가나다라마바사아자차카타파하"  # at the beginning of a line, as a. b. c.
_ABBREVIATION = re.compile(
    rf"{_INITIAL}|(?:[^\W\d_]{{1,3}}\.)+[^\W\d_]{{1,3}}"  # J. R. R. Tolkien, z.B., Ph.D.
    rf"|\d{{1,2}}|[IVX]+|{TITLES}|(?i:{SHORTENED})"  # am 3. Oktober, Ludwig XIV. von Frankreich
)
_BEFORE_NUMBERS = re.compile(f"(?i:{BEFORE_NUMBERS})")


def split_sentences(line: str, inner_marks: str = "") -> list[str]:
    """Split a line into stripped sentences, but not after `inner_marks`.

    Ambiguous ends do not split: a cut inside a sentence costs more than one that is missing.
    """
    return [line[start:end] for start, end in sentence_spans(line, inner_marks)]


def sentence_spans(line: str, inner_marks: str = "") -> list[tuple[int, int]]:
    """Return where in the line the sentences of `split_sentences` begin and end."""
    offset = len(line) - len(line.lstrip())
    line = line.strip()
    ends = [end for end, mark in _ends(line) if mark not in inner_marks]
    spans = []
    for start, end in itertools.pairwise([0, *ends, len(line)]):
        part = line[start:end]
        if part.strip():
            first = offset + start + len(part) - len(part.lstrip())
            spans.append((first, first + len(part.strip())))
    return spans


def separator(sentence: str) -> str:
    """Return the separator between this sentence and the next: a space or nothing."""
    return "" if _FULL_WIDTH.search(sentence, max(0, len(sentence) - 9)) else " "


def find_inner_marks(lines: Iterable[str]) -> str:
    """Return the marks that end sentences inside these lines, but rarely a line.

    If every "Good morning, Mrs. Weber!" is followed by a question on the same line, a sentence that
    "!" ends never was a line of its own; nor is "a" in a notation such as "a . b . c". Rarely: less
    than half as often as an average mark, as lines may consist of several sentences.
    """
    at_ends: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    for line in lines:
        stripped = line.strip()
        inside.update(mark for _, mark in _ends(stripped))
        if match := _AT_THE_END.search(stripped, max(0, len(stripped) - 80)):
            at_ends[_mark(match[1])] += 1
    usual = max(1.0, inside.total() / max(1, at_ends.total()))  # inside, for each one at an end
    rare = [mark for mark, count in inside.items() if count > 2 * usual * at_ends[mark]]
    return "".join(sorted(rare))


def _ends(line: str) -> Iterator[tuple[int, str]]:
    """Yield the ends of sentences inside a line, each with its mark."""
    has_capitals = line != line.lower()
    num_open = counted = 0  # quotation marks before position `counted`
    for match in _CANDIDATE.finditer(line):
        mark = _mark(match[1] or match[2])
        end = match.end()
        if line[end : end + 1] in ("»", "›"):
            num_open += sum(line.count(mark, counted, end) for mark in "«‹")
            num_open -= sum(line.count(mark, counted, end) for mark in "»›")
            counted = end
            if num_open > 0:
                closing = _CLOSING_AFTER_SPACE.match(line, end)
                end = closing.end() if closing else len(line)
        following = line[end : end + 4].lstrip(OPENING)[:1]
        if match.start() == 0 or end == len(line):
            continue
        if match[2] and match[0].rstrip()[-1] in "」』" and "\u3040" < following < "\u30a0":
            is_end = False  # hiragana after a quotation continues the sentence: 「はい。」と言った
        elif match[2] == "．" and _is_inner(line[match.start() - 1], following):
            is_end = False  # １．はじめに, ｗｗｗ．ｅｘａｍｐｌｅ．ｃｏｍ
        elif match[1] and has_capitals and following.islower() and following.title() != following:
            is_end = False  # a small letter, not one without capitals, such as Georgian ones
        else:
            is_end = mark != "." or not _is_abbreviation(line, match.start(), following)
        if is_end:
            yield end, mark


def _is_inner(before: str, following: str) -> bool:
    """Return True if a full-width full stop between these characters is part of something."""
    return before.isdigit() or following.isascii() or "０" <= following <= "ｚ"


def _mark(run: str) -> str:
    """Reduce a run of marks to its last one, or to an ellipsis."""
    return "…" if run.endswith("..") else run[-1].translate(SAME_MARK)


def _is_abbreviation(line: str, end: int, following: str) -> bool:
    """Return True if the full stop at `end` belongs to the word before it."""
    before = line[max(0, end - _LONGEST_ABBREVIATION) : end]
    if not before or before[-1].isspace():  # the full stop is a token of its own
        return False
    word = before.split()[-1].lstrip(OPENING)
    if _ABBREVIATION.fullmatch(word) or (end == 1 and word in _LABELS):
        return True
    return following.isdigit() and _BEFORE_NUMBERS.fullmatch(word) is not None
