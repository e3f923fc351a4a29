"""Features of the source, which decide here in which language digits are spelt out."""

import json
from pathlib import Path

import pytest
from commands import Command
from number_task import FAST, number_pairs, numbers_config, write_config

from seq2seq_cli import Translator
from seq2seq_cli.extras.inspect.attention_study import study_attention
from seq2seq_cli.extras.inspect.head_statistics import token_pairs
from seq2seq_cli.extras.serve.messages import Batch, SearchOptions, SentenceInput
from seq2seq_cli.extras.serve.model_process import LoadedRun
from seq2seq_cli.extras.serve.served_run import RunToServe
from seq2seq_cli.text.corpus import Pair

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
NAMEN = ("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun")
IN_GERMAN = dict(zip(NAMES, NAMEN, strict=True))


def write_rows(path: Path, count: int, seed: int) -> dict[str, object]:
    """Write rows such as `3 1`, `NUM;DE`, `drei eins`; return them as the corpus of a config."""
    rows = []
    for digits, names in number_pairs(count, seed):
        rows.append(f"{digits}\tNUM;EN\t{names}")
        rows.append(f"{digits}\tNUM;DE\t{' '.join(IN_GERMAN[name] for name in names.split())}")
    path.write_text("".join(f"{row}\n" for row in rows))
    return {"pairs": str(path), "fields": [1, 3], "features": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("features")


@pytest.fixture(scope="module")
def run(folder: Path, seq2seq: Command) -> Path:
    config = numbers_config(folder, **FAST, max_steps=200)
    config["data"] = {
        name: write_rows(folder / f"{name}.tsv", count, seed)
        for seed, (name, count) in enumerate({"train": 1_500, "valid": 30}.items())
    }
    result = seq2seq("train", write_config(folder, config), "--run-dir", folder / "run")
    assert result.exit_code == 0, result.stderr
    assert "word, 3 of them features" in result.stderr
    return folder / "run"


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
    for command in (("eval", run), ("eval", run, "--loss-only"), ("compare", run, *other)):
        refused = seq2seq(*command, *files)
        assert refused.exit_code == 2
        assert "have a tab: name the column of the features" in refused.stderr


def test_unknown_and_missing_features_are_named(run, folder, seq2seq):
    stdin = "3 1\tNUM;DE\n3 1\tNUM;XYZ\n3 1 2 4\n\n4\tABC;EN|XYZ\n"
    known = seq2seq("translate", run, "3 1\tNUM;DE")
    assert known.stderr == ""
    expected = [
        "2 lines have features that the training text lacks, which say nothing to the model: "
        "XYZ, ABC",
        "1 line has no features, which the model was trained with: give them after a tab, "
        "or with --features",
    ]
    for processes in (1, 2):
        result = seq2seq("translate", run, "--processes", processes, stdin=stdin)
        assert (result.exit_code, result.stderr.splitlines()) == (0, expected)
    rows = ["3 1\tNUM;XYZ\tthree one\n", "3 1 3 1\t\tthree\n", "4\tNUM;EN\tfour\n"]
    (folder / "odd.tsv").write_text("".join(rows))
    files = ("--pairs", folder / "odd.tsv", "--fields", 1, 3, "--features", 2)
    result = seq2seq("eval", run, *files)
    assert "1 line has features that the training text lacks" in result.stderr
    assert "1 line has no features, which the model was trained with" in result.stderr


def test_a_server_refuses_unknown_and_missing_features(run):
    loaded = LoadedRun(RunToServe(run, device="cpu"))
    sources = ("3 1\tNUM;DE", "3 1\tNUM;XYZ", "3 1")
    batch = Batch(0, SearchOptions(), tuple(map(SentenceInput, sources)))
    (known,), unknown, none = loaded.translate(batch).outputs
    assert known.text == "drei eins"
    assert unknown == "the model does not know the features XYZ"
    assert none == "the model needs features of the source, after a tab"


def test_bad_lines_are_skipped_where_features_are_collected(run, folder, seq2seq, tmp_path):
    (tmp_path / "train.tsv").write_text((folder / "train.tsv").read_text() + "3 1\n")
    given = (f"data.train.pairs={tmp_path / 'train.tsv'}", "data.on_bad_line=skip")
    for reuse in ("null", str(run)):
        options = (*given, f"tokenizer.reuse={reuse}", "tokenizer.vocab_size=auto")
        sets = [part for option in options for part in ("--set", option)]
        config, output = folder / "numbers.yaml", ("--output", tmp_path / "v")
        result = seq2seq("vocab", config, *output, *sets)
        assert result.exit_code == 0, result.stderr


def test_inspect_counts_the_features(run, seq2seq):
    report = json.loads(seq2seq("inspect", run, "--json").stdout)["run"]["vocabulary"]
    assert (report["source"]["features"], report["target"]["features"]) == (3, 0)
    for side in (report["source"], report["target"]):
        assert side["size"] == 4 + side["features"] + side["bytes"] + side["pieces"]


def test_features_are_no_part_of_the_text(run):
    """Its words alone are aligned; pages of attention show the features as tokens."""
    translator = Translator.load(run)
    (study,) = study_attention(translator, "3 1\tNUM;DE")
    assert study.source.text == "3 1"
    assert study.source.tokens[:2] == ("<feature NUM>", "<feature DE>")
    assert study.source.word_of_token == (None, None, 0, 1, None)
    assert study.target.text == "drei eins"
    given, *_ = study_attention(translator, "3 1\tNUM;DE", "three one")
    assert given.source == study.source
    (pair,) = token_pairs(translator, [Pair("3 1", "drei eins", None, "NUM;DE")])
    assert translator.tokenizers.src.pieces_of(pair.src_ids) == list(study.source.tokens[:-1])
    (scored,) = translator.score([("3 1\tNUM;DE", "drei eins")])
    (other,) = translator.score([("3 1\tNUM;EN", "drei eins")])
    assert scored.log_prob > other.log_prob + 1


def test_features_that_share_a_position_have_no_order(run, folder, seq2seq, tmp_path):
    options = ("model.feature_positions=false", "training.max_steps=30")
    sets = [part for option in options for part in ("--set", option)]
    trained = seq2seq("train", folder / "numbers.yaml", "--run-dir", tmp_path / "run", *sets)
    assert trained.exit_code == 0, trained.stderr
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
    files = ("--pairs", folder / "test.tsv", "--fields", 1, 3, "--features", 2)
    refused = seq2seq("eval", trained, *files)
    assert refused.exit_code == 2
    assert "the vocabulary has no features, but a source has: NUM;EN" in refused.stderr


def test_an_export_names_the_features(run, seq2seq, tmp_path):
    result = seq2seq("export", run, "--format", "ctranslate2", "--output", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    assert "greedy translations of validation lines are equal" in result.stderr + result.stdout
    assert "`<feature DE>`, `<feature EN>`" in (tmp_path / "out/README.md").read_text()
