"""Where translations are good and bad: by source length, for rare words, the worst lines.

N lines, F groups of word frequencies.
"""

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from seq2seq_cli.config.metrics import METRICS, Metric
from seq2seq_cli.console import printable, table
from seq2seq_cli.metrics.metrics import (
    CHARACTERS,
    WORDS,
    Scoring,
    TextScore,
    make_metric,
    score_text,
    spaced,
    word_splitter,
)
from seq2seq_cli.metrics.references import References, Texts
from seq2seq_cli.text.features import TAB

_LENGTH_GROUPS = 4
_FREQUENCIES = (0, 1, 10, 100, 1_000)  # the lower bounds of the groups


class Translated(NamedTuple):
    """Text, a system's translation, and one reference translation or more, the first complete."""

    sources: Texts  # with their features after a tab
    hypotheses: Texts
    references: Sequence[References]
    line_numbers: Sequence[int]  # in the text, from 1

    def lines(self, chosen: Sequence[int]) -> "Translated":
        """Return some of the lines, numbered from 0."""
        return Translated(
            [self.sources[i] for i in chosen],
            [self.hypotheses[i] for i in chosen],
            [[references[i] for i in chosen] for references in self.references],
            [self.line_numbers[i] for i in chosen],
        )


NO_TEXT = Translated((), (), ((),), ())


class LengthGroup(NamedTuple):
    """The scores of lines whose sources are about equally long."""

    shortest: int
    longest: int
    unit: str
    num_lines: int
    scores: dict[Metric, TextScore]


def by_source_length(text: Translated, scoring: Scoring) -> list[LengthGroup]:
    """Score up to four groups of lines, from short to long sources, of about as many lines each.

    Lengths are in units of the source, or in characters if no source has two, without features.
    """
    sources = [line.partition(TAB)[0].strip() for line in text.sources]
    units = scoring.src_units
    lengths_N = np.array([len(units.split(line)) for line in sources])
    if lengths_N.max() <= 1:
        units, lengths_N = CHARACTERS, np.array([len(line) for line in sources])
    shares = np.linspace(0, 1, _LENGTH_GROUPS + 1)[1:]
    longest = np.unique(np.quantile(lengths_N, shares, method="inverted_cdf"))
    group_N = np.searchsorted(longest, lengths_N)
    groups = []
    for group in range(len(longest)):
        numbers = np.flatnonzero(group_N == group)
        part, lengths = text.lines(numbers.tolist()), lengths_N[numbers].tolist()
        scores = score_text(part.hypotheses, part.references, scoring)
        groups.append(LengthGroup(min(lengths), max(lengths), units.name, len(lengths), scores))
    return groups


class FrequencyGroup(NamedTuple):
    """How well words are translated that are about equally frequent in the training text."""

    fewest: int  # occurrences in the training text
    most: int | None
    in_references: int
    in_translations: int
    in_both: int
    precision: float | None
    recall: float | None
    f1: float


def by_training_frequency(
    text: Translated, training_lines: Iterable[str], scoring: Scoring
) -> list[FrequencyGroup]:
    """Return precision and recall of words by their frequency in the target text of training.

    A word is right as often as it is in both the translation and the reference of a line, as in
    compare-mt (Neubig et al. 2019); of several references the nearest counts.
    """
    split = splitter_of(scoring)
    hypotheses = [Counter(split(line)) for line in text.hypotheses]
    references: list[Counter[str]] = []
    both: list[Counter[str]] = []
    for words, *targets in zip(hypotheses, *text.references, strict=True):
        counts = [Counter(split(target)) for target in targets if target is not None]
        f1 = [(words & each).total() / max((words + each).total(), 1) for each in counts]
        references.append(counts[int(np.argmax(f1))])
        both.append(references[-1] & words)
    frequency = dict.fromkeys((word for line in references + hypotheses for word in line), 0)
    for training_line in training_lines:
        for word in split(training_line):
            if word in frequency:
                frequency[word] += 1
    counts_F3 = np.zeros((len(_FREQUENCIES), 3), dtype=int)
    for column, lines in enumerate((references, hypotheses, both)):
        for line in lines:
            for word, count in line.items():
                group = bisect.bisect_right(_FREQUENCIES, frequency[word]) - 1
                counts_F3[group, column] += count
    most = [*(bound - 1 for bound in _FREQUENCIES[1:]), None]
    groups = []
    for fewest, last, (expected, written, right) in zip(
        _FREQUENCIES, most, counts_F3.tolist(), strict=True
    ):
        if expected + written:
            precision = 100 * right / written if written else None
            recall = 100 * right / expected if expected else None
            f1 = 200 * right / (expected + written)
            numbers = (expected, written, right, precision, recall, f1)
            groups.append(FrequencyGroup(fewest, last, *numbers))
    return groups


