"""Scores by source length and training frequency, and the worst lines."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from seq2seq_cli.metrics.breakdowns import (
    Translated,
    break_down,
    by_source_length,
    by_training_frequency,
    worst_lines,
)
from seq2seq_cli.metrics.edits import Change, find_errors
from seq2seq_cli.metrics.metrics import CHARACTERS, CLUSTERS, SYMBOLS, WORDS, Scoring, score_text
from seq2seq_cli.metrics.references import References

SCORING = Scoring(("bleu", "exact_match"))


def translated(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[References]
) -> Translated:
    return Translated(sources, hypotheses, references, range(1, len(sources) + 1))


def random_text(num_lines: int) -> Translated:
    generator = random.Random(1)
    lines = [" ".join("abcdefgh"[: generator.randint(1, 8)]) for _ in range(num_lines)]
    hypotheses = [line if generator.random() < 0.6 else "x" for line in lines]
    return translated(lines, hypotheses, [lines])


def test_groups_by_length_partition_the_lines():
    text = random_text(200)
    groups = by_source_length(text, SCORING)
    assert len(groups) == 4
    assert sum(group.num_lines for group in groups) == 200
    assert min(group.num_lines for group in groups) > 20
    bounds = [bound for group in groups for bound in (group.shortest, group.longest)]
    assert bounds == sorted(bounds)
    assert [groups[0].shortest, groups[-1].longest] == [1, 8]
    matches = sum(g.num_lines * g.scores["exact_match"].value for g in groups)
    assert matches / 200 == pytest.approx(
        score_text(text.hypotheses, text.references, SCORING)["exact_match"].value
    )


def test_each_group_has_the_scores_of_its_lines_alone():
    sources = ["a", "a b c d e f", "b", "f e d c b a"]
    text = translated(sources, ["a", "a b c d e x", "b", "x e d c b a"], [sources])
    short, long = by_source_length(text, SCORING)
    assert (short.num_lines, short.scores["exact_match"].value) == (2, 100)
    expected = score_text(text.hypotheses[1::2], [sources[1::2]], SCORING)
    assert long.scores == expected


def test_one_line_and_equal_lengths_make_one_group():
    for sources in (["a b"], ["a b", "c d", "e f"]):
        (group,) = by_source_length(translated(sources, sources, [sources]), SCORING)
        assert (group.shortest, group.longest, group.num_lines) == (2, 2, len(sources))


def test_single_words_are_measured_in_characters():
    sources = ["a", "bb", "ccc", "dddd"]
    groups = by_source_length(translated(sources, sources, [sources]), SCORING)
    assert [group[:3] for group in groups] == [(n, n, "characters") for n in (1, 2, 3, 4)]


def test_words_are_grouped_by_training_frequency():
    """`new` never occurs in training, `rare` three times, `common` fifty times."""
    training = ["rare common"] * 3 + ["common"] * 47
    references = ["new rare common common", "rare"]
    hypotheses = ["rare common wrong", "common"]
    unseen, rare, common = by_training_frequency(
        translated(["s", "s"], hypotheses, [references]), training, SCORING
    )
    assert (unseen.fewest, unseen.most, rare.fewest, rare.most) == (0, 0, 1, 9)
    assert (unseen.in_references, unseen.in_translations, unseen.in_both) == (1, 1, 0)  # wrong
    assert (rare.precision, rare.recall) == (100, 50)
    assert (common.precision, common.recall, common.f1) == (50, 50, 50)


def test_words_are_those_of_bleu():
    text = translated(["s"], ["Well, yes"], [["well , yes"]])
    (group,) = by_training_frequency(text, [], Scoring(("bleu",), "13a", lowercase=True))
    assert group.recall == 100
    (group,) = by_training_frequency(text, [], Scoring(("bleu",), "none"))
    assert group.in_both == 1


def test_perfect_translations_have_all_words_right():
    text = random_text(50)
    perfect = text._replace(hypotheses=text.sources)
    groups = by_training_frequency(perfect, text.sources, SCORING)
    assert {(g.precision, g.recall, g.f1) for g in groups} == {(100, 100, 100)}
    assert sum(g.in_references for g in groups) == sum(len(s.split()) for s in text.sources)


def test_worst_lines_come_first_and_show_no_control_characters():
    references = ["good line", "very bad line", "bad line"]
    text = translated(["a", "b\x1b[2J", "c"], ["good line", "x", "bad lion"], [references])
    worst = worst_lines(text, 2, SCORING)
    assert [line["line"] for line in worst.lines] == [2, 3]
    assert worst.lines[0]["chrf"] < worst.lines[1]["chrf"] < 100
    assert "\x1b" not in worst.table()
    assert len(worst_lines(text, 10, SCORING).lines) == 3


def test_worst_lines_of_merged_references_are_where_their_source_is_first():
    text = Translated(["a", "b"], ["x", "d"], [["x", "c"], [None, "d"]], [1, 3])
    (worst, _) = worst_lines(text, 2, SCORING).lines
    assert (worst["line"], worst["references"]) == (1, ["x"])
    assert worst_lines(text.lines([1]), 1, SCORING).lines[0]["references"] == ["c", "d"]


def test_the_best_of_several_references_counts():
    text = translated(["s"], ["a b"], [["x y"], ["a b"]])
    assert worst_lines(text, 1, SCORING).lines[0]["chrf"] == 100
    assert score_text(text.hypotheses, text.references, SCORING)["exact_match"].value == 100


def test_words_are_compared_with_the_nearest_reference():
    """As scores of translations are: here the second one is right."""
    text = translated(["s", "t"], ["a b", "c"], [["x y", "c"], ["a b", None]])
    (group,) = by_training_frequency(text, [], SCORING)
    assert (group.in_references, group.in_both) == (3, 3)


def test_strings_are_measured_and_counted_in_their_units():
    scoring = replace(SCORING, src_units=CHARACTERS, tgt_units=SYMBOLS)
    text = translated(["ab c", "d"], ["p q", "p"], [["p q", "r"]])
    breakdown = break_down(text, ["p q", "p"], scoring)
    assert all(f"\n{n} characters" in breakdown.table() for n in (1, 4))
    assert "symbols seen in training" in breakdown.table()
    unseen, seen = breakdown.by_training_frequency
    assert (unseen.in_references, seen.in_references, seen.in_both) == (1, 2, 2)


@pytest.mark.parametrize(
    ("metric", "expected"), [("chrf", [1, 2]), ("symbol_error_rate", [2, 1]), ("bleu", [2, 1])]
)
def test_worst_lines_are_those_of_the_metric(metric, expected):
    """Line 1 has one of two symbols wrong, all of whose characters are; line 2 both, by one."""
    text = translated(["a", "b"], ["a wxyz", "bcda bcdb"], [["a bcde", "bcdx bcdy"]])
    lines = worst_lines(text, 2, replace(SCORING, line_metric=metric)).lines
    assert [line["line"] for line in lines] == expected


def test_errors_are_the_fewest_edits_to_the_nearest_reference():
    references = [["k æ t", "d ɒ ɡ", "r ʌ n"], [None, "d ɔː ɡ", None]]
    text = translated(
        ["cat\tN;SG", "dog\tN;PL", "run\tV;SG"], ["k ɛ t s", "d ɔː", "r ʌ n"], references
    )
    errors = find_errors(text, replace(SCORING, tgt_units=SYMBOLS))
    assert errors.changes == {
        Change("æ", "ɛ"): 1,
        Change(None, "s"): 1,
        Change("ɡ", None): 1,
    }
    assert errors.counts == {
        "unit": "symbols",
        "num_units": 9,
        "num_lines": 3,
        "num_wrong_lines": 2,
    }
    assert [(f["name"], f["exact_match"]) for f in errors.features] == [
        ("N", 0), ("PL", 0), ("SG", 50), ("V", 100)
    ]  # fmt: skip
    for shown in ("æ → ɛ", "s inserted", "ɡ dropped", "line 1  cat N;SG: k æ t → k ɛ t s"):
        assert shown in errors.table()
    total = score_text(text.hypotheses, text.references, Scoring(("symbol_error_rate",)))[
        "symbol_error_rate"
    ].value
    assert 100 * errors.changes.total() / errors.counts["num_units"] == pytest.approx(total)
    (first, *_) = errors.report()["errors"]["changes"]
    assert (first["of"], first["examples"][0]["reference"]) == (1, "k æ t")


def test_errors_show_what_cannot_be_seen_alone():
    text = translated(["a"], ["ab"], [["a b\u0301"]])
    shown = {*map(str, find_errors(text, replace(SCORING, tgt_units=CHARACTERS)).changes)}
    assert shown == {"␣ dropped", "◌\u0301 dropped"}
    text = translated(["a"], ["क"], [["का"]])
    (change,) = find_errors(text, replace(SCORING, tgt_units=CHARACTERS)).changes
    assert str(change) == "◌ा dropped"
    text = translated(["a"], ["ab"], [["ab\u0301"]])
    (change,) = find_errors(text, replace(SCORING, tgt_units=CLUSTERS)).changes
    assert str(change) == "b\u0301 → b"


def test_errors_of_sentences_are_words_without_their_punctuation():
    text = translated(["s"], ["The nice girls."], [["The nice girl."]])
    (change,) = find_errors(text, replace(SCORING, tgt_units=WORDS)).changes
    assert str(change) == "girl → girls"


def test_lines_that_differ_in_spaces_alone_are_wrong_as_for_exact_match():
    hypotheses, references = ["Hello , world.", "a b"], ["Hello, world.", "a b"]
    text = translated(["gehen\tV", "gehen\tV"], hypotheses, [references])
    errors = find_errors(text, SCORING).report()["errors"]
    assert (errors["num_wrong_lines"], errors["by_feature"][0]["num_right"]) == (1, 1)
    assert errors["changes"] == []


def test_without_training_text_there_are_no_frequencies():
    text = random_text(20)
    assert break_down(text, None, SCORING).report()["by_training_frequency"] is None
    assert "training" not in break_down(text, None, SCORING).table()
    assert "words seen in training" in break_down(text, text.sources, SCORING).table()
