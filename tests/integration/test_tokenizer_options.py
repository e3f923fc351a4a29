"""Tokenizer options from end to end: train, translate, eval, resume."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Command
from number_task import FAST, numbers_config, write_config

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.config.types import SIDES
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.tokenizer import load_tokenizers

TAG = "<to-names>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The number task with a tag before each source, and capital letters."""
    folder = tmp_path_factory.mktemp("options")
    config = numbers_config(folder, 3_000, **FAST, max_steps=200)
    for name in ("train", "valid"):
        for side in ("src", "tgt"):
            path = folder / f"{name}.{side}"
            before = f"{TAG} N " if side == "src" else "The "
            lines = path.read_text().splitlines()
            path.write_text("".join(f"{before}{line}\n" for line in lines))
    config["tokenizer"] = {
        "kind": "bpe",
        "vocab_size": 400,
        "user_defined_symbols": [TAG],
        "split_digits": True,
        "normalization": {"src": "nfkc_cf", "tgt": "identity"},
    }
    write_config(folder, config)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path, seq2seq: Command) -> Path:
    result = seq2seq("train", folder / "numbers.yaml", "--run-dir", folder / "run").ok()
    assert "bpe, shared by both sides" in result.stderr
    return folder / "run"


@pytest.mark.slow
def test_shared_vocabulary_with_normalization_per_side(run, seq2seq):
    """Only the source is lower-cased."""
    lines = [f"{TAG} {letter} {rest}" for rest in ("3 1 4", "2") for letter in "Nn"]
    translations = seq2seq("translate", run, *lines).stdout.splitlines()
    assert translations == ["The three one four"] * 2 + ["The two"] * 2
    assert {path.name for path in run.glob("*.model")} == {"src.model", "tgt.model"}
    report = json.loads(seq2seq("eval", run, "--json").stdout)
    assert report["exact_match"] >= 90


@pytest.mark.slow
def test_run_with_normalization_per_side_can_be_resumed_and_reused(run, folder, seq2seq, tmp_path):
    config = folder / "numbers.yaml"
    more = ("--set", "training.max_steps=202", "--set", "training.log_every=1")
    assert seq2seq("train", config, "--run-dir", run, *more).exit_code == 0
    short = ("--set", "training.max_steps=2", "--set", "training.warmup_steps=1")
    reuse = ("--set", f"tokenizer.reuse={run}", "--from", run)
    result = seq2seq("train", config, "--run-dir", tmp_path / "run", *short, *reuse).ok()
    assert "0 new tokens are initialized randomly" in result.stderr
    for name in ("src.model", "tgt.model"):
        assert (tmp_path / "run" / name).read_bytes() == (run / name).read_bytes()
    symbol = ("--set", "tokenizer.user_defined_symbols=[<x>]")
    result = seq2seq("train", config, "--run-dir", tmp_path / "no", *short, *reuse, *symbol)
    assert "lacks '<x>', which is a tag of data.train or one of" in result.error()


def test_vocab_writes_a_file_for_each_normalization(folder, seq2seq, tmp_path):
    result = seq2seq("vocab", folder / "numbers.yaml", "--output", tmp_path / "v").ok()
    written = {path.name for path in (tmp_path / "v").iterdir()}
    assert written == {"src.model", "src.vocab", "tgt.model", "tgt.vocab"}
    assert TAG in (tmp_path / "v/tgt.vocab").read_text().splitlines()
    assert f"  ▁ {TAG} ▁n ▁ " in result.stdout
    same = ("--set", "tokenizer.normalization=nfkc_cf")
    for options, names in ((same, {"tokenizer"}), ((), {"src", "tgt"})):
        seq2seq("vocab", folder / "numbers.yaml", "--output", tmp_path / "v", *options).ok()
        written = {path.name for path in (tmp_path / "v").iterdir()}
        assert written == {f"{name}.{end}" for name in names for end in ("model", "vocab")}


def test_output_that_the_terminal_cannot_show_is_escaped(folder, tmp_path):
    command = [sys.executable, "-m", "seq2seq_cli", "vocab", "numbers.yaml"]
    command += ["--output", str(tmp_path / "v")]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"  \\u2581 {TAG} \\u2581n" in done.stdout


@pytest.mark.slow
def test_vocab_does_not_replace_that_of_a_run(run, folder, seq2seq):
    message = seq2seq("vocab", folder / "numbers.yaml", "--output", run).error()
    assert "is the folder of a run, which has a vocabulary" in message


@pytest.fixture(scope="module")
def letters_to_words(tmp_path_factory: pytest.TempPathFactory, seq2seq: Command) -> Path:
    """A run whose source has characters and whose target has words."""
    folder = tmp_path_factory.mktemp("letters")
    config = numbers_config(folder, **FAST, max_steps=200)
    config["tokenizer"] = {"kind": {"src": "char", "tgt": "word"}}
    path = write_config(folder, config)
    result = seq2seq("train", path, "--run-dir", folder / "run").ok()
    assert " char, target 14 word" in result.stderr
    return folder / "run"


@pytest.mark.slow
def test_each_side_has_tokens_of_its_own_kind(letters_to_words, seq2seq):
    tokenizers = load_tokenizers(RunFolder(letters_to_words), TokenizerConfig(shared=False))
    assert (tokenizers.src.to_pieces("31"), tokenizers.tgt.to_pieces("three one")) == (
        ["▁", "3", "1"],
        ["▁three", "▁one"],
    )
    report = json.loads(
        seq2seq("eval", letters_to_words, "--json", "--metrics", "exact_match_error").stdout
    )
    assert report["exact_match_error"] <= 10
    written = load_config(letters_to_words / "config.yaml").tokenizer
    assert (written.kind.src, written.kind.tgt, written.shared) == ("char", "word", False)
    more = ("--set", "training.max_steps=201")
    config = letters_to_words.parent / "numbers.yaml"
    seq2seq("train", config, "--run-dir", letters_to_words, *more).ok()


def test_sizes_of_the_sides_differ(folder, seq2seq, tmp_path):
    config = numbers_config(folder)
    config["tokenizer"] = {"kind": "bpe", "vocab_size": {"src": 280, "tgt": "auto"}}
    path = write_config(tmp_path, config)
    assert seq2seq("vocab", path, "--output", tmp_path / "v").exit_code == 0
    src, tgt = (len((tmp_path / f"v/{side}.vocab").read_text().splitlines()) for side in SIDES)
    assert src <= 280 < tgt
