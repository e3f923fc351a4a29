"""The tag of a corpus in the attention of a model and in exports."""

from pathlib import Path

import ctranslate2
import pytest
from commands import Command
from number_task import FAST, number_pairs, numbers_config, write_config, write_pairs

from seq2seq_cli import Translator
from seq2seq_cli.extras.inspect.attention_study import study_attention
from seq2seq_cli.extras.inspect.head_statistics import head_statistics, token_pairs
from seq2seq_cli.text.corpus import Pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, seq2seq: Command) -> Path:
    """A folder with the run `mixed`, of two corpora, one of which has a tag."""
    folder = tmp_path_factory.mktemp("tags")
    config = numbers_config(folder, **FAST, max_steps=100, processes=1)
    tagged = write_pairs(folder, "tagged", number_pairs(40, seed=6))
    config["data"]["train"] = [
        write_pairs(folder, "train", number_pairs(300, seed=4)),
        {**tagged, "tag": "<bt>", "weight": 2},
    ]
    config["data"]["valid"] = write_pairs(folder, "valid", number_pairs(20, seed=5))
    config["tokenizer"] = {"kind": "word"}
    config["validation"] = {"every": 100, "unit": "steps", "metric": "loss", "decode": False}
    seq2seq("train", write_config(folder, config), "--run-dir", folder / "mixed").ok()
    return folder


def test_attention_to_a_tag_is_shown_but_aligned_with_no_word(folder):
    translator = Translator.load(folder / "mixed")
    (study,) = study_attention(translator, "1 2", "one two", tag="<bt>")
    assert study.source.tokens == ("<bt>", "▁1", "▁2", "</s>")
    assert study.source.word_of_token == (None, 0, 1, None)
    assert study.cross.weights_LHQM.shape[-2:] == (3, 4)
    assert {source for source, _ in study.alignment} <= {0, 1}
    default = Translator.load(folder / "mixed", overrides=["decoding.tag=<bt>"])
    (same,) = study_attention(default, "1 2", "one two")
    assert same.cross.weights_LHQM.equal(study.cross.weights_LHQM)
    (plain,) = study_attention(translator, "1 2", "one two")
    assert plain.source.tokens == study.source.tokens[1:]
    with_tag, without = (
        head_statistics(translator, [Pair("1 2", "one two", tag)]) for tag in ("<bt>", None)
    )
    assert not with_tag["cross"].entropy_LH.equal(without["cross"].entropy_LH)
    pairs = [Pair("<bt> 1 2", "one two"), Pair("1 2", "one two", "<bt>")]
    typed, given = (pair.source for pair in token_pairs(translator, pairs))
    assert typed == given
    assert typed.sentence == "1 2"


def test_tags_are_given_to_attend_and_inspect(folder, seq2seq, tmp_path):
    run, page = folder / "mixed", tmp_path / "a.json"
    command = ("attend", run, "1 2", "--target", "one two", "--sample", 0, "-o", page)
    seq2seq(*command, "--set", "decoding.tag=<bt>").ok()
    assert "<bt>" in page.read_text()
    traced = seq2seq("inspect", run, "--trace", "1 2", "--tag", "<bt>").ok()
    assert traced.stdout.startswith("source  <bt> ▁1 ▁2 </s>\n")


def test_exports_say_how_to_give_a_tag(folder, seq2seq):
    """The tag is the first token there too, and then the same comes out."""
    mixed, output = folder / "mixed", folder / "ct2"
    seq2seq("export", mixed, "--format", "ctranslate2", "--output", output).ok()
    readme = (output / "README.md").read_text()
    assert "knows the tags `<bt>`" in readme
    assert "`pieces = [tag, *pieces]`" in readme
    lines = (folder / "valid.src").read_text().splitlines()
    ours = Translator.load(mixed, overrides=["decoding.tag=<bt>", "decoding.precision=fp32"])
    tokenizers = ours.tokenizers
    theirs = ctranslate2.Translator(str(output), device="cpu", compute_type="float32")
    never = [[piece] for piece in tokenizers.tgt.pieces()[:3]]
    found = []
    for line in lines:
        pieces = ["<bt>", *tokenizers.src.pieces_of(tokenizers.src.to_ids(line))]
        limit = ours.config.decoding.max_length(len(pieces) - 1)
        (result,) = theirs.translate_batch(
            [pieces],
            beam_size=1,
            min_decoding_length=0,
            max_decoding_length=limit,
            suppress_sequences=never,
        )
        found.append(tokenizers.tgt.to_text(tokenizers.tgt.ids_of(result.hypotheses[0])))
    equal = sum(a == b for a, b in zip(found, ours.translate(lines), strict=True))
    assert equal >= len(lines) - 1  # rounding may decide between equally good words
