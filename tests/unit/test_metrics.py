import pytest

from seq2seq_cli.text.metrics import score_text

REFERENCES = ["The cat sat on the mat .", "It is raining , is it not ?", "你好"]


def test_a_text_scores_full_marks_against_itself():
    scores = score_text(REFERENCES, REFERENCES)
    assert scores.bleu == pytest.approx(100)
    assert scores.chrf == pytest.approx(100)
    assert scores.exact_match == 100


def test_empty_translations_score_nothing():
    scores = score_text([""] * 3, REFERENCES)
    assert (scores.bleu, scores.chrf, scores.exact_match) == (0, 0, 0)


def test_bleu_is_the_papers_on_a_case_worked_by_hand():
    """4-gram precisions 5/6, 3/5, 2/4, 1/3 and no brevity penalty."""
    scores = score_text(["the cat sat on a mat"], ["the cat sat on the mat"])
    assert scores.bleu == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)


def test_exact_match_counts_lines():
    assert score_text(["a", "b ", "c"], ["a", "b", "d"]).exact_match == pytest.approx(200 / 3)


def test_the_signatures_say_what_was_measured():
    scores = score_text(REFERENCES, REFERENCES, "zh")
    assert "tok:zh" in scores.bleu_signature
    assert "case:mixed" in scores.bleu_signature
    assert scores.chrf_signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0")
