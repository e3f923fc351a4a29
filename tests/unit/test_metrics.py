from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.ter import TER

from seq2seq_cli.config.metrics import METRICS, TEXT_METRICS, Metric
from seq2seq_cli.config.schema import Config, ValidationConfig
from seq2seq_cli.metrics.metrics import Scoring, TextScore, make_metric, score_text
from seq2seq_cli.metrics.references import PublicTestSet, group_by_source, references_of
from seq2seq_cli.text.corpus import Pair

REFERENCES = ["The cat sat on the mat .", "It is raining , is it not ?", "你好"]
ALL = ValidationConfig(metrics=("ter", "symbol_error_rate", "cer", "exact_match_error"))
PERFECT = {"bleu": 100, "chrf": 100, "exact_match": 100} | dict.fromkeys(ALL.metrics, 0)


def scores(
    hypotheses: list[str], references: list[str], options: ValidationConfig = ALL
) -> dict[Metric, TextScore]:
    return score_text(hypotheses, [references], Scoring.of(options))


def values(hypotheses: list[str], references: list[str], options: ValidationConfig = ALL) -> dict:
    return {name: score.value for name, score in scores(hypotheses, references, options).items()}


def test_text_scores_perfectly_against_itself():
    assert values(REFERENCES, REFERENCES) == pytest.approx(PERFECT)


def test_empty_translations_score_zero():
    worst = {"bleu": 0, "chrf": 0, "exact_match": 0} | dict.fromkeys(ALL.metrics, 100)
    assert values([""] * 3, REFERENCES) == pytest.approx(worst)


def test_a_run_without_validation_text_can_be_evaluated():
    """Its `validation.metric` stays auto."""
    config = Config.model_validate({"data": {"train": []}})
    assert config.validation.metric == "auto"
    assert Scoring.of_run(config).line_metric == "chrf"


def test_every_metric_is_registered():
    assert ["auto", *METRICS] == list(get_args(Metric))
    for name in TEXT_METRICS:  # each has a scorer
        assert make_metric(name, Scoring((name,))).sentence_score("a b", ["a b"]).score in (0, 100)
    errors = ["loss", "perplexity", "ter", "symbol_error_rate", "cer", "exact_match_error"]
    assert [name for name in METRICS if not METRICS[name].higher_is_better] == errors


def test_bleu_matches_a_case_worked_by_hand():
    """4-gram precisions 5/6, 3/5, 2/4, 1/3 and no brevity penalty."""
    bleu = values(["the cat sat on a mat"], ["the cat sat on the mat"])["bleu"]
    assert bleu == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)


def test_ter_matches_cases_worked_by_hand():
    """A substitution, an insertion and a shift are one edit each."""
    reference = "the cat sat on the mat"
    assert values(["the dog sat on the mat"], [reference])["ter"] == pytest.approx(100 / 6)
    assert values(["the cat sat on the old mat"], [reference])["ter"] == pytest.approx(100 / 6)
    assert values(["sat on the cat the mat"], [reference])["ter"] == pytest.approx(100 / 6)
    assert values(["a b c d e f g h"], ["x y"])["ter"] == pytest.approx(400)
    assert values(["今天天气好"], ["今天天气"], ValidationConfig(metric="ter", bleu_tokenize="zh"))[
        "ter"
    ] == pytest.approx(25)


def test_error_rates_are_computed_on_request_only():
    assert list(scores(REFERENCES, REFERENCES, ValidationConfig())) == [
        "bleu",
        "chrf",
        "exact_match",
    ]


def test_chrf_plus_plus_is_computed_if_it_chooses_the_best_model():
    found = scores(["the cat sat"], ["the dog sat"], ValidationConfig(metric="chrf++"))
    assert list(found) == ["bleu", "chrf", "chrf++", "exact_match"]
    assert "nw:2" in (found["chrf++"].signature or "")
    assert found["chrf++"].value != found["chrf"].value


def test_exact_match_and_word_error_rate_count_lines():
    found = values(["a", "b ", "c"], ["a", "b", "d"])
    assert (found["exact_match"], found["exact_match_error"]) == pytest.approx((200 / 3, 100 / 3))


def test_error_rates_match_cases_worked_by_hand():
    """A deletion and a substitution of 3 + 2 symbols, and of 8 + 3 characters."""
    found = values(["t͡ɕ͈ a", "a x"], ["t͡ɕ͈ a n", "a b"])
    assert found["symbol_error_rate"] == pytest.approx(100 * 2 / 5)
    assert found["cer"] == pytest.approx(100 * 3 / 11)


def edit_distance(a: str, b: str) -> int:
    """By the recursion of Levenshtein 1966."""
    if not (a and b):
        return len(a) + len(b)
    changed = edit_distance(a[1:], b[1:]) + (a[0] != b[0])
    return min(changed, edit_distance(a[1:], b) + 1, edit_distance(a, b[1:]) + 1)


@given(st.lists(st.tuples(*[st.text("ab", max_size=4)] * 2), min_size=1, max_size=5))
def test_error_rates_sum_edits_and_lengths(lines):
    edits = sum(edit_distance(a, b) for a, b in lines)
    length = sum(len(b) for _, b in lines)
    hypotheses, references = zip(*lines, strict=True)
    assert values(hypotheses, references)["cer"] == pytest.approx(100 * edits / max(length, 1))
    spaced = [[" ".join(line) for line in side] for side in (hypotheses, references)]
    assert values(*spaced)["symbol_error_rate"] == pytest.approx(100 * edits / max(length, 1))


