"""Imported models go back to the programs that they are from: the same weights and translations."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
import yaml
from commands import Command
from foreign_models import WORDS, write_ctranslate2, write_marian, write_marian_mt

from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID

ct2 = pytest.importorskip("ctranslate2")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")

TAGS = (">>deu<<", ">>eng<<")
SENTENCES = [" ".join(WORDS[n : n + k]) for n in range(0, 16, 3) for k in (1, 4)]


def import_and_export(
    seq2seq: Command, source: Path, output: Path, file_format: str, *options: object
) -> str:
    """Import a model into the folder `run` next to it and export that; return the report."""
    run = source.parent / "run"
    seq2seq("import", source, run, "--no-verify").ok()
    result = seq2seq("export", run, "--format", file_format, "-o", output, *options).ok()
    assert "greedy translations of made-up lines are equal" in result.stdout
    return result.stdout


def table(folder: Path, name: str = "vocab.json") -> dict[str, int]:
    path = folder / name
    return json.loads((path if path.exists() else folder / "vocab.json").read_text())


def logits_of(folder: Path, pieces: list[str], known: list[str]) -> torch.Tensor:
    """The logits of known target pieces by transformers, for these source pieces, TV."""
    auto = transformers.AutoModelForSeq2SeqLM
    model = auto.from_pretrained(folder, dtype=torch.float32).eval()
    src, tgt = table(folder), table(folder, "target_vocab.json")
    targets = [tgt[piece] for piece in known[:7]]
    with torch.no_grad():
        logits_BTV = model(
            input_ids=torch.tensor([[src[piece] for piece in [*pieces, "</s>"]]]),
            decoder_input_ids=torch.tensor([[model.config.decoder_start_token_id, *targets]]),
        ).logits
    return logits_BTV[0][:, [tgt[piece] for piece in known]]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"tags": TAGS, "scale_embedding": False},
        {"shared": False},
        pytest.param({"odd_ids": True, "half": True}, marks=pytest.mark.slow),
        pytest.param({"shared": False, "odd_ids": True}, marks=pytest.mark.slow),
        {"activation_function": "quick_gelu", "odd_ids": True},
        pytest.param({"activation_function": "gelu"}, marks=pytest.mark.slow),
    ],
)
def test_transformers_gets_its_model_back(options, seq2seq, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    write_marian_mt(first, 3, **options)
    import_and_export(seq2seq, first, second, "huggingface")
    for name in ("source.spm", "target.spm"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    for name in ("vocab.json", "target_vocab.json"):
        assert table(first, name).keys() == table(second, name).keys()
        assert "odd_ids" in options or table(first, name) == table(second, name)
    known = sorted(table(first, "target_vocab.json"))
    src = [piece for piece in table(first) if piece not in ("<pad>", "</s>")]
    for start in range(0, 30, 10):
        pieces = src[start : start + 9]
        expected, actual = (logits_of(folder, pieces, known) for folder in (first, second))
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    lines = [f"{tag}{line}" for tag in options.get("tags", ("",)) for line in SENTENCES]
    both = [transformers.AutoTokenizer.from_pretrained(folder) for folder in (first, second)]
    names = [[t.convert_ids_to_tokens(t(line)["input_ids"]) for line in lines] for t in both]
    if options.get("shared", True):
        assert names[0] == names[1]
    ids = [[t(line)["input_ids"] for line in lines] for t in both]
    assert "odd_ids" in options or ids[0] == ids[1]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shared": False, "norm": "pre", "activation": "relu"},
        pytest.param({"shared": False}, marks=pytest.mark.slow),
        pytest.param({"norm": "pre"}, marks=pytest.mark.slow),
    ],
)
def test_marian_gets_its_model_back(options, seq2seq, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    write_marian(first, 5, **options)
    import_and_export(seq2seq, first, second, "marian")
    before, after = (dict(np.load(folder / "model.npz")) for folder in (first, second))
    described = [
        yaml.safe_load(arrays.pop("special:model.yml").tobytes().rstrip(b"\0"))
        for arrays in (before, after)
    ]
    assert described[0].items() <= described[1].items()
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, atol=1e-6, err_msg=name)
        assert (after[name].dtype, after[name].shape) == (array.dtype, array.shape)
    decoders = [yaml.safe_load((folder / "decoder.yml").read_text()) for folder in (first, second)]
    for name in ("models", "beam-size", "normalize", "relative-paths"):
        assert decoders[0][name] == decoders[1][name]
    entries = [
        [yaml.safe_load((folder / name).read_text()) for name in decoder["vocabs"]]
        for folder, decoder in zip((first, second), decoders, strict=True)
    ]
    assert entries[0] == entries[1]
    for name in ("source.spm", "target.spm"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


@pytest.mark.slow
def test_transformers_computes_with_the_positions_of_marian(seq2seq, tmp_path):
    """They are stored, as transformers would compute others; the epsilons differ."""
    write_marian(tmp_path / "first", 5)
    output = tmp_path / "out"
    import_and_export(seq2seq, tmp_path / "first", output, "huggingface")
    readme = (output / "README.md").read_text()
    assert "own table of positions" in readme
    assert "epsilon of 1e-05, the model was made with 1e-09" in readme
    seq2seq("import", output, tmp_path / "back", "--no-verify").ok()
    configs = [yaml.safe_load((tmp_path / n / "config.yaml").read_text()) for n in ("run", "back")]
    bases = [config["model"]["position_base"] for config in configs]
    assert bases[1] == pytest.approx(bases[0])
    assert bases[0] > 10_001


def test_positions_of_transformers_are_refused_in_marian(seq2seq, tmp_path):
    write_marian_mt(tmp_path / "first", 3)
    run, output = tmp_path / "run", tmp_path / "out"
    assert seq2seq("import", tmp_path / "first", run, "--no-verify").exit_code == 0
    result = seq2seq("export", run, "--format", "marian", "-o", output)
    assert (result.exit_code, "position_base is 10000" in result.stderr) == (2, True)
    assert not output.exists()


def logits_here(run: Path, lines: list[str]) -> torch.Tensor:
    """The logits of all tokens but PAD, UNK and BOS, for lines as source and as target."""
    translator, logits = Translator.load(run, "cpu", exact=True), []
    for line in lines:
        src, tgt = (tokenizer.to_ids(line) for tokenizer in translator.tokenizers)
        with torch.inference_mode():
            ids = torch.tensor([[*src, EOS_ID]]), torch.tensor([[BOS_ID, *tgt]])
            logits.append(translator.model(*ids)[0, :, EOS_ID:])
    return torch.cat(logits)


@pytest.mark.slow
def test_a_pre_norm_model_comes_back_from_transformers(seq2seq, tmp_path):
    """It is a Pegasus model with MarianTokenizer's files there; `import` compares it."""
    write_marian(tmp_path / "marian", 4, norm="pre")
    write_converted(tmp_path / "first", tmp_path / "marian")
    output, back = tmp_path / "out", tmp_path / "back"
    import_and_export(seq2seq, tmp_path / "first", output, "huggingface")
    assert json.loads((output / "config.json").read_text())["model_type"] == "pegasus"
    auto = transformers.AutoModelForSeq2SeqLM
    _, report = auto.from_pretrained(output, output_loading_info=True)
    assert not any(report.values()), report  # it would warn of weights that are missing
    result = seq2seq("import", output, back).ok()
    assert "logits of 100 sentences equal transformers'" in result.stdout
    before, after = (logits_here(run, SENTENCES) for run in (tmp_path / "run", back))
    torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-5)


