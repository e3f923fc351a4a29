"""Model cards say what a run knows, and nothing of the machine that it was trained on."""

import pytest
from commands import Command
from huggingface_hub import ModelCard

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.text import DataConfig
from seq2seq_cli.extras.export.portable import portable_config, portable_record, portable_text

pytestmark = pytest.mark.filterwarnings("ignore")


def card_of(seq2seq: Command, run, folder, *options: object) -> tuple[ModelCard, str]:
    result = seq2seq("export", run, "--format", "ctranslate2", "-o", folder, *options)
    assert result.exit_code == 0, result.stderr
    card = ModelCard.load(folder / "README.md")
    return card, card.text


def test_a_card_has_what_the_hub_and_people_read(trained, numbers, seq2seq, tmp_path):
    card, text = card_of(seq2seq, trained, tmp_path / "ct2", "--langs", "de-pt_BR")
    assert (card.data.language, card.data.license) == (["de", "pt"], "unknown")
    assert (card.data.library_name, card.data.pipeline_tag) == ("ctranslate2", "translation")
    assert card.data.metrics == ["perplexity", "accuracy", "bleu", "chrf", "exact_match"]
    assert "# German to Portuguese (Brazil)" in text
    assert "Trained on 3,000 pairs from:\n\n- `train.src` and `train.tgt`" in text
    assert "| exact_match | % of lines | 100.000 |" in text
    assert "has not said under which license" in text
    sections = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert sections == ["Use", "Training data", "Scores", "Training", "License", "Limits"]
    assert str(numbers.parent) not in card.content
    assert "    src: train.src\n" in text


def test_a_card_without_languages_and_without_scores_says_so(trained, seq2seq, tmp_path):
    card, text = card_of(
        seq2seq, trained, tmp_path / "ct2", "--model", "last", "--license", "CC-BY-4.0"
    )
    assert (card.data.language, card.data.pipeline_tag) == (None, None)
    assert card.data.license == "cc-by-4.0"
    assert "# A Transformer from text to text" in text
    assert "The file of the weights has no validation scores." in text


def test_paths_of_this_machine_become_names(trained, tmp_path):
    config = load_config(trained / "config.yaml")
    corpora = [
        {"src": "/home/me/my text/a.de", "tgt": "../other/b.en"},
        {"pairs": "s3://bucket/text/*.tsv.gz"},
        {"pairs": "text/x.tsv"},
    ]
    data = DataConfig.model_validate({"train": corpora})
    config = config.model_copy(update={"data": data})
    paths = [str(path) for c in portable_config(config).data.train for path in c.paths]
    assert paths == ["a.de", "b.en", "*.tsv.gz", "text/x.tsv"]
    recorded = {"command": ["/usr/bin/seq2seq", "--set", "data.train.src=/home/me/my text/a.de"]}
    recorded |= {"changed": [{"from": "{src: /home/me/my text/a.de, tgt: /tmp/b.en}"}], "n": 3}
    assert portable_record(recorded, config) == {
        "command": ["seq2seq", "--set", "data.train.src=a.de"],
        "changed": [{"from": "{src: a.de, tgt: b.en}"}],
        "n": 3,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--from=/home/me/runs/one", "--from=one"),
        ("~/runs/one", "one"),
        ("runs/one", "runs/one"),
        ("either/or and 1/2", "either/or and 1/2"),
        ("see '/a/b c/d' or (/e/f)", "see 'd' or (f)"),
        ("https://example.org/a/b", "b"),
    ],
)
def test_paths_in_texts(text, expected):
    assert portable_text(text) == expected