def test_the_reference_with_the_fewest_edits_counts():
    """One edit of one symbol rather than two of four, though half of the symbols are right then."""
    found = score_text(["a b", "c"], [["a b x y", "c"], ["b", "x"]], Scoring.of(ALL))
    assert found["symbol_error_rate"].value == pytest.approx(100 * 1 / 2)
    assert found["exact_match_error"].value == 50


def test_metrics_are_case_sensitive_by_default():
    shouted = [line.upper() for line in REFERENCES]
    cased = values(shouted, REFERENCES)
    assert cased["bleu"] < 20
    assert cased["ter"] > 50
    assert cased["exact_match"] == pytest.approx(100 / 3)
    aside = ValidationConfig(metrics=ALL.metrics, lowercase=True)
    assert values(shouted, REFERENCES, aside) == pytest.approx(PERFECT)
    signatures = [one.signature for one in scores(shouted, REFERENCES, aside).values()]
    assert all("case:lc" in one for one in signatures if one)
    ter = TER().corpus_score(["A b"], [["a C"]]).score  # sacrebleu's own default is without case
    assert values(["A b"], ["a C"], aside)["ter"] == ter


def test_sacrebleu_signatures():
    found = scores(REFERENCES, REFERENCES, ValidationConfig(metric="ter", bleu_tokenize="zh"))
    signatures = {name: score.signature or "" for name, score in found.items()}
    assert "tok:zh" in signatures["bleu"]
    assert "case:mixed" in signatures["bleu"]
    assert signatures["chrf"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0")
    assert "case:mixed|tok:tercom|norm:yes|punct:yes|asian:yes" in signatures["ter"]


def test_sacrebleu_does_not_warn_of_tokenized_text(caplog):
    """It would name an option of its own; `check` warns."""
    lines = ["the cat sat on the mat ."] * 100
    assert values(lines, lines)["bleu"] == pytest.approx(100)
    assert not caplog.records


@pytest.mark.parametrize(
    ("given", "metrics"),
    [({"ter": True}, ("ter",)), ({"ter": False}, ()), ({"ter": True, "decode": False}, ())],
)
def test_the_option_of_earlier_versions_is_read(given, metrics):
    assert ValidationConfig.model_validate(given).metrics == metrics


# Several references


LINES = ["tomato", "cat", "tomato", "dog", "tomato"]
TARGETS = ["t ə m aː", "k æ t", "t ə m eɪ", "d ɒ ɡ", "t ə m aː t"]


def test_lines_of_one_source_are_merged():
    pairs = [Pair(*pair) for pair in zip(LINES, TARGETS, strict=True)]
    lines = group_by_source(pairs, merge=True)
    assert lines == [[0, 2, 4], [1], [3]]
    references = references_of(TARGETS, lines)
    assert references == [
        ["t ə m aː", "k æ t", "d ɒ ɡ"],
        ["t ə m eɪ", None, None],
        ["t ə m aː t", None, None],
    ]
    hypotheses = ["t ə m eɪ", "k æ t", "d ɒ"]
    found = score_text(hypotheses, references, Scoring.of(ALL))
    assert found["exact_match_error"].value == pytest.approx(100 / 3)
    assert found["symbol_error_rate"].value == pytest.approx(100 * 1 / 10)
    given = list(zip(*references, strict=True))
    for name in ("bleu", "chrf", "ter"):
        metric = make_metric(name, Scoring.of(ALL))
        rows = [
            metric._extract_corpus_statistics([text], [[r] for r in several if r is not None])[0]
            for text, several in zip(hypotheses, given, strict=True)
        ]
        assert found[name].value == pytest.approx(metric._aggregate_and_compute(rows).score)


def test_without_merging_each_line_is_by_itself():
    pairs = [Pair(*pair) for pair in zip(LINES, TARGETS, strict=True)]
    lines = group_by_source(pairs, merge=False)
    assert lines == [[n] for n in range(5)]
    assert references_of(TARGETS, lines) == [TARGETS]
    assert references_of([], group_by_source([], merge=True)) == [[]]


def test_a_source_with_another_tag_is_another_source():
    pairs = [Pair("a", "b", "<x>"), Pair("a", "c"), Pair("a", "d", "<x>")]
    assert group_by_source(pairs, merge=True) == [[0, 2], [1]]


def test_public_test_sets_are_not_merged():
    options = ValidationConfig(merge_references=True)
    assert Scoring.of(options).merge_references
    public = PublicTestSet("wmt14", "de-en", Path("src"), (Path("ref"),))
    assert not Scoring.of(options, test_set=public).merge_references


def test_former_names_of_metrics_are_read():
    options = ValidationConfig.model_validate({"metric": "wer", "metrics": ["ser"]})
    assert (options.metric, options.metrics) == ("exact_match_error", ("symbol_error_rate",))
    assert Scoring.of(options, "wer, per").names == ("symbol_error_rate", "exact_match_error")
