"""Exact match as a metric of sacreBLEU's kind, for its tests of significance."""

from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.base import Metric, Score, Signature


def spaced(line: str, *, lowercase: bool) -> str:
    """Return a line with single spaces, as lines are compared."""
    return " ".join((line.lower() if lowercase else line).split())


class ExactMatch(Metric):
    """Percentage of lines that equal a reference apart from white space."""

    _SIGNATURE_TYPE = Signature

    def __init__(self, lowercase: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._lowercase = lowercase

    def _preprocess_segment(self, sent: str) -> str:
        return spaced(sent, lowercase=self._lowercase)

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"references": set(refs)}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[int]:
        """Return the number of matches and of lines, of one line."""
        return [int(hypothesis in ref_kwargs["references"]), 1]

    def _compute_score_from_stats(self, stats: Sequence[float]) -> Score:
        matches, lines = stats
        return Score("exact_match", 100 * matches / lines)

    def _aggregate_and_compute(self, stats: Sequence[Sequence[int]]) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])