def greedy(folder: Path, spm: Path, lines: list[str], *end: str) -> list[list[str]]:
    """CTranslate2's translations in fp32, as pieces; `end` comes after each source."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    translator = ct2.Translator(str(folder), compute_type="float32")
    sources = [[*processor.encode(line, out_type=str), *end] for line in lines]
    options = {"beam_size": 1, "max_decoding_length": 30, "suppress_sequences": [["<unk>"]]}
    return [result.hypotheses[0] for result in translator.translate_batch(sources, **options)]


def write_converted(folder: Path, other: Path) -> None:
    """Write a CTranslate2 model of a model of Marian."""
    names = yaml.safe_load((other / "decoder.yml").read_text())["vocabs"]
    vocabularies = [str(other / name) for name in names]
    ct2.converters.MarianConverter(str(other / "model.npz"), vocabularies).convert(str(folder))
    for name in ("source.spm", "target.spm"):
        shutil.copy(other / name, folder / name)


@pytest.mark.parametrize("shared", [True, False])
def test_ctranslate2_gets_its_model_back(shared, seq2seq, tmp_path):
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    if shared:
        write_marian_mt(other, 4)
        write_ctranslate2(other, first)
    else:
        write_marian(other, 4, shared=False)
        write_converted(first, other)
    import_and_export(seq2seq, first, second, "ctranslate2")
    for name in ["shared"] if shared else ["source", "target"]:
        before, after = (
            json.loads((folder / f"{name}_vocabulary.json").read_text())
            for folder in (first, second)
        )
        assert set(before) == set(after)
    end = ["</s>"] if shared else []  # which Marian's own models add
    before = greedy(first, first / "source.spm", SENTENCES, *end)
    assert greedy(second, second / "source.spm", SENTENCES) == before


def test_code_in_the_readme_translates_as_the_run(seq2seq, tmp_path):
    write_marian_mt(tmp_path / "first", 4)
    output = tmp_path / "out"
    import_and_export(seq2seq, tmp_path / "first", output, "ctranslate2")
    readme = (output / "README.md").read_text()
    script = tmp_path / "readme.py"
    code = readme.split("```")[1].removeprefix("python\n")
    lines = [*SENTENCES[:3], " eins\tzwei ", ""]
    script.write_text(code.replace('translate("a sentence")', f"*map(translate, {lines}), sep='|'"))
    done = subprocess.run([sys.executable, script], cwd=output, capture_output=True, text=True)
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines))
    options = ("-i", tmp_path / "in", "--precision", "fp32")
    expected = seq2seq("translate", tmp_path / "run", *options).stdout
    assert done.stdout.rstrip("\n").split("|") == expected.split("\n")[:-1], done.stderr


@pytest.fixture(scope="module")
def fine_tuned(seq2seq, tmp_path_factory) -> Path:
    """A model of Marian after some updates on text of another kind."""
    folder = tmp_path_factory.mktemp("fine_tuned")
    write_marian(folder / "source", 6)
    seq2seq("import", folder / "source", folder / "imported", "--no-verify").ok()
    for side, words in (("src", WORDS[:10]), ("tgt", WORDS[10:])):
        lines = (" ".join(words[(n * k) % 10] for k in range(1, 2 + n % 5)) for n in range(60))
        (folder / f"text.{side}").write_text("".join(f"{line}\n" for line in lines))
    text = {side: str(folder / f"text.{side}") for side in ("src", "tgt")}
    config = {
        "data": {"train": text, "valid": text},
        "training": {"max_steps": 12, "device": "cpu", "tokens_per_batch": 300, "lr": 0.001},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    start = ("--from", folder / "imported", "--run-dir", folder / "run")
    seq2seq("train", folder / "config.yaml", *start).ok()
    return folder / "run"


def test_tags_in_the_output_do_not_count_in_the_comparison(seq2seq, tmp_path):
    """Argos Translate writes them, this program does not; random weights choose them often."""
    write_marian_mt(tmp_path / "first", 1, tags=(">>deu<<", ">>eng<<"))
    langs = ("--langs", "de-en")
    seq2seq("import", tmp_path / "first", tmp_path / "run", *langs, "--no-verify").ok()
    output = tmp_path / "x.argosmodel"
    result = seq2seq("export", tmp_path / "run", "--format", "argos", *langs, "-o", output).ok()
    assert "40 of 40 greedy translations of made-up lines are equal" in result.stdout


@pytest.mark.parametrize("file_format", ["marian", "huggingface", "ctranslate2", "argos"])
def test_a_fine_tuned_model_goes_to_every_program(file_format, fine_tuned, seq2seq, tmp_path):
    output = tmp_path / ("x.argosmodel" if file_format == "argos" else "out")
    options = ("--format", file_format, "--langs", "de-en")
    result = seq2seq("export", fine_tuned, *options, "-o", output).ok()
    equal, total = (int(word) for word in result.stdout.split() if word.isdigit())
    assert equal >= 0.97 * total > 0
    assert "greedy translations of validation lines" in result.stdout


@pytest.fixture(scope="module")
def trimmed(fine_tuned, seq2seq) -> Path:
    """The fine-tuned model without the pieces of most words."""
    text, run = fine_tuned.with_name("text"), fine_tuned.with_name("trimmed")
    text.write_text("eins zwei\none two\n")
    seq2seq("trim", fine_tuned, "--text", text, "--output", run).ok()
    return run


@pytest.mark.parametrize("file_format", ["marian", "huggingface", "ctranslate2", "argos"])
def test_a_trimmed_model_goes_to_every_program(file_format, trimmed, seq2seq, tmp_path):
    """Every program splits all text as the run does, and `import` brings the run back."""
    output, back = tmp_path / ("x.argosmodel" if file_format == "argos" else "out"), tmp_path / "b"
    options = ("--format", file_format, "--langs", "de-en")
    seq2seq("export", trimmed, *options, "-o", output).ok()
    if file_format == "huggingface":
        random, tokenizer = Random(1), transformers.AutoTokenizer.from_pretrained(output)
        letters = "".join(sorted({*"".join(WORDS), " "}))
        lines = [" ".join(random.choices(WORDS, k=6)) for _ in range(200)]
        lines += ["".join(random.choices(letters, k=20)) for _ in range(200)]
        ours = Translator.load(trimmed, "cpu").tokenizers.src
        for line in lines:
            theirs = tokenizer.convert_ids_to_tokens(tokenizer(line)["input_ids"])
            assert theirs == [*ours.pieces_of(ours.to_ids(line)), "</s>"]
    assert seq2seq("import", output, back, "--no-verify").exit_code == 0
    before, after = (logits_here(run, SENTENCES) for run in (trimmed, back))
    torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)  # epsilons may differ


def unpacked(package: Path, folder: Path) -> Path:
    with zipfile.ZipFile(package) as archive:
        archive.extractall(folder)
    (inner,) = folder.iterdir()
    return inner


@pytest.mark.parametrize("source_eos", [True, False])
def test_argos_translate_gets_its_model_back(source_eos, trained_argos, seq2seq, tmp_path):
    """Also a model whose encoder sees no EOS, as Argos Translate's own."""
    packages = [unpacked(trained_argos, tmp_path / "unpacked")]
    config = json.loads((packages[0] / "model/config.json").read_text())
    config["add_source_eos"] = source_eos
    (packages[0] / "model/config.json").write_text(json.dumps(config))
    first, second = tmp_path / "first.argosmodel", tmp_path / "second.argosmodel"
    with zipfile.ZipFile(first, "w") as archive:
        for path in packages[0].rglob("*"):
            archive.write(path, path.relative_to(packages[0].parent))
    import_and_export(seq2seq, first, second, "argos")
    packages.append(unpacked(second, tmp_path / "again"))
    for name in ("sentencepiece.model", "metadata.json"):
        before, after = ((folder / name).read_bytes() for folder in packages)
        assert before == after
    lines = ["1 2", "7 8 9", "5 4 3 2 1 0", "6 6 6 7", "▁ 1"]
    texts = [greedy(f / "model", f / "sentencepiece.model", lines) for f in packages]
    assert texts[0] == texts[1]


@pytest.fixture
def trained_argos(trained, seq2seq, tmp_path) -> Path:
    package = tmp_path / "numbers.argosmodel"
    seq2seq("export", trained, "--format", "argos", "-o", package, "--langs", "de-en").ok()
    return package
