"""Model cards say what a run knows, and nothing of the machine that it was trained on."""

import json
from pathlib import Path

import pytest
import yaml
from commands import Command
from huggingface_hub import ModelCard
from number_task import FAST, numbers_config, write_config

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.text import DataConfig
from seq2seq_cli.extras.export.portable import (
    portable_command,
    portable_config,
    portable_record,
    portable_text,
)

pytestmark = pytest.mark.filterwarnings("ignore")


def card_of(seq2seq: Command, run, folder, *options: object) -> tuple[ModelCard, str]:
    seq2seq("export", run, "--format", "ctranslate2", "-o", folder, *options).ok()
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
    assert "no license was given" in text
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


def test_a_card_publishes_no_error_rate_under_the_name_of_another(seq2seq, tmp_path):
    """The hub's `wer` counts edits of words; `exact_match_error` was called so."""
    config = numbers_config(tmp_path, 300, max_steps=2, warmup_steps=1)
    config["data"]["direction"] = "both"  # which counts every pair twice
    config["tokenizer"]["shared"] = True
    config["validation"] = {"every": 2, "unit": "steps", "metrics": ["ter", "ser", "wer"]}
    run = tmp_path / "run"
    assert seq2seq("train", write_config(tmp_path, config), "--run-dir", run).exit_code == 0
    card, text = card_of(seq2seq, run, tmp_path / "ct2")
    published = ["perplexity", "accuracy", "bleu", "chrf", "ter", "exact_match"]
    assert card.data.metrics == published
    assert "| exact_match_error | % of lines |" in text
    assert "Trained on 300 pairs" in text


def test_paths_of_this_machine_become_names(trained, tmp_path):
    config = load_config(trained / "config.yaml")
    corpora = [
        {"src": "/home/me/my text/a.de", "tgt": "../other/b.en"},
        {"pairs": "s3://bucket/text/*.tsv.gz"},
        {"pairs": "text/x.tsv"},
        {"pairs": "s3://bucket/my text/y.tsv?versionId=a/b"},
    ]
    data = DataConfig.model_validate({"train": corpora})
    config = config.model_copy(update={"data": data})
    paths = [str(path) for c in portable_config(config).data.train for path in c.paths]
    assert paths == ["a.de", "b.en", "*.tsv.gz", "text/x.tsv", "y.tsv"]
    recorded = {"command": ["/usr/bin/seq2seq", "--set", "data.train.src=/home/me/my text/a.de"]}
    recorded |= {"changed": [{"from": "{src: /home/me/my text/a.de, tgt: /tmp/b.en}"}], "n": 3}
    recorded["to"] = "{tgt: ../other/b.en}"
    assert portable_record(recorded, config) == {
        "command": ["seq2seq", "--set", "data.train.src=a.de"],
        "changed": [{"from": "{src: a.de, tgt: b.en}"}],
        "n": 3,
        "to": "{tgt: b.en}",
    }


@pytest.mark.parametrize("program", ["bin/seq2seq", "lib/seq2seq_cli/__main__.py"])
def test_the_recorded_command_can_be_used_elsewhere(program):
    arguments = ["/home/me/" + program, "train", "my text.yaml"]
    assert portable_command(arguments) == "seq2seq train 'my text.yaml'"
    assert portable_command([]) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--from=/home/me/runs/one", "--from=one"),
        ("~/runs/one", "one"),
        ("runs/one", "runs/one"),
        ("either/or and 1/2", "either/or and 1/2"),
        ("see '/a/b c/d' or (/e/f)", "see 'd' or (f)"),
        ("--from=../runs/one", "--from=one"),
        ("--run-dir=../secret dir/one", "--run-dir=one"),
        ("data.train.pairs=$HOME/secret/x.tsv", "data.train.pairs=x.tsv"),
        ("https://example.org/a/b", "b"),
        ("data.train.pairs=https://a.org/b/c.tsv?key=/SECRET,&x=y", "data.train.pairs=c.tsv"),
        ("https://a.org/b,c.de?key=SECRET", "b,c.de"),
        ("zip://a.de::https://b.org/c.zip?key=SECRET", "c.zip"),
        ("see file:///home/me/a.de, a/../../me/b.de", "see a.de, b.de"),
        ("{src: https://a.org/b/c.de?key=SECRET, tgt: s3://d/e.en}", "{src: c.de, tgt: e.en}"),
    ],
)
def test_paths_in_texts(text, expected):
    assert portable_text(text) == expected


def scores_shown(seq2seq: Command, run: Path, export: Path) -> tuple[float | None, str]:
    """The loss that `inspect` shows, and the scores of a model card."""
    report = json.loads(seq2seq("inspect", run, "--json").stdout)["run"]["validation"]
    seq2seq("export", run, "--format", "ctranslate2", "-o", export).ok()
    card = (export / "README.md").read_text(encoding="utf-8")
    return report and report["scores"]["loss"], card.partition("## Scores")[2].partition("##")[0]


def test_card_and_inspect_show_the_scores_of_these_weights(seq2seq, tmp_path):
    """After the run's end, after more updates without averages, and after `average --force`."""
    settings = numbers_config(
        tmp_path, max_steps=20, warmup_steps=4, save_every=4, keep_last=1, device="cpu"
    )
    settings["model"] = {"d_model": 16, "heads": 2, "layers": 1, "d_ff": 16, "dropout": 0.1}
    settings["training"] |= {"optimizer": "schedule_free_adamw", "schedule": "constant"}
    settings["validation"] = {"every": 8, "unit": "steps", "metric": "loss", "decode": False}
    config, run = write_config(tmp_path, settings), tmp_path / "run"
    longer = ("training.max_steps=24", "training.keep_last=2")
    average = ("average", run, "--last", 2, "--force")
    commands = [
        ("train", config, "--run-dir", run, "--set", "training.average_checkpoints=3"),
        ("train", config, "--run-dir", run, *(part for o in longer for part in ("--set", o))),
        average,
    ]
    for number, command in enumerate(commands):
        assert seq2seq(*command).exit_code == 0
        loss = json.loads(seq2seq("eval", run, "--json", "--loss-only").stdout)["loss"]
        shown, card = scores_shown(seq2seq, run, tmp_path / str(number))
        assert shown == loss
        assert f"| loss | nats per target token | {loss:.3f} |" in card
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["data"]["valid"]["src"] = "gone.src"
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    assert seq2seq(*average).exit_code == 0
    shown, card = scores_shown(seq2seq, run, tmp_path / "unknown")
    assert shown is None and "has no validation scores" in card


KINDS = [
    {"kind": "bpe", "vocab_size": 300, "normalization": {"src": "nfkc_cf", "tgt": "identity"}},
    {"kind": {"src": "char", "tgt": "word"}},
]


@pytest.mark.parametrize("tokenizer", KINDS)
def test_a_card_names_the_tokenizers_of_both_sides(tokenizer, seq2seq, tmp_path):
    """A shared vocabulary has two files, too, if its sides normalize differently."""
    config = numbers_config(tmp_path, **FAST, max_steps=20) | {"tokenizer": tokenizer}
    train = ("train", write_config(tmp_path, config), "--run-dir", tmp_path / "run")
    assert seq2seq(*train).exit_code == 0
    _, text = card_of(seq2seq, tmp_path / "run", tmp_path / "ct2")
    assert 'for file in ("src.model", "tgt.model")' in text
