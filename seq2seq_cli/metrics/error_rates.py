"""Error rates as metrics of sacreBLEU's kind, for its tests of significance.

Those of characters and symbols divide edits by the length of the references, summed over the text;
the edits of a line are its Levenshtein distance to a reference: insertions, deletions and
substitutions.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rapidfuzz.distance import Levenshtein
from sacrebleu.metrics.base import Metric, Score, Signature

from seq2seq_cli.metrics.exact_match import ExactMatch, spaced


class ErrorRate(Metric):
    """Edits per 100 units of the references; of several of a line, that with the fewest edits."""

    _SIGNATURE_TYPE = Signature

    def __init__(self, units_of: Callable[[str], Sequence[str]], lowercase: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._units_of = units_of
        self._lowercase = lowercase

    def _preprocess_segment(self, sent: str) -> str:
        return spaced(sent, lowercase=self._lowercase)

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"references": [self._units_of(reference) for reference in refs]}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[int]:
        """Return the edits of one line, and the length of the reference that needs the fewest."""
        units = self._units_of(hypothesis)
        found = [[Levenshtein.distance(units, ref), len(ref)] for ref in ref_kwargs["references"]]
        return min(found)

    def _compute_score_from_stats(self, stats: Sequence[float]) -> Score:
        edits, length = stats
        return Score("error_rate", 100 * edits / max(length, 1))

    def _aggregate_and_compute(self, stats: Sequence[Sequence[int]]) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])


class WordErrorRate(ExactMatch):
    """Percentage of lines that differ from every reference: 100 - exact match.

    It is the word error rate of corpora with a word on each line (Gorman et al. 2020, "The
    SIGMORPHON 2020 Shared Task on Multilingual Grapheme-to-Phoneme Conversion").
    """

    def _compute_score_from_stats(self, stats: Sequence[float]) -> Score:
        return Score("wer", 100 - super()._compute_score_from_stats(stats).score)
