"""Which packages translating and scoring import: PyTorch only where the library cannot do it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import ROOT, logged_points
from number_task import numbers_config, write_config

from seq2seq_cli import Translator
from seq2seq_cli.decoding.engines.base import PlainDecoder
from seq2seq_cli.decoding.engines.cpu_decoder import CpuDecoder
from seq2seq_cli.decoding.lines.merging import Outputs
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.weights import read_tensors, save_tensors
from seq2seq_cli.native import library as native
from seq2seq_cli.training.optimizers.optimizer import OPTIMIZERS

pytestmark = pytest.mark.skipif(not native.precisions(), reason="not compiled")

HEAVY = {"torch", "tensorboard", "sacrebleu", "scipy", "pandas", "matplotlib"}
# Each command runs in a fork of a process that has imported the command line and nothing else, so
# that what they share is imported once. After what it prints, a form feed comes, and the heavy
# packages that it has imported. `unless` is a package whose import ends it there.
COMMANDS = f"""
import json, os, sys
from importlib.abc import MetaPathFinder
from seq2seq_cli.cli import app

class Imported(BaseException):
    pass

class Watch(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == unless:
            raise Imported

commands, unless = json.loads(sys.argv[1])
assert not {HEAVY!r} & set(sys.modules)
for command in commands:
    if os.fork():
        assert os.wait()[1] == 0, command
        continue
    sys.meta_path.insert(0, Watch())
    found = set()
    try:
        app(command, standalone_mode=False)
    except Imported:
        found = {{unless}}
    print("\\f", *sorted(found | {HEAVY!r} & set(sys.modules)), flush=True)
    os._exit(0)
"""
# In one process: prints the same of all commands together.
IN_TURN = f"""
import json, sys
from seq2seq_cli.cli import app
for command in json.loads(sys.argv[1])[0]:
    app(command, standalone_mode=False)
    print("\\f", *sorted({HEAVY!r} & set(sys.modules)), flush=True)
"""


def run_alone(code: str, *arguments: object, package: Path = ROOT) -> str:
    """Run code in another process; return its standard output."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(package), "PYTHONSAFEPATH": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_commands(
    code: str, *commands: tuple[object, ...], unless: str = "", package: Path = ROOT
) -> list[tuple[str, list[str]]]:
    """Run commands in another process; return what each prints, and what it has imported."""
    given = json.dumps([[[*map(str, command)] for command in commands], unless])
    *parts, rest = run_alone(code, given, package=package).split("\f")
    printed = [parts[0], *(part.partition("\n")[2] for part in parts[1:])]
    imported = [part.partition("\n")[0].split() for part in (*parts[1:], rest)]
    return list(zip(printed, imported, strict=True))


def test_translating_imports_no_heavy_package(trained, seq2seq):
    options = (
        (),
        ("-b", "5"),
        ("-b", "5", "--n-best", "3", "--format", "nbest"),
        ("--align", "--format", "jsonl"),
        ("--replace-unk", "--precision", "fp32"),
        ("--set", "decoding.no_repeat_ngram_size=2", "--device", "cpu"),
        ("--set", "decoding.min_len_extra=3", "--split-sentences"),
        ("-b", "5", "--ensemble", trained, "--ensemble", trained, "--format", "tsv", "--log-probs"),
    )
    commands = [("translate", trained, "1 2 3", "", "7 8. 9", *given) for given in options]
    for command, found in zip(commands, run_commands(COMMANDS, *commands), strict=True):
        assert found == (seq2seq(*command).stdout, []), command


@pytest.mark.slow
def test_what_the_library_does_not_do_imports_pytorch(trained, seq2seq):
    options = (
        ("--sampling",),
        ("--ban", "two"),
        ("--prefix", "one"),
        ("-b", "2", "--require", "two"),
        ("--set", "decoding.repetition_penalty=2"),
        ("--set", "decoding.engine=plain"),
    )
    commands = [("translate", trained, "1 2 3", "4", *given) for given in options]
    assert run_commands(COMMANDS, *commands, unless="torch") == [("", ["torch"])] * len(commands)
    for command, (printed, imported) in zip(
        commands, run_commands(IN_TURN, *commands), strict=True
    ):
        assert "torch" in imported
        assert printed == seq2seq(*command).stdout, command


