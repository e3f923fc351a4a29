"""Translating, scoring and serving import no PyTorch, and give what PyTorch gives."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import ROOT
from small_models import build

import seq2seq_cli
from seq2seq_cli import Translator
from seq2seq_cli.decoding.engines.cpu_decoder import native_model_of
from seq2seq_cli.decoding.engines.native_model import MODEL_CODE, model_code_hash, parameter_shapes
from seq2seq_cli.decoding.lines.merging import Outputs
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.model.weights import unique_parameters
from seq2seq_cli.native.library import precisions

pytestmark = pytest.mark.skipif(not precisions(), reason="not compiled")
LINES = ["1 2 3", "4", "", "5 6 7 8 9 1 2"]
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # so that an import of it fails
from seq2seq_cli.cli import main
sys.argv = ["seq2seq", *sys.argv[1:]]
main()
"""


def seq2seq_without_torch(*arguments: object, stdin: str = "") -> str:
    command = [sys.executable, "-c", WITHOUT_TORCH, *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_changed_model_needs_a_look_at_the_c_code():
    """Write the new hash into native_model.py if C still computes what the model does."""
    assert model_code_hash(Path(seq2seq_cli.__file__).parent / "model") == MODEL_CODE


def test_edited_model_code_is_loaded_with_pytorch(trained, tmp_path):
    """As its logits must be compared with those of C."""
    package = tmp_path / "seq2seq_cli"
    shutil.copytree(ROOT / package.name, package, ignore=shutil.ignore_patterns("__pycache__"))
    code = "import sys, seq2seq_cli as s; t = s.Translator.load(sys.argv[1], 'cpu'); "
    code += "print(*t.translate(['1 2 3']), type(t.backend).__name__)"
    printed = []
    for text in ("", "# edited\n"):
        with (package / "model/layers.py").open("a") as file:
            file.write(text)
        command = [sys.executable, "-c", code, str(trained)]
        printed.append(subprocess.check_output(command, text=True, cwd=tmp_path).strip())
    assert printed == ["one two three NativeBackend", "one two three TorchBackend"]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--beam-size", 4),
        ("--beam-size", 4, "--n-best", 2, "--format", "tsv"),
        ("--beam-size", 3, "--set", "decoding.length_penalty_formula=gnmt"),
        ("--set", "decoding.no_repeat_ngram_size=2", "--precision", "fp32"),
        ("--align", "--log-probs", "--format", "jsonl", "--precision", "fp32"),
    ],
    ids=str,
)
def test_translations_are_those_with_pytorch(trained, seq2seq, options, tmp_path):
    file = tmp_path / "lines"
    file.write_text("\n".join(LINES) + "\n")
    made = seq2seq_without_torch("translate", trained, "--input", file, *options)
    assert made.count("\n") >= len(LINES)
    plain = ("--set", "decoding.engine=plain", "--precision", "fp32")
    if "--align" not in options and "tsv" not in options:
        assert made == seq2seq("translate", trained, "--input", file, *options, *plain).stdout


def test_scores_are_those_with_pytorch(trained, tmp_path):
    pairs = [("1 2 3", "one two three"), ("4", "five"), ("", "")]
    without = Translator.load(trained, "cpu")
    in_torch = Translator(without.models, without.tokenizers, without.config, without.statistics)
    for found, expected in zip(without.score(pairs), in_torch.score(pairs), strict=True):
        np.testing.assert_allclose(found.log_probs, expected.log_probs, rtol=1e-4, atol=1e-5)
    inputs = [TranslationInput(source) for source, _ in pairs]
    more = Outputs(log_probs=True, alignment=True)
    outputs = [translator.search(inputs, more) for translator in (without, in_torch)]
    for found, expected in zip(*outputs, strict=True):
        assert found[0].alignment == expected[0].alignment
    (tmp_path / "pairs.tsv").write_text("1 2\tone two\n3\tthree\n")
    scored = seq2seq_without_torch("score", trained, "--pairs", tmp_path / "pairs.tsv")
    assert scored.count("\n") == 2


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "post", "attention_bias": False, "tie_embeddings": True},
        {"positions": "rotary", "rotary_cross_attention": True, "d_model": 24},
        {"attention_scale": "temperature", "embedding_scale": False},
    ],
    ids=str,
)
def test_shapes_of_parameters_and_positions_are_the_model_s(options):
    model = build(1, vocabulary=20, **options)
    found = {name: tuple(p.shape) for name, p in unique_parameters(model).items()}
    assert parameter_shapes(model.config, 12, 20, is_shared=False) == found
    table = torch.from_numpy(native_model_of(model, "fp32").positions(300)[:300])
    expected = model.position_vectors(0, 300)
    if expected is not None:
        torch.testing.assert_close(table, expected, rtol=0, atol=5e-5)
