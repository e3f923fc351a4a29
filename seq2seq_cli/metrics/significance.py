"""Bootstrap intervals and paired tests of significance, on sacreBLEU's statistics of lines.

They equal sacreBLEU's (`--confidence`, `--paired-ar`, `--paired-bs`), with the same random
numbers, with two exceptions. Memory does not grow with the number of resamples. A p-value is the
probability of a difference at least as large as the measured one, as usual. sacreBLEU counts larger
ones only, so that its randomization test gives 0.0001 to systems that differ in a single line, or
in none.

L lines, K statistics of a line (such as its matching n-grams), R resamples or trials.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from seq2seq_cli.metrics.references import References, Texts

TestName = Literal["randomization", "bootstrap"]
Vector = npt.NDArray[np.float64]

SEED = 12_345  # sacreBLEU's own, like the number of resamples
RESAMPLES = 1_000
_LINES_AT_ONCE = 1_000  # sacreBLEU keeps the n-grams of their references
_AT_ONCE = 1 << 24  # random numbers; 128 MiB of memory
_ROUNDING = 1e-9


class Interval(NamedTuple):
    """A 95% confidence interval."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        """The number that sacreBLEU prints after ±."""
        return (self.high - self.low) / 2


class LineStatistics:
    """The statistics of every line of a system, of which a metric computes its score."""

    def __init__(self, metric: Any, hypotheses: Texts, references: Sequence[References]) -> None:
        rows, nums_refs = [], set()
        for start in range(0, len(hypotheses), _LINES_AT_ONCE):
            some = slice(start, start + _LINES_AT_ONCE)
            parts = [one[some] for one in references]
            rows += metric._extract_corpus_statistics(hypotheses[some], parts)
            nums_refs.add(metric.num_refs)
        metric.num_refs = nums_refs.pop() if len(nums_refs) == 1 else -1  # of the signature
        self.score: float = metric._aggregate_and_compute(rows).score
        self.values_LK = np.array(rows, dtype=np.float64)
        self.metric = metric

    def score_of(self, sums_K: Vector) -> float:
        """Return the score of text with these sums of statistics."""
        return cast(float, self.metric._compute_score_from_stats(sums_K.tolist()).score)

    def resampled_scores(self, count: int) -> Vector:
        """Return the scores of `count` resampled texts; the lines depend on their number only."""
        random, num_lines = np.random.default_rng(SEED), len(self.values_LK)
        draws = (random.choice(num_lines, num_lines) for _ in range(count))
        drawn = (np.bincount(draw, minlength=num_lines) for draw in draws)
        return np.array([self.score_of(times_L @ self.values_LK) for times_L in drawn])


def interval_of(scores: Vector) -> Interval:
    """Return the bounds between which 95% of the resampled scores lie (Koehn 2004)."""
    cut = len(scores) // 40
    ordered = np.sort(scores)
    return Interval(float(ordered[cut]), float(ordered[len(scores) - cut - 1]))


def _randomization(first: LineStatistics, second: LineStatistics, trials: int) -> float:
    """Paired approximate randomization (Noreen 1989; Riezler and Maxwell 2005).

    In each trial the two systems exchange the translations of half the lines, at random.
    """
    random, num_lines = np.random.default_rng(SEED), len(first.values_LK)
    measured = abs(first.score - second.score) - _ROUNDING
    both_K = first.values_LK.sum(0) + second.values_LK.sum(0)
    num_greater, at_once = 0, max(1, _AT_ONCE // num_lines)
    for start in range(0, trials, at_once):
        size = (min(at_once, trials - start), num_lines)
        keeps_RL = random.integers(2, size=size, dtype=bool)
        sums_RK = keeps_RL @ (first.values_LK - second.values_LK) + second.values_LK.sum(0)
        num_greater += sum(
            abs(first.score_of(sums_K) - first.score_of(both_K - sums_K)) >= measured
            for sums_K in sums_RK
        )
    return (num_greater + 1) / (trials + 1)


def _bootstrap(first: LineStatistics, second: LineStatistics, resamples: int) -> float:
    """Paired bootstrap resampling (Koehn 2004), of the centered difference as in Moses."""
    scores = (system.resampled_scores(resamples) for system in (first, second))
    differences = np.abs(np.subtract(*scores))
    measured = abs(first.score - second.score) - _ROUNDING
    num_greater = int((differences - differences.mean() >= measured).sum())
    return (num_greater + 1) / (resamples + 1)


class PairedTest(NamedTuple):
    title: str
    trials: int  # by default, as in sacreBLEU
    p_value: Callable[[LineStatistics, LineStatistics, int], float]


PAIRED_TESTS: dict[TestName, PairedTest] = {
    "randomization": PairedTest("paired approximate randomization", 10_000, _randomization),
    "bootstrap": PairedTest("paired bootstrap resampling", 1_000, _bootstrap),
}
