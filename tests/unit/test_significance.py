"""Intervals and paired tests equal sacreBLEU's; p-values of systems that hardly differ are high."""

import random

import numpy as np
import pytest
from sacrebleu.significance import PairedTest

from seq2seq_cli.config.metrics import Metric
from seq2seq_cli.metrics.metrics import Scoring, make_metric, score_text, statistics_of
from seq2seq_cli.metrics.significance import PAIRED_TESTS, TestName

NAMES: tuple[Metric, ...] = (
    "bleu",
    "chrf",
    "chrf++",
    "ter",
    "exact_match",
    "symbol_error_rate",
    "cer",
    "exact_match_error",
)
SCORING = Scoring(NAMES, resamples=80)
TRIALS = 100
WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "big", "and"]


def damaged(lines: list[str], rate: float, seed: int) -> list[str]:
    """The lines, with some of the words replaced."""
    generator = random.Random(seed)
    return [
        " ".join(generator.choice(WORDS) if generator.random() < rate else w for w in line.split())
        for line in lines
    ]


generator = random.Random(1)
REFERENCES = [" ".join(generator.choices(WORDS, k=generator.randint(3, 12))) for _ in range(80)]
FIRST, SECOND = damaged(REFERENCES, 0.2, seed=2), damaged(REFERENCES, 0.22, seed=10)


def p_value(test: TestName, name: Metric, first: list[str], second: list[str]) -> float:
    both = [statistics_of(name, lines, [REFERENCES], SCORING) for lines in (first, second)]
    return PAIRED_TESTS[test].p_value(*both, TRIALS)


@pytest.mark.parametrize("name", NAMES)
def test_intervals_are_those_of_sacrebleu(name):
    ours = score_text(FIRST, [REFERENCES], SCORING)[name]
    metric = make_metric(name, SCORING)
    theirs = metric.corpus_score(FIRST, [REFERENCES], n_bootstrap=80)
    assert ours.value == theirs.score
    assert ours.interval.low <= ours.value <= ours.interval.high
    assert ours.interval.half_width == pytest.approx(theirs._ci, rel=1e-5)
    assert ours.signature in (None, metric.get_signature().format())


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_long_text_has_the_score_and_signature_of_sacrebleu(name):
    """Its lines are read part by part; only those of the first part have two references."""
    first, second = FIRST * 15, [*SECOND * 12, *REFERENCES[:40], *[None] * 200]
    ours, metric = (
        statistics_of(name, first, [REFERENCES * 15, second], SCORING),
        make_metric(name, SCORING),
    )
    assert ours.score == metric.corpus_score(first, [REFERENCES * 15, second]).score
    assert ours.metric.get_signature().format() == metric.get_signature().format()


def test_interval_holds_95_percent_of_the_resampled_scores():
    statistics = statistics_of("chrf", FIRST, [REFERENCES], SCORING)
    resampled = statistics.resampled_scores(SCORING.resamples)
    interval = score_text(FIRST, [REFERENCES], SCORING)["chrf"].interval
    inside = (interval.low <= resampled) & (resampled <= interval.high)
    assert inside.mean() == 0.95


def test_interval_of_exact_match_is_that_of_a_share():
    """Half of the lines match: the standard error is half of 1/√lines."""
    hypotheses = [line if i % 2 else "x" for i, line in enumerate(REFERENCES)]
    score = score_text(hypotheses, [REFERENCES], Scoring(("exact_match",), resamples=2_000))
    interval = score["exact_match"].interval
    expected = 100 * 1.96 * 0.5 / np.sqrt(len(REFERENCES))
    assert interval.half_width == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(("test", "theirs"), [("randomization", "ar"), ("bootstrap", "bs")])
def test_p_values_are_those_of_sacrebleu(test, theirs):
    """But for ties, which these scores of whole texts hardly have."""
    names: list[Metric] = ["bleu", "chrf"]
    metrics = {str(name): make_metric(name, SCORING) for name in names}
    systems = [("first", FIRST), ("second", SECOND)]
    _, results = PairedTest(systems, metrics, [REFERENCES], test_type=theirs, n_samples=TRIALS)()
    del results["System"]
    for name, (_, second) in zip(names, results.values(), strict=True):
        assert 0.01 < second.p_value < 0.99
        assert p_value(test, name, FIRST, SECOND) == pytest.approx(second.p_value, abs=1e-9)


@pytest.mark.parametrize("test", PAIRED_TESTS)
@pytest.mark.parametrize("name", ["bleu", "exact_match"])
def test_equal_translations_do_not_differ_significantly(test, name):
    assert p_value(test, name, FIRST, FIRST) == 1


@pytest.mark.parametrize("name", ["bleu", "ter", "exact_match"])
def test_one_better_line_is_not_significant(name):
    """Exchanging it or not gives the same absolute difference: every trial is as extreme."""
    better = [REFERENCES[0], *["x"] * 79]
    assert p_value("randomization", name, ["x"] * 80, better) == 1


@pytest.mark.parametrize("test", PAIRED_TESTS)
@pytest.mark.parametrize("name", ["bleu", "exact_match"])
def test_perfect_translations_are_significantly_better(test, name):
    assert p_value(test, name, REFERENCES, damaged(REFERENCES, 0.5, seed=4)) == 1 / (TRIALS + 1)


def test_few_differing_lines_have_the_p_value_of_all_their_exchanges():
    """Three better lines: two of the eight exchanges differ as much."""
    worse = ["x"] * 80
    better = [*REFERENCES[:3], *worse[3:]]
    assert p_value("randomization", "exact_match", worse, better) == pytest.approx(1 / 4, abs=0.1)
