"""A run for other programs: they translate as the run does, with nothing of ours."""

import subprocess
import sys
from pathlib import Path

import pytest
from number_task import numbers_config, write_config

ct2 = pytest.importorskip("ctranslate2")
transformers = pytest.importorskip("transformers")

VARIANTS = {
    "pre, unigram": {"tokenizer": {"kind": "unigram", "vocab_size": 300, "shared": True}},
    "post, bpe, no bias": {
        "model": {"norm": "post", "attention_bias": False, "activation": "gelu"},
        "tokenizer": {"kind": "bpe", "vocab_size": 300, "normalization": "nfkc", "shared": True},
    },
    "symbols, digits, a lower-cased source": {
        "tokenizer": {
            "kind": "bpe",
            "vocab_size": 300,
            "shared": True,
            "normalization": {"src": "nfkc_cf", "tgt": "identity"},
            "user_defined_symbols": ["7", "thr"],
            "split_digits": True,
        },
    },
    "words": {
        "tokenizer": {"kind": "word", "shared": True},
        "model": {"layers": {"encoder": 2, "decoder": 1}},
    },
    "characters": {
        "tokenizer": {"kind": "char", "shared": True},
        "model": {"embedding_scale": False},
    },
}


@pytest.fixture(scope="module", params=VARIANTS)
def run(request, seq2seq, tmp_path_factory) -> Path:
    """Trained for a moment: what it says is no use, but far from random."""
    folder = tmp_path_factory.mktemp("export")
    config = numbers_config(folder)
    for section, options in VARIANTS[request.param].items():
        config[section] |= options
    config["training"] |= {"max_steps": 60}
    result = seq2seq("train", write_config(folder, config), "--run-dir", folder / "run")
    assert result.exit_code == 0, result.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def trained_shared(seq2seq, tmp_path_factory) -> Path:
    """Trained until it knows its task."""
    folder = tmp_path_factory.mktemp("shared")
    config = numbers_config(folder)
    config["tokenizer"]["shared"] = True
    result = seq2seq("train", write_config(folder, config), "--run-dir", folder / "run")
    assert result.exit_code == 0, result.stderr
    return folder / "run"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file_format", ["ctranslate2", "huggingface"])
def test_an_exported_run_translates_the_same(run, file_format, seq2seq, tmp_path):
    result = seq2seq("export", run, "--format", file_format, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    assert "greedy translations of validation lines are equal" in result.stdout
    equal, total = (int(word) for word in result.stdout.split() if word.isdigit())
    assert equal >= 0.97 * total > 0
    assert "import" in (tmp_path / "out/README.md").read_text()
    again = seq2seq("export", run, "--format", file_format, "--output", tmp_path / "out")
    assert again.exit_code == 2
    assert "not an empty folder" in again.stderr


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file_format", ["ctranslate2", "huggingface"])
def test_the_readmes_lines_translate(trained_shared, file_format, seq2seq, tmp_path, capsys):
    folder = tmp_path / file_format
    assert seq2seq("export", trained_shared, "--format", file_format, "-o", folder).exit_code == 0
    code = (folder / "README.md").read_text().split("```")[1].removeprefix("python\n")
    script = tmp_path / "readme.py"
    script.write_text(code.replace("a sentence", "1 2"))
    done = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True)
    assert done.stdout == "one two\n", done.stderr


def test_what_a_format_cannot_hold_is_named(seq2seq, tmp_path):
    config = numbers_config(tmp_path)
    config["tokenizer"]["shared"] = False
    config["training"] |= {"max_steps": 2, "warmup_steps": 1}
    assert (
        seq2seq("train", write_config(tmp_path, config), "--run-dir", tmp_path / "r").exit_code == 0
    )
    result = seq2seq("export", tmp_path / "r", "--format", "huggingface", "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "tokenizer.shared" in result.stderr
    assert not (tmp_path / "out").exists()
