"""Where one sentence of a line ends and the next one begins, and sentences as a line again."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator

_BEFORE_SPACE = ".!?…‽؟۔।॥။።։"  # marks that end a sentence where a space follows
_ANYWHERE = "。！？｡"
MARKS = _BEFORE_SPACE + _ANYWHERE
_CLOSING = "\"'”’“‘»›«‹)\\]」』）》】"  # right after a mark also those that open elsewhere
_CLOSING_ANYWHERE = "\"'”’»›)\\]」』）》】"  # “ opens there: 他笑了。“你好。”
_OPENING = "\"'“‘„‚«‹¿¡([{-–—•"
_CANDIDATE = re.compile(
    f"(?<![{_BEFORE_SPACE}])([{_BEFORE_SPACE}]++)[{_CLOSING}]*+\\s++"
    f"|(?<![{_ANYWHERE}])([{_ANYWHERE}]++)[{_CLOSING_ANYWHERE}]*+\\s*+"
)
_AT_THE_END = re.compile(f"([{MARKS}]++)[{_CLOSING}]*+$")
_SAME = str.maketrans("！？｡", "!?。")  # before and after Unicode's compatibility normalization
_FULL_WIDTH = re.compile(f"[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef][{_CLOSING}]*$")

_LONGEST_ABBREVIATION = 12
_ABBREVIATION = re.compile(
    r"[^\W\d_]|(?:[^\W\d_]{1,3}\.)+[^\W\d_]{1,3}"  # J. R. R. Tolkien, z.B., Ph.D.
    r"|\d{1,2}|[IVX]+"  # am 3. Oktober, Ludwig XIV. von Frankreich
    "|Mr|Mrs|Ms|Mx|Messrs|Drs?|Prof|Rev|Ste?|Mt|Ft|Gen|Col|Maj|Capt|Lt|Sgt|Gov|Sen|Rep|Pres"
    "|Hrn?|Frl?|Dipl|Ing|Mme|Mlle|Mgr|Sr|Sra|Srta|Uds?|Sig|Dott"
    "|(?i:bzw|ca|evtl|exkl|geb|ggf|inkl|sog|vgl|cf|resp|viz|vs|approx)"
)
_BEFORE_NUMBERS = re.compile(
    "(?i:nos?|nr|art|abb|abs|bd|ch|eq|figs?|kap|pp?|sec|vol|s"
    "|jan|feb|m[aä]r|apr|jun|jul|aug|sept?|o[ck]t|nov|de[cz])"
)


def split_sentences(line: str, inner_marks: str = "") -> list[str]:
    """The sentences of a line, without the spaces around them; `inner_marks` end none.

    In doubt two sentences stay together: a cut in the middle of one costs more.
    """
    line = line.strip()
    ends = [end for end, mark in _ends(line) if mark not in inner_marks]
    parts = (line[i:j].strip() for i, j in itertools.pairwise([0, *ends, len(line)]))
    return [part for part in parts if part]


def join_sentences(sentences: Iterable[str]) -> str:
    """As one line: with a space between two, but none after Chinese and Japanese characters."""
    line: list[str] = []
    for sentence in filter(None, sentences):
        line += [separator(line[-1]), sentence] if line else [sentence]
    return "".join(line)


def separator(sentence: str) -> str:
    """What stands between this sentence and the next one."""
    return "" if _FULL_WIDTH.search(sentence, max(0, len(sentence) - 9)) else " "


def find_inner_marks(lines: Iterable[str]) -> str:
    """The marks that stand inside of these lines more often than at their ends.

    Where every "Good morning, Mrs. Weber!" is followed by a question on the same line, what "!"
    ends has never stood alone; neither has what "." ends in a notation such as "a . b . c".
    """
    at_ends: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    for line in lines:
        stripped = line.strip()
        inside.update(mark for _, mark in _ends(stripped))
        if found := _AT_THE_END.search(stripped, max(0, len(stripped) - 80)):
            at_ends[_mark(found[1])] += 1
    return "".join(sorted(mark for mark, count in inside.items() if count > at_ends[mark]))


def _ends(line: str) -> Iterator[tuple[int, str]]:
    """Where sentences end inside of a line, each with its mark."""
    has_capitals = line != line.lower()
    for found in _CANDIDATE.finditer(line):
        mark = _mark(found[1] or found[2])
        is_inside = found.start() > 0 and found.end() < len(line)
        if is_inside and _is_end(line, found, mark, has_capitals):
            yield found.end(), mark


def _mark(run: str) -> str:
    """What a run of marks counts as: its last one, or an ellipsis."""
    return "…" if run.endswith("..") else run[-1].translate(_SAME)


def _is_end(line: str, found: re.Match[str], mark: str, has_capitals: bool) -> bool:
    following = line[found.end() : found.end() + 4].lstrip(_OPENING)[:1]
    if found[2]:  # hiragana goes on with what was quoted: 「はい。」と言った
        return not (found[0].rstrip()[-1] in "」』" and "\u3040" < following < "\u30a0")
    if has_capitals and following.islower():
        return False
    return mark != "." or not _is_abbreviation(line, found.start(), following)


def _is_abbreviation(line: str, end: int, following: str) -> bool:
    """Whether the word that ends there has its full stop for itself."""
    before = line[max(0, end - _LONGEST_ABBREVIATION) : end]
    if not before or before[-1].isspace():  # the full stop is a token of its own
        return False
    word = before.split()[-1].lstrip(_OPENING)
    if _ABBREVIATION.fullmatch(word):
        return True
    return following.isdigit() and _BEFORE_NUMBERS.fullmatch(word) is not None
