"""`eval --errors`: what translations insert, drop and replace, and which features go wrong."""

import functools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from unicodedata import category

from rapidfuzz.distance import Levenshtein

from seq2seq_cli.console import columns_of, padded, printable, table
from seq2seq_cli.metrics.breakdowns import Translated, splitter_of
from seq2seq_cli.metrics.metrics import Scoring, spaced
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


def _visible(unit: str) -> str:
    """Return a unit so that it can be seen alone: a space, or a mark that needs a letter."""
    unit = "␣" if unit == " " else unit
    return printable(f"◌{unit}" if category(unit[:1] or " ")[0] == "M" else unit)


@dataclass(frozen=True)
class Errors:
    """The errors of a text by kind, the most frequent first, and its features, the worst first."""

    counts: dict[str, Any]  # the unit, units of the references, lines, wrong lines
    changes: Counter[Change]
    occurrences: Counter[str]  # of units in the references
    examples: dict[Change, list[dict[str, Any]]]  # the first lines with an error
    shown: dict[Change, str]  # the first example, in a table
    features: list[dict[str, Any]]  # how many lines are right whose source has a feature

    def table(self) -> str:
        counts = self.counts
        head = (
            f"errors       {self.changes.total():,} in {counts['num_units']:,} {counts['unit']}; "
            f"{counts['num_wrong_lines']:,} of {counts['num_lines']:,} lines are wrong"
        )
        parts = [head]
        if self.changes:
            common = self.changes.most_common(_SHOWN)
            rows = [["error", "number", "of"]]
            for change, number in common:
                of = "-" if change.expected is None else f"{self.occurrences[change.expected]:,}"
                rows.append([str(change), f"{number:,}", of])
            examples = ["first example", *(self.shown[change] for change, _ in common)]
            lines = table(rows).split("\n")
            width = max(map(columns_of, lines))
            text = [f"{padded(line, width)}  {e}" for line, e in zip(lines, examples, strict=True)]
            if more := len(self.changes) - len(common):
                text.append(f"and {more:,} rarer kinds of errors, which --json lists")
            parts.append("\n".join(text))
        if self.features:
            rows = [["feature", "lines", "exact_match"]]
            rows += [
                [f["name"], f"{f['num_lines']:,}", f"{f['exact_match']:.2f}"] for f in self.features
            ]
            parts.append(table(rows))
        return "\n\n".join(parts)

    def report(self) -> dict[str, Any]:
        changes = [
            {
                **change._asdict(),
                "number": number,
                "of": None if change.expected is None else self.occurrences[change.expected],
                "examples": self.examples[change],
            }
            for change, number in self.changes.most_common()
        ]
        return {"errors": {**self.counts, "changes": changes, "by_feature": self.features}}


def find_errors(text: Translated, scoring: Scoring) -> Errors:
    """Count the edits from each translation to the reference that needs the fewest of them."""
    changes, occurrences = Counter[Change](), Counter[str]()
    examples: dict[Change, list[dict[str, Any]]] = defaultdict(list)
    shown: dict[Change, str] = {}
    rights: dict[str, list[bool]] = defaultdict(list)
    num_wrong, split, units = 0, splitter_of(scoring), scoring.tgt_units
    normal = functools.partial(spaced, lowercase=scoring.lowercase)
    for number, source, hypothesis, *references in zip(
        text.line_numbers, text.sources, text.hypotheses, *text.references, strict=True
    ):
        written = split(hypothesis)
        _, _, reference, expected = min(
            (Levenshtein.distance(line, written), len(line), reference, line)
            for reference, line in ((r, split(r)) for r in references if r is not None)
        )
        occurrences.update(expected)
        # As for exact match: spaces that are not between tokens count.
        is_right = normal(hypothesis) in {normal(line) for line in references if line is not None}
        num_wrong += not is_right
        for name in dict.fromkeys(feature_names(source.partition(TAB)[2])):
            rights[name].append(is_right)
        sides = {"source": source, "reference": reference, "hypothesis": hypothesis}
        start = source.replace(TAB, " ")
        start = start if len(start) <= _LONGEST_SOURCE else f"{start[:_LONGEST_SOURCE]}…"
        for edit in Levenshtein.editops(expected, written):
            change = Change(
                None if edit.tag == "insert" else expected[edit.src_pos],
                None if edit.tag == "delete" else written[edit.dest_pos],
            )
            changes[change] += 1
            if len(examples[change]) < _EXAMPLES:
                examples[change].append({"line": number, **sides})
            if change not in shown:
                before = _around(expected, edit.src_pos, units.between)
                after = _around(written, edit.dest_pos, units.between)
                shown[change] = printable(f"line {number:,}  {start}: {before} → {after}")
    features: list[dict[str, Any]] = [
        {
            "name": name,
            "num_lines": len(lines),
            "num_right": sum(lines),
            "exact_match": 100 * sum(lines) / len(lines),
        }
        for name, lines in rights.items()
    ]
    features.sort(key=lambda feature: (feature["exact_match"], -feature["num_lines"]))
    counts = {
        "unit": units.name,
        "num_units": occurrences.total(),
        "num_lines": len(text.hypotheses),
        "num_wrong_lines": num_wrong,
    }
    return Errors(counts, changes, occurrences, examples, shown, features)


def _around(line: Sequence[str], place: int, between: str) -> str:
    first, end = max(0, place - _CONTEXT), place + _CONTEXT + 1
    return f"{'…' * (first > 0)}{between.join(line[first:end])}{'…' * (end < len(line))}"
