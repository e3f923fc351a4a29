"""Features of the source, which decide here in which language digits are spelt out."""

import json
from pathlib import Path

import pytest
from commands import Command
from feature_task import train_with_features, write_rows

from seq2seq_cli import Translator


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("features")


@pytest.fixture(scope="module")
def run(folder: Path, seq2seq: Command) -> Path:
    return train_with_features(folder, seq2seq)


def test_the_features_decide(run, folder, seq2seq, tmp_path):
    write_rows(folder / "test.tsv", 40, seed=7)
    files = ("--pairs", folder / "test.tsv", "--fields", 1, 3, "--features", 2)
    report = json.loads(seq2seq("eval", run, *files, "--json").stdout)
    assert report["exact_match"] >= 95
    errors = json.loads(seq2seq("eval", run, *files, "--errors", "--json").stdout)["errors"]
    right = {feature["name"]: feature["num_right"] for feature in errors["by_feature"]}
    assert right.keys() == {"NUM", "EN", "DE"}
    assert right["NUM"] == right["EN"] + right["DE"] == 80 - errors["num_wrong_lines"]
    (tmp_path / "in").write_text("3 1\tNUM;DE\n3 1\tNUM;EN\n\n\tNUM;DE\n")
    lines = seq2seq("translate", run, "--input", tmp_path / "in").stdout.splitlines()
    assert lines == ["drei eins", "three one", "", ""]
    assert seq2seq("translate", run, "3 1\tDE NUM").stdout == "drei eins\n"
    given = json.dumps({"src": "3 1\tNUM;DE"})
    found = seq2seq("translate", run, "--input-format", "jsonl", stdin=f"{given}\n").stdout
    assert found == "drei eins\n"


@pytest.mark.slow
def test_files_whose_sources_have_features_after_a_tab_give_the_same_scores(run, folder, seq2seq):
    write_rows(folder / "test.tsv", 40, seed=7)
    rows = [line.split("\t") for line in (folder / "test.tsv").read_text().splitlines()]
    (folder / "src").write_text("".join(f"{src}\t{features}\n" for src, features, _ in rows))
    (folder / "ref").write_text("".join(f"{tgt}\n" for _, _, tgt in rows))
    pairs = ("--pairs", folder / "test.tsv", "--fields", 1, 3, "--features", 2)
    files = ("--src", folder / "src", "--ref", folder / "ref", "--features", 2)
    for command in (("eval", run, "--json", "--breakdown", "--worst", 1), ("score", run)):
        one, other = seq2seq(*command, *pairs), seq2seq(*command, *files)
        assert one.exit_code == other.exit_code == 0
        assert one.stdout == other.stdout
        if command[0] == "eval":
            report = json.loads(one.stdout)
            lengths = [group["longest"] for group in report["by_source_length"]]
            assert max(lengths) == 6  # words of the text, not features
            assert "\tNUM;" in report["worst"][0]["source"]


def test_features_that_are_not_named_are_not_taken_for_letters(run, folder, seq2seq):
    (folder / "a.src").write_text("3 1\tNUM;DE\n")
    (folder / "a.ref").write_text("drei eins\n")
    files = ("--src", folder / "a.src", "--ref", folder / "a.ref")
    other = ("--hypotheses", folder / "a.ref")
    compare, score = ("compare", run, *other), ("score", run)
    for command in (("eval", run), ("eval", run, "--loss-only"), compare, score):
        message = seq2seq(*command, *files).error()
        assert "have a tab: name the column of the features" in message


@pytest.mark.slow
def test_unknown_and_missing_features_are_named(run, folder, seq2seq):
    stdin = "3 1\tNUM;DE\n3 1\tNUM;XYZ\n3 1 2 4\n\n4\tABC;EN|XYZ\n"
    known = seq2seq("translate", run, "3 1\tNUM;DE")
    assert known.stderr == ""
    expected = [
        "2 lines have features that the training text lacks, which say nothing to the model: "
        "XYZ, ABC",
        "1 line has no features, which the model was trained with: translate takes them after a "
        "tab, eval and score with --features",
    ]
    for processes in (1, 2):
        result = seq2seq("translate", run, "--processes", processes, stdin=stdin)
        assert (result.exit_code, result.stderr.splitlines()) == (0, expected)
    rows = ["3 1\tNUM;XYZ\tthree one\n", "3 1 3 1\t\tthree\n", "4\tNUM;EN\tfour\n"]
    (folder / "odd.tsv").write_text("".join(rows))
    files = ("--pairs", folder / "odd.tsv", "--fields", 1, 3, "--features", 2)
    (folder / "odd.src").write_text("3 1\tNUM;XYZ\n3 1 3 1\n4\tNUM;EN\n")
    (folder / "odd.nbest").write_text("0 ||| three one\n")
    rescore = ("--src", folder / "odd.src", "--nbest", folder / "odd.nbest")
    for command, *given in (("eval", *files), ("score", *files), ("score", *rescore)):
        result = seq2seq(command, run, *given).ok()
        assert "1 line has features that the training text lacks" in result.stderr
        assert "1 line has no features, which the model was trained with" in result.stderr


def test_bad_lines_are_skipped_where_features_are_collected(run, folder, seq2seq, tmp_path):
    (tmp_path / "train.tsv").write_text((folder / "train.tsv").read_text() + "3 1\n")
    given = (f"data.train.pairs={tmp_path / 'train.tsv'}", "data.on_bad_line=skip")
    for reuse in ("null", str(run)):
        options = (*given, f"tokenizer.reuse={reuse}", "tokenizer.vocab_size=auto")
        sets = [part for option in options for part in ("--set", option)]
        config, output = folder / "numbers.yaml", ("--output", tmp_path / "v")
        seq2seq("vocab", config, *output, *sets).ok()


@pytest.mark.slow
def test_features_that_share_a_position_have_no_order(run, folder, seq2seq, tmp_path):
    options = ("model.feature_positions=false", "training.max_steps=30")
    sets = [part for option in options for part in ("--set", option)]
    seq2seq("train", folder / "numbers.yaml", "--run-dir", tmp_path / "run", *sets).ok()
    pairs = [("3 1\tNUM;DE", "drei eins"), ("3 1\tDE;NUM", "drei eins")]
    one, other = (scored.log_prob for scored in Translator.load(tmp_path / "run").score(pairs))
    assert one == pytest.approx(other, rel=1e-5)
    one, other = (scored.log_prob for scored in Translator.load(run).score(pairs))
    assert one != pytest.approx(other, rel=1e-5)
    export = ("export", tmp_path / "run", "--format", "ctranslate2")
    refused = seq2seq(*export, "--output", tmp_path / "out")
    assert "model.feature_positions is false" in refused.stderr


def test_a_model_without_features_refuses_them(trained, folder, seq2seq):
    write_rows(folder / "test.tsv", 40, seed=7)
    (folder / "one.src").write_text("3 1\tNUM;EN\n")
    (folder / "one.nbest").write_text("0 ||| three one\n")
    pairs = ("--pairs", folder / "test.tsv", "--fields", 1, 3)
    nbest = ("--src", folder / "one.src", "--nbest", folder / "one.nbest")
    for command, *files in (("eval", *pairs), ("score", *pairs), ("score", *nbest)):
        message = seq2seq(command, trained, *files, "--features", 2).error()
        assert "the vocabulary has no features, but a source has: NUM;EN" in message
