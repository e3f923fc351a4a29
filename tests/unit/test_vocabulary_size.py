"""`tokenizer.vocab_size: auto` follows the number of pairs, and everything that reads it agrees."""

import tracemalloc
from pathlib import Path

import pytest
from commands import ROOT, Command
from faults.victims import config_of
from number_task import write_config

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.leakage import count_corpus
from seq2seq_cli.tokenizers.tokenizer import fit_tokenizers, load_tokenizers
from seq2seq_cli.tokenizers.training_text import num_frequent_characters
from seq2seq_cli.tokenizers.vocabulary import num_pieces, with_vocab_size

# Pairs, and the vocabularies that Gowda & May 2020 found good; for fewer pairs they are measured.
PUBLISHED = [(500_000, 4_000, 16_000), (1_000_000, 8_000, 8_000), (4_500_000, 32_000, 32_000)]


@pytest.mark.parametrize(
    ("pairs", "least", "most"), [(4_000, 1_000, 1_000), (29_000, 7_000, 8_000), *PUBLISHED]
)
def test_pieces_are_those_that_translate_well(pairs, least, most):
    assert least <= num_pieces("bpe", pairs) <= most


def test_pieces_grow_with_the_text():
    sizes = [num_pieces("unigram", round(1.3**n)) for n in range(80)]
    assert sizes == sorted(sizes)
    assert sizes[0] > 0
    assert sizes[-1] == 32_000


def config_of_text(folder: Path, lines: list[str], **tokenizer) -> Config:
    for side in ("src", "tgt"):
        (folder / side).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    train = {"src": str(folder / "src"), "tgt": str(folder / "tgt")}
    return Config.model_validate({"data": {"train": train}, "tokenizer": tokenizer}, strict=False)


@pytest.mark.parametrize("shared", [True, False])
def test_auto_leaves_room_for_every_character(tmp_path, shared):
    """Chinese has more characters than a small text has pieces."""
    characters = [chr(0x4E00 + n) for n in range(3_000)]
    lines = ["".join(characters[n : n + 30]) for n in range(0, 3_000, 30)] * 6
    config = with_vocab_size(config_of_text(tmp_path, lines, shared=shared), len(lines))
    tokenizers = fit_tokenizers(config.train_text, config.tokenizer)
    assert set(characters) <= {piece.strip("▁") for piece in tokenizers.tgt.pieces()}
    assert len(tokenizers.tgt) <= config.tokenizer.vocab_size.tgt


def test_auto_counts_characters_after_normalization(tmp_path):
    """Korean syllables become a few dozen letters."""
    lines = ["".join(chr(0xAC00 + n) for n in range(first, 11_172, 97)) for first in range(97)] * 5
    sizes = {
        rule: with_vocab_size(
            config_of_text(tmp_path, lines, shared=True, normalization=rule), len(lines)
        ).tokenizer.vocab_size.src
        for rule in ("identity", "nfd")
    }
    assert sizes["identity"] - sizes["nfd"] > 10_000


def test_auto_keeps_every_word(tmp_path):
    lines = [f"word{n} other{n}" for n in range(9_000)]
    config = with_vocab_size(config_of_text(tmp_path, lines, kind="word"), len(lines))
    assert len(fit_tokenizers(config.train_text, config.tokenizer).src) == 18_000 + 4


def test_characters_of_long_lines_are_counted_in_little_memory():
    lines = ["", "ab" * 500_000, "c", "b c " * 250_000] * 8
    tracemalloc.start()
    try:
        counted = [num_frequent_characters(lines, least) for least in (1, 9, 5_000_001)]
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert counted == [3, 3, 1]
    assert num_frequent_characters([], 1) == num_frequent_characters([""], 1) == 0


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("auto")
    tree = config_of(folder, "bpe")
    del tree["tokenizer"]["vocab_size"]
    return write_config(folder, tree)


@pytest.fixture(scope="module")
def run(config: Path, seq2seq: Command) -> Path:
    result = seq2seq("train", config, "--run-dir", config.parent / "run").ok()
    assert "tokenizer.vocab_size 600, for 40 pairs" in result.stderr
    return config.parent / "run"


def test_a_run_keeps_the_number(config, run, seq2seq):
    assert load_config(run / "config.yaml").tokenizer.vocab_size.src == 600
    seq2seq("train", config, "--run-dir", run, "--set", "training.max_steps=3").ok()
    result = seq2seq("train", config, "--run-dir", run, "--set", "tokenizer.vocab_size=700")
    assert "tokenizer.vocab_size: 600 in the run, 700 now" in result.error()


def test_vocab_and_train_learn_the_same(config, run, seq2seq, tmp_path):
    assert seq2seq("vocab", config, "--output", tmp_path).exit_code == 0
    assert (tmp_path / "tokenizer.model").read_bytes() == (run / "tokenizer.model").read_bytes()
    written = load_config(run / "config.yaml")
    fitted = fit_tokenizers(written.train_text, written.tokenizer)
    assert fitted.src.model == (run / "tokenizer.model").read_bytes()


def test_both_directions_have_the_vocabulary_of_one(tmp_path):
    config = config_of_text(tmp_path, [f"line {n}" for n in range(8_000)])
    sizes = []
    for direction in ("forward", "both"):
        given = config.updated(data={"direction": direction})
        (counts,) = count_corpus(given.train_text, [], "error")
        num_pairs = counts.pairs // given.train_text.num_directions
        sizes.append(with_vocab_size(given, num_pairs).tokenizer.vocab_size)
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("how", ["reuse", "from"])
def test_a_reused_vocabulary_keeps_its_size(config, run, seq2seq, tmp_path, how):
    options = ("--from", run) if how == "from" else ("--set", f"tokenizer.reuse={run}")
    options += ("--set", "tokenizer.vocab_size=auto")
    seq2seq("train", config, "--run-dir", tmp_path / "run", *options).ok()
    tokenizer = load_config(tmp_path / "run/config.yaml").tokenizer
    reused = load_tokenizers(RunFolder(run), tokenizer)
    assert tokenizer.reuse == run
    assert tokenizer.vocab_size.src == (600 if how == "from" else len(reused.src))
    assert (tmp_path / "run/tokenizer.model").read_bytes() == reused.src.model


def test_example_configs_keep_the_sizes_that_they_name():
    for name in ("quickstart", "multi30k_deep_encoder"):
        assert load_config(ROOT / f"configs/{name}.yaml").tokenizer.vocab_size.src != "auto"
