"""Features of the source in a server, in inspection and in exports."""

import json
from pathlib import Path

import pytest
from commands import Command
from feature_task import train_with_features
from served import serving

from seq2seq_cli import Translator
from seq2seq_cli.extras.inspect.attention_study import study_attention
from seq2seq_cli.extras.inspect.head_statistics import token_pairs
from seq2seq_cli.extras.serve.messages import Batch, SearchOptions, SentenceInput
from seq2seq_cli.extras.serve.model_process import LoadedRun
from seq2seq_cli.extras.serve.served_run import RunToServe
from seq2seq_cli.text.corpus import Pair


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, seq2seq: Command) -> Path:
    return train_with_features(tmp_path_factory.mktemp("features"), seq2seq)


def test_a_server_refuses_unknown_and_missing_features(run):
    loaded = LoadedRun(RunToServe(run, device="cpu"))
    sources = ("3 1\tNUM;DE", "3 1\tNUM;XYZ", "3 1")
    batch = Batch(0, SearchOptions(), tuple(map(SentenceInput, sources)))
    (known,), unknown, none = loaded.translate(batch).outputs
    assert known.text == "drei eins"
    assert unknown == "the model does not know the features XYZ"
    assert none == "the model needs features of the source, after a tab"


def test_a_server_translates_each_line_with_its_features(run):
    """Also if several sentences share them, or a long line; words of the text alone are given."""
    translator = Translator.load(run)
    with serving(run, "--langs", "en-de") as server:
        for text in ("3 1.\tNUM;DE", "3. 1! 4 1?\tNUM;DE", "3 1 4 " * 50 + "\tNUM;DE"):
            answer = server.translate(f"{text}\n{text}", attention=True)
            first, second = answer["translatedText"].split("\n")
            assert [first, second] == translator.translate([text]) * 2
            assert len(answer["sentences"]) == 2
            for sentence in answer["sentences"]:
                assert sentence["sourceWords"][-1][1] <= text.index("\t")
                assert {len(row) for row in sentence["attention"]} == {len(sentence["sourceWords"])}
        assert (
            server.ask("/translate", {"q": "3 1. A", "source": "en", "target": "de"}).status == 400
        )


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
    pieces = translator.tokenizers.src.pieces_of(pair.source.src_ids)
    assert pieces == list(study.source.tokens[:-1])
    (scored,) = translator.score([("3 1\tNUM;DE", "drei eins")])
    (other,) = translator.score([("3 1\tNUM;EN", "drei eins")])
    assert scored.log_prob > other.log_prob + 1


def test_an_export_names_the_features(run, seq2seq, tmp_path):
    result = seq2seq("export", run, "--format", "ctranslate2", "--output", tmp_path / "out").ok()
    assert "greedy translations of validation lines are equal" in result.stderr + result.stdout
    assert "`<feature DE>`, `<feature EN>`" in (tmp_path / "out/README.md").read_text()
