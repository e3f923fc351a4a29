"""The scores of `eval` and validation: normalization, case, TER."""

import json
from pathlib import Path

import pytest
from commands import Command, logged_points
from number_task import numbers_config, write_config

PAIRS = {
    "src": ["Ein Bier, bitte, für MICH allein!", "Zwei Biere für Dich und mich."],
    "tgt": ["One Beer, please, for ME ﬁrst!", "Ｔｗｏ Beers for You and me."],
}


@pytest.fixture(scope="module")
def by_heart(tmp_path_factory: pytest.TempPathFactory, seq2seq: Command) -> Path:
    """A run that has memorized its two pairs, lower-cased."""
    folder = tmp_path_factory.mktemp("heart")
    for side, lines in PAIRS.items():
        (folder / side).write_text("".join(f"{line}\n" for line in lines))
    text = {side: str(folder / side) for side in PAIRS}
    config = {
        "data": {"train": text, "valid": text},
        "tokenizer": {"kind": "bpe", "vocab_size": 300, "normalization": "nfkc_cf"},
        "model": {"d_model": 32, "heads": 2, "layers": 1, "d_ff": 32, "dropout": 0.0},
        "training": {"max_steps": 80, "lr": 1e-2, "warmup_steps": 5, "label_smoothing": 0.0},
        "validation": {"every": 80, "unit": "steps", "metric": "exact_match"},
    }
    run = folder / "run"
    seq2seq("train", write_config(folder, config), "--run-dir", run).ok()
    return run


@pytest.mark.slow
def test_references_are_normalized_like_the_target(by_heart, seq2seq):
    """The model can only write lower case, and a perfect model gets a perfect score."""
    found = json.loads(seq2seq("eval", by_heart, "--json").stdout)
    assert (found["exact_match"], found["bleu"]) == (100, pytest.approx(100))
    assert found["num_normalized_references"] == 2
    table = seq2seq("eval", by_heart).stdout.splitlines()
    assert table[-1] == "references   2 of 2 changed by tokenizer.normalization"
    assert logged_points(by_heart)[-1]["valid/exact_match"] == 100


def test_references_are_unchanged_without_normalization(trained, seq2seq):
    assert json.loads(seq2seq("eval", trained, "--json").stdout)["num_normalized_references"] == 0
    assert "references" not in seq2seq("eval", trained).stdout


def test_eval_with_lowercase_and_error_rates(trained, numbers, seq2seq, tmp_path):
    (tmp_path / "ref").write_text((numbers / "test.tgt").read_text().title())
    files = ("--src", numbers / "test.src", "--ref", tmp_path / "ref", "--json")
    files += ("--metrics", "exact_match,ter,symbol_error_rate,cer,exact_match_error")
    cased = json.loads(seq2seq("eval", trained, *files).stdout)
    assert (
        cased["exact_match"],
        cased["ter"],
        cased["symbol_error_rate"],
        cased["exact_match_error"],
    ) == (0, 100, 100, 100)
    aside = json.loads(
        seq2seq("eval", trained, *files, "--set", "validation.lowercase=true").stdout
    )
    assert aside["exact_match"] >= 95
    assert aside["ter"] <= 5
    assert (
        aside["cer"]
        <= aside["symbol_error_rate"]
        <= aside["exact_match_error"]
        == 100 - aside["exact_match"]
    )
    assert "case:lc" in aside["ter_signature"]
    message = seq2seq("eval", trained, "--set", "validation.samples=3").error()
    assert (
        "takes only decoding.* options and validation.bleu_tokenize, lowercase and merge_references"
        in message
    )


@pytest.mark.slow
def test_best_model_by_ter_has_the_lowest(seq2seq, tmp_path):
    config = numbers_config(tmp_path, max_steps=60, warmup_steps=10)
    config["validation"] = {
        "every": 20,
        "unit": "steps",
        "metric": "ter",
        "metrics": ["ser", "wer"],
    }
    run = tmp_path / "run"
    result = seq2seq("train", write_config(tmp_path, config), "--run-dir", run).ok()
    scores = {p["step"]: p["valid/ter"] for p in logged_points(run) if "valid/ter" in p}
    best = min(scores, key=lambda step: scores[step])
    assert len(set(scores.values())) > 1
    assert f"is the best, of step {best}, with validation ter {scores[best]:.3f}" in result.stderr
    found = json.loads(seq2seq("eval", run, "--json").stdout)
    assert found["ter"] == scores[best]
    assert "valid/symbol_error_rate" in logged_points(run)[-1]  # under their present names
    assert found["exact_match_error"] == 100 - found["exact_match"]
    assert "symbol_error_rate" in found


def test_a_source_has_the_references_of_all_its_lines(trained, numbers, seq2seq, tmp_path):
    src, tgt = ((numbers / f"test.{end}").read_text().splitlines()[:20] for end in ("src", "tgt"))
    assert len({*src}) == 20
    (tmp_path / "src").write_text("".join(f"{line}\n" for line in src * 2))
    (tmp_path / "ref").write_text("".join(f"{line}\n" for line in ["?"] * 20 + tgt))
    (tmp_path / "hyp").write_text("".join(f"{line}\n" for line in tgt * 2))
    files = ("--src", tmp_path / "src", "--ref", tmp_path / "ref", "--json")
    files += ("--metrics", "exact_match,bleu")
    merge = ("--set", "validation.merge_references=true")
    apart = json.loads(seq2seq("eval", trained, *files).stdout)
    merged = json.loads(seq2seq("eval", trained, *files, *merge, "--worst", 1).stdout)
    assert apart["exact_match"] <= 50
    assert merged["exact_match"] >= 95
    assert merged["loss"] == apart["loss"]
    assert (merged["num_lines"], merged["num_sources"], apart["num_sources"]) == (40, 20, 40)
    assert len(merged["worst"][0]["references"]) == 2
    assert merged["worst"][0]["line"] <= 20
    hypotheses = ("--hypotheses", tmp_path / "hyp")
    compared = json.loads(seq2seq("compare", trained, *hypotheses, *files, *merge).stdout)
    assert (compared["num_lines"], compared["num_sources"]) == (40, 20)
    ours, theirs = compared["metrics"]["exact_match"]["systems"]
    assert (ours["score"], theirs["score"]) == (merged["exact_match"], 100)