def test_scoring_imports_no_heavy_package(trained, seq2seq, tmp_path):
    (tmp_path / "src").write_text("1 2\n3\n")
    (tmp_path / "ref").write_text("one two\nthree three\n")
    command = ("score", trained, "--src", tmp_path / "src", "--ref", tmp_path / "ref")
    ((printed, imported),) = run_commands(COMMANDS, command)
    assert imported == []
    assert printed == seq2seq(*command).stdout
    with_pytorch = Translator.load(trained, "cpu", ["decoding.engine=plain"], exact=True)
    scored = with_pytorch.score([("1 2", "one two"), ("3", "three three")])
    for line, expected in zip(printed.splitlines(), scored, strict=True):
        assert abs(float(line.split("\t")[0]) - expected.log_prob) < 1e-3


@pytest.mark.slow
def test_training_does_not_import_torch_dynamo(tmp_path):
    """PyTorch's optimizers would, which takes a second and 60 MB of every process that trains."""
    settings = numbers_config(tmp_path, 60, max_steps=2, warmup_steps=0, processes=1)
    config = write_config(tmp_path, settings)
    code = f"""
import sys
from seq2seq_cli.cli import app
for name in {sorted(OPTIMIZERS)!r}:
    given = ("--run-dir", f"{{sys.argv[2]}}/{{name}}", "--set", f"training.optimizer={{name}}")
    app(["train", sys.argv[1], *given], standalone_mode=False)
print("\\f", "torch" in sys.modules, "torch._dynamo" in sys.modules)
"""
    assert run_alone(code, config, tmp_path).rpartition("\f")[2] == " True False\n"


def test_translator_and_its_copies_import_no_heavy_package(trained):
    code = f"""
import copy, pickle, sys
from seq2seq_cli import Translator
translator = Translator.load(sys.argv[1], overrides=["decoding.beam_size=2"])
copied = pickle.loads(pickle.dumps(copy.deepcopy(translator)))
print(translator.translate(["1 2"]), copied.translate(["3"]), copied.score([("1", "one")])[0].text)
print(*sorted({HEAVY!r} & set(sys.modules)))
"""
    assert run_alone(code, trained) == "['one two'] ['three'] one\n\n"


@pytest.mark.parametrize("precision", sorted(native.precisions()))
def test_a_load_without_pytorch_gives_what_one_with_it_gives(trained, precision):
    settings = [f"decoding.precision={precision}", "decoding.beam_size=3", "decoding.n_best=3"]
    alone = Translator.load(trained, "cpu", settings)
    model = Translator.load(trained, "cpu", ["decoding.engine=plain"], exact=True).model
    config = alone.config
    both = alone, Translator(model, alone.tokenizers, config, alone.statistics, precision)
    assert isinstance(both[1].backend.decoder, CpuDecoder)
    inputs = [TranslationInput(text) for text in ("1 2 3", "", "9 8 7 6 5", "4 4 4")]
    found, expected = (t.search(inputs, Outputs(True, True)) for t in both)
    for of_line, expected_of_line in zip(found, expected, strict=True):
        assert [one.text for one in of_line] == [one.text for one in expected_of_line]
        for one, other in zip(of_line, expected_of_line, strict=True):
            assert one.alignment == other.alignment
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-3)
            assert one.score == pytest.approx(other.score, abs=1e-5)


def edited_package(folder: Path, file: str, *edits: tuple[str, str]) -> Path:
    package = folder / "seq2seq_cli"
    shutil.copytree(ROOT / "seq2seq_cli", package, ignore=shutil.ignore_patterns("__pycache__"))
    code = (package / file).read_text(encoding="utf-8")
    for before, after in edits:
        assert before in code
        code = code.replace(before, after)
    (package / file).write_text(code, encoding="utf-8")
    return folder


