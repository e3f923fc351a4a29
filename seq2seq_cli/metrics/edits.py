"""`eval --errors`: what translations insert, drop and replace, and which features go wrong."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from unicodedata import combining

from rapidfuzz.distance import Levenshtein

from seq2seq_cli.console import printable, table
from seq2seq_cli.metrics.breakdowns import Translated, splitter_of
from seq2seq_cli.metrics.metrics import Scoring
from seq2seq_cli.text.features import TAB, feature_names

_SHOWN = 20  # kinds of errors in a table
_EXAMPLES = 3
_CONTEXT = 4  # units before and after an error
_LONGEST_SOURCE = 24  # characters, in a table


class Change(NamedTuple):
    """A kind of error: one unit of the reference, or none, became another one, or none."""

    expected: str | None
    written: str | None

    def __str__(self) -> str:
        if self.expected is None:
            return f"{_visible(self.written or '')} inserted"
        if self.written is None:
            return f"{_visible(self.expected)} dropped"
        return f"{_visible(self.expected)} → {_visible(self.written)}"


class Example(NamedTuple):
    """A line with an error, and the units of reference and translation around it."""

    line: int  # its number, from 1
    source: str
    reference: str
    hypothesis: str
    expected: str
    written: str

    def __str__(self) -> str:
        source = self.source.replace(TAB, " ")
        source = source if len(source) <= _LONGEST_SOURCE else f"{source[:_LONGEST_SOURCE]}…"
        return printable(f"line {self.line:,}  {source}: {self.expected} → {self.written}")


def _visible(unit: str) -> str:
    """Return a unit so that it can be seen alone: a space, or a mark that needs a letter."""
    unit = "␣" if unit == " " else unit
    return printable(f"◌{unit}" if combining(unit[:1] or " ") else unit)


@dataclass(frozen=True)
class Feature:
    """How many lines are right whose source has a feature."""

    name: str
    num_lines: int
    num_right: int

    @property
    def exact_match(self) -> float:
        return 100 * self.num_right / self.num_lines


@dataclass(frozen=True)
class Errors:
    """The errors of a text by kind, the most frequent first, and its features, the worst first."""

    unit: str
    num_units: int  # in the references
    num_lines: int
    num_wrong_lines: int
    changes: Counter[Change]
    examples: dict[Change, list[Example]]  # the first ones
    occurrences: Counter[str]  # of units in the references
    features: list[Feature]

    def table(self) -> str:
        head = (
            f"errors       {self.changes.total():,} in {self.num_units:,} {self.unit}; "
            f"{self.num_wrong_lines:,} of {self.num_lines:,} lines are wrong"
        )
        parts = [head]
        if self.changes:
            shown = self.changes.most_common(_SHOWN)
            rows = [["error", "number", "of"]]
            rows += [[str(change), f"{number:,}", self._of(change)] for change, number in shown]
            examples = ["first example", *(str(self.examples[change][0]) for change, _ in shown)]
            lines = table(rows).split("\n")
            width = max(map(len, lines))
            text = [f"{line:<{width}}  {e}" for line, e in zip(lines, examples, strict=True)]
            if more := len(self.changes) - len(shown):
                text.append(f"and {more:,} rarer kinds of errors, which --json lists")
            parts.append("\n".join(text))
        if self.features:
            rows = [["feature", "lines", "exact_match"]]
            rows += [
                [printable(f.name), f"{f.num_lines:,}", f"{f.exact_match:.2f}"]
                for f in self.features
            ]
            parts.append(table(rows))
        return "\n\n".join(parts)

    def _of(self, change: Change) -> str:
        return "-" if change.expected is None else f"{self.occurrences[change.expected]:,}"

    def report(self) -> dict[str, Any]:
        shown = ("line", "source", "reference", "hypothesis")
        changes = [
            {
                **change._asdict(),
                "number": number,
                "of": None if change.expected is None else self.occurrences[change.expected],
                "examples": [
                    {name: getattr(example, name) for name in shown}
                    for example in self.examples[change]
                ],
            }
            for change, number in self.changes.most_common()
        ]
        features = [{**vars(each), "exact_match": each.exact_match} for each in self.features]
        facts = ("unit", "num_units", "num_lines", "num_wrong_lines")
        report = {name: getattr(self, name) for name in facts}
        return {"errors": {**report, "changes": changes, "by_feature": features}}


def find_errors(text: Translated, scoring: Scoring) -> Errors:
    """Align every translation with its reference by the fewest edits, and count these.

    Of several references of a line that with the fewest edits counts, as in error rates.
    """
    changes, occurrences = Counter[Change](), Counter[str]()
    examples: dict[Change, list[Example]] = defaultdict(list)
    rights: dict[str, list[bool]] = defaultdict(list)
    num_wrong, split, units = 0, splitter_of(scoring), scoring.tgt_units
    for number, source, hypothesis, *references in zip(
        text.line_numbers, text.sources, text.hypotheses, *text.references, strict=True
    ):
        written = split(hypothesis)
        distance, _, reference, expected = min(
            (Levenshtein.distance(line, written), len(line), reference, line)
            for reference, line in ((r, split(r)) for r in references if r is not None)
        )
        occurrences.update(expected)
        num_wrong += distance > 0
        for name in dict.fromkeys(feature_names(source.partition(TAB)[2])):
            rights[name].append(distance == 0)
        for change, *around in _changes(expected, written, units.between):
            changes[change] += 1
            if len(examples[change]) < _EXAMPLES:
                examples[change].append(Example(number, source, reference, hypothesis, *around))
    features = [Feature(name, len(lines), sum(lines)) for name, lines in rights.items()]
    return Errors(
        units.name,
        occurrences.total(),
        len(text.hypotheses),
        num_wrong,
        changes,
        examples,
        occurrences,
        sorted(features, key=lambda feature: (feature.exact_match, -feature.num_lines)),
    )


def _changes(
    expected: Sequence[str], written: Sequence[str], between: str
) -> Iterator[tuple[Change, str, str]]:
    """Yield the edits that make what was expected into what was written, and what is around."""

    def around(line: Sequence[str], place: int) -> str:
        first, end = max(0, place - _CONTEXT), place + _CONTEXT + 1
        shown = between.join(line[first:end])
        return f"{'…' * (first > 0)}{shown}{'…' * (end < len(line))}"

    for edit in Levenshtein.editops(expected, written):
        i, j = edit.src_pos, edit.dest_pos
        change = Change(
            None if edit.tag == "insert" else expected[i],
            None if edit.tag == "delete" else written[j],
        )
        yield change, around(expected, i), around(written, j)