def splitter_of(scoring: Scoring) -> Callable[[str], list[str]]:
    """Return the function that splits a target into units; words are split as BLEU does."""
    units = scoring.tgt_units
    if units == WORDS:
        return word_splitter(scoring.tokenize, scoring.lowercase)
    return lambda line: units.split(spaced(line, lowercase=scoring.lowercase))


@dataclass(frozen=True)
class Breakdown:
    unit: str  # of the targets
    metrics: tuple[Metric, ...]
    by_source_length: list[LengthGroup]
    by_training_frequency: list[FrequencyGroup] | None  # None without the training text

    def table(self) -> str:
        lengths = [["source length", "lines", *self.metrics]]
        for shortest, longest, unit, num_lines, scores in self.by_source_length:
            shown = [f"{score:.2f}" for score in scores.values()]
            lengths.append([f"{_range(shortest, longest)} {unit}", f"{num_lines:,}", *shown])
        if self.by_training_frequency is None:
            return table(lengths)
        words = [[f"{self.unit} seen in training", "number", "precision", "recall", "F1"]]
        for fewest, most, number, _, _, *shares in self.by_training_frequency:
            shown = ["-" if share is None else f"{share:.2f}" for share in shares]
            words.append([f"{_range(fewest, most)} times", f"{number:,}", *shown])
        return f"{table(lengths)}\n\n{table(words)}"

    def report(self) -> dict[str, Any]:
        lengths, words = [group._asdict() for group in self.by_source_length], None
        for facts in lengths:
            for name, score in facts.pop("scores").items():
                facts |= score.report(name)
        if self.by_training_frequency is not None:
            words = [group._asdict() for group in self.by_training_frequency]
        return {"by_source_length": lengths, "by_training_frequency": words}


def _range(first: int, last: int | None) -> str:
    if last is None:
        return f"at least {first:,}"
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def break_down(
    text: Translated, training_lines: Iterable[str] | None, scoring: Scoring
) -> Breakdown:
    """Score parts of a text; without the target text of training, not by its frequencies."""
    words = training_lines and by_training_frequency(text, training_lines, scoring)
    lengths, unit = by_source_length(text, scoring), scoring.tgt_units.name
    return Breakdown(unit, scoring.names, lengths, words or None)


class WorstLines(NamedTuple):
    """The lines with the worst scores of their own, the worst first."""

    metric: Metric
    lines: list[dict[str, Any]]

    def table(self) -> str:
        rows = []
        for line in self.lines:
            rows += [
                f"line {line['line']:,}, {self.metric} {line[self.metric]:.2f}",
                f"  source      {printable(line['source'])}",
                *(f"  reference   {printable(reference)}" for reference in line["references"]),
                f"  hypothesis  {printable(line['hypothesis'])}",
            ]
        return "\n".join(rows)

    def report(self) -> dict[str, Any]:
        return {"worst": self.lines}


def worst_lines(text: Translated, count: int, scoring: Scoring) -> WorstLines:
    """Return the worst lines of a text; of lines that are equally bad, the first."""
    metric = scoring.line_metric
    scorer = make_metric(metric, scoring)
    sign, best = (1, 100.0) if METRICS[metric].higher_is_better else (-1, 0.0)
    if metric == "bleu":
        scorer.effective_order = True  # a short line has no 4-grams
    lines = []
    for number, source, hypothesis, *rest in zip(
        text.line_numbers, text.sources, text.hypotheses, *text.references, strict=True
    ):
        references = [reference for reference in rest if reference is not None]
        score = best
        if hypothesis not in references:  # empty lines have no n-grams
            score = scorer.sentence_score(hypothesis, references).score
        texts = {"source": source, "references": references, "hypothesis": hypothesis}
        lines.append({"line": number, metric: score, **texts})
    return WorstLines(metric, sorted(lines, key=lambda line: sign * line[metric])[:count])