@pytest.mark.slow
def test_an_edited_model_is_computed_by_its_own_code(trained, seq2seq, tmp_path):
    """Also if only long sentences show the edit, and neither options nor the names of weights."""
    product = "self.contract(inner_BMF)"
    only_short = f"{product} * (states_BMD.size(1) < 9)"
    package = edited_package(tmp_path, "model/layers.py", (product, only_short))
    line = "1 2 3 4 5 6 7 8 9 8 7 6"
    command = ("translate", trained, line, "5 6", "--log-probs", "--format", "jsonl")
    with_plain = (*command, "--set", "decoding.engine=plain")
    (printed, imported), (plain, _) = run_commands(IN_TURN, command, with_plain, package=package)
    assert "torch" in imported
    assert printed == plain
    unedited = seq2seq(*command).stdout
    assert log_prob(printed) != pytest.approx(log_prob(unedited), abs=1e-3)


@pytest.mark.slow
def test_an_edited_model_is_trained_by_its_own_code(tmp_path):
    """The loss before the first update is that of a validation after an update by nothing."""
    config = numbers_config(tmp_path, 30, max_steps=1, warmup_steps=0, lr=1e-30)
    config["data"]["valid"] = config["data"]["train"]
    config["training"] |= {"tokens_per_batch": 4_096, "label_smoothing": 0.0, "log_every": 1}
    config["training"] |= {"processes": 1, "precision": "fp32"}
    config["validation"]["decode"] = False
    path = write_config(tmp_path, config)
    heads = "heads_BHQK.to(activation_dtype(heads_BHQK))"
    constructor = "super().__init__()\n"
    reads_numbers = f"{constructor}        self.rates = torch.linspace(0, 0.1, 3).tolist()\n"
    edits = ((heads, f"5 * {heads}"), (constructor, reads_numbers))
    package = edited_package(tmp_path, "model/attention.py", *edits)
    commands = ("train", path, "--run-dir", tmp_path / "run"), ("inspect", tmp_path / "run")
    _, (report, _) = run_commands(IN_TURN, *commands, package=package)
    assert "parameters" in report
    points = {k: x for point in logged_points(tmp_path / "run") for k, x in point.items()}
    assert points["train/loss"] == pytest.approx(points["valid/loss"], rel=1e-5)
    assert "the model's code has been edited" in (tmp_path / "run/train.log").read_text()


def log_prob(printed: str) -> float:
    number: float = json.loads(printed.splitlines()[0])["log_prob"]
    return number


def test_weights_that_were_replaced_are_not_mixed_with_those_in_memory(trained, tmp_path):
    """A training replaces the best model while a server has it loaded."""
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    path = run / "model.safetensors"
    translator = Translator.load(run, "cpu", ["decoding.precision=int8"])
    save_tensors({n: 2 * tensor for n, tensor in read_tensors(path).items()}, path)
    assert translator.translate(["1 2"]) == ["one two"]
    for use in (lambda: translator.score([("1", "one")]), lambda: translator.model):
        with pytest.raises(UserError, match="load it or run the command again"):
            use()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_default_type_of_pytorch_is_not_the_model_s(trained, dtype):
    torch.set_default_dtype(dtype)
    try:
        translator = Translator.load(trained, "cpu", ["decoding.engine=plain"])
        assert translator.translate(["1 2"]) == ["one two"]
    finally:
        torch.set_default_dtype(torch.float32)
    assert {parameter.dtype for parameter in translator.model.parameters()} == {torch.float32}


def test_a_relative_run_is_found_after_a_change_of_folder(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(trained.parent)
    translator = Translator.load(trained.name, "cpu", ["decoding.precision=int8"])
    monkeypatch.chdir(tmp_path)
    assert translator.score([("1", "one")])[0].text == "one"
    assert isinstance(PlainDecoder(translator.model).device, torch.device)


def test_a_checkpoint_is_read_for_pytorch_before_training_may_remove_it(trained, tmp_path):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    loaded = Translator.load(run, "cpu", which="last", exact=True, with_pytorch=True)
    shutil.rmtree(run / "checkpoints")
    assert loaded.translate(["1 2"]) == ["one two"]
    assert loaded.model.config == loaded.config.model
