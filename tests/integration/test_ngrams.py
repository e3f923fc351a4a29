"""Embeddings of hashed n-grams of the source through the command line."""

from pathlib import Path

import pytest
from bare_runs import stop_at
from commands import Command
from number_task import number_pairs, numbers_config, write_config

from seq2seq_cli import Translator
from seq2seq_cli.commands.diff import differing_results
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.training.loop import train


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ngrams")
    settings = numbers_config(folder, 200, max_steps=40, warmup_steps=4, save_every=None)
    settings["tokenizer"] = {"kind": "bpe", "vocab_size": 310, "shared": False}
    settings["model"] |= {"ngrams": 3, "ngram_buckets": 400}
    settings["validation"] = {"every": 20, "unit": "steps", "metric": "loss", "decode": False}
    return write_config(folder, settings)


@pytest.fixture(scope="module")
def whole(config: Path, seq2seq: Command) -> Path:
    run = config.parent / "whole"
    seq2seq("train", config, "--run-dir", run).ok()
    return run


@pytest.mark.slow
def test_a_stopped_run_continues_exactly(config, whole, seq2seq, tmp_path):
    """In the middle of an epoch, with n-grams left out."""
    run = tmp_path / "run"
    train(load_config(config), run, hooks=stop_at(13))
    seq2seq("train", config, "--run-dir", run).ok()
    assert differing_results(run, whole) == []


def test_both_engines_translate_alike(whole):
    sources = [src for src, _ in number_pairs(30, seed=5)]
    native, plain = (
        Translator.load(whole, "cpu", [f"decoding.engine={engine}", "decoding.precision=fp32"])
        for engine in ("native", "plain")
    )
    assert native.translate(sources) == plain.translate(sources)
    assert plain.model.src_ngrams.embedding.weight.any(1).sum() > 20


def test_ids_of_a_vocabulary_cannot_change(config, whole, seq2seq, tmp_path):
    """They choose the embeddings of n-grams."""
    tuned = ("train", config, "--from", whole, "--run-dir", tmp_path / "run")
    message = seq2seq(*tuned, "--set", "tokenizer.kind=word").error()
    assert "the source vocabulary must stay the same" in message
    options = ("--set", "training.max_steps=8", "--set", "model.ngram_dropout=0.1")
    seq2seq(*tuned, *options).ok()
    text = config.parent / "train.src"
    trim = ("trim", whole, "--text", text, "--output", tmp_path / "trimmed")
    assert "trim cannot keep model.ngrams" in seq2seq(*trim).error()
