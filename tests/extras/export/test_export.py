"""Exported models give the same translations in other programs."""

import functools
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import pytest
from faults.hostile_lines import ATOMS
from hypothesis import example, given
from hypothesis import strategies as st
from number_task import FAST, numbers_config, write_config

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.extras.export.exporter import DIFFICULT_LINES
from seq2seq_cli.extras.export.huggingface_tokenizer import fast_tokenizer
from seq2seq_cli.extras.export.limits import FORMATS, format_named
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.tokenizer import EOS_ID, Tokenizer, load_tokenizers

ct2 = pytest.importorskip("ctranslate2")
transformers = pytest.importorskip("transformers")

VARIANTS = {
    "pre, unigram": {},  # trained_shared
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
        "model": {"embedding_scale": False, "attention_scale": "temperature"},
    },
}


SLOW_VARIANTS = ("post, bpe, no bias", "words", "characters")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.slow if name in SLOW_VARIANTS else ())
        for name in VARIANTS
    ],
)
def run(request, seq2seq, tmp_path_factory) -> Path:
    """A run that is undertrained, but far from random."""
    if not VARIANTS[request.param]:
        return request.getfixturevalue("trained_shared")
    folder = tmp_path_factory.mktemp("export")
    config = numbers_config(folder)
    for section, options in VARIANTS[request.param].items():
        config[section] |= options
    config["training"] |= {"max_steps": 60}
    seq2seq("train", write_config(folder, config), "--run-dir", folder / "run").ok()
    return folder / "run"


@pytest.fixture(scope="module")
def trained_shared(seq2seq, tmp_path_factory) -> Path:
    """A fully trained run with decoding options."""
    folder = tmp_path_factory.mktemp("shared")
    config = numbers_config(folder, 3_000, **FAST, max_steps=180)
    config["tokenizer"] = {"kind": "unigram", "vocab_size": 300, "shared": True}
    config["decoding"] = {"beam_size": 3, "max_len_factor": 1.5, "max_len_extra": 9}
    config["decoding"] |= {"no_repeat_ngram_size": 4, "banned_words": ["xyz"]}
    seq2seq("train", write_config(folder, config), "--run-dir", folder / "run").ok()
    return folder / "run"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file_format", ["ctranslate2", "huggingface"])
def test_exported_model_gives_the_same_translations(run, file_format, seq2seq, tmp_path):
    result = seq2seq("export", run, "--format", file_format, "--output", tmp_path / "out").ok()
    assert "greedy translations of validation lines are equal" in result.stdout
    equal, total = (int(word) for word in result.stdout.split() if word.isdigit())
    assert equal >= 0.97 * total > 0
    assert f"translating {total} validation lines with both programs" in result.stderr
    assert "import" in (tmp_path / "out/README.md").read_text()
    message = seq2seq("export", run, "--format", file_format, "--output", tmp_path / "out").error()
    assert "not an empty folder" in message


@pytest.mark.parametrize("name", FORMATS)
def test_readme_says_which_formats_do_not_sample(trained_shared, name):
    sampling = ["decoding.sampling=true", "decoding.top_k=5", "decoding.beam_size=1"]
    config = load_config(trained_shared / "config.yaml", sampling)
    tokenizers = load_tokenizers(RunFolder(trained_shared), config.tokenizer)
    notes = format_named(name).notes(config, tokenizers)
    assert ("`decoding.sampling`" in notes) == (name in ("marian", "argos"))


LINES = ["1 2", "3\t7\u00a08  9", "", " \t", "1 2 3 4 5 6"]
# Unlike the training text: where hypotheses are about as probable, beams find different ones.
ODD_LINES = ["7 <s> 8", "▁ 9"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("file_format", "lines", "beam"),
    [
        ("ctranslate2", LINES, 3),  # of the run
        ("ctranslate2", ODD_LINES, 1),
        pytest.param("huggingface", LINES, 3, marks=pytest.mark.slow),
    ],
)
def test_export_code_in_the_readme_gives_the_same_translations(
    trained_shared, file_format, lines, beam, seq2seq, tmp_path
):
    folder = tmp_path / file_format
    assert seq2seq("export", trained_shared, "--format", file_format, "-o", folder).exit_code == 0
    readme = (folder / "README.md").read_text()
    assert "Unsupported options of the run: `decoding.banned_words`." in readme
    code = (
        readme.split("```")[1].removeprefix("python\n").replace("beam_size=3", f"beam_size={beam}")
    )
    assert 'print(translate("a sentence"))' in code
    assert "patience=3" in code or file_format == "huggingface"  # whose config has early_stopping
    script = tmp_path / "readme.py"
    script.write_text(code.replace('translate("a sentence")', f"*map(translate, {lines}), sep='|'"))
    done = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True)
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines))
    options = ("-i", tmp_path / "in", "--precision", "fp32", "--beam-size", beam)
    expected = seq2seq("translate", trained_shared, *options).stdout
    assert done.stdout.rstrip("\n").split("|") == expected.split("\n")[:-1], done.stderr
    assert lines == ODD_LINES or expected.startswith("one two\nthree seven eight nine\n\n\n")


@pytest.mark.filterwarnings("ignore")
def test_huggingface_generation_config_has_the_decoding_options(trained_shared, seq2seq, tmp_path):
    folder = tmp_path / "out"
    assert seq2seq("export", trained_shared, "--format", "huggingface", "-o", folder).exit_code == 0
    found = json.loads((folder / "generation_config.json").read_text())
    assert (found["num_beams"], found["early_stopping"]) == (3, "never")
    assert (found["no_repeat_ngram_size"], found["max_new_tokens"]) == (4, 1.5 * 256 + 9 + 1)
    assert "length_penalty" not in found  # its default is ours


@pytest.mark.filterwarnings("ignore")
def test_export_compares_on_validation_text_if_it_exists(
    trained_shared, seq2seq, tmp_path, monkeypatch
):
    """Relative paths start at the folder where training was started."""
    project = tmp_path / "project"
    moved = Path(shutil.copytree(trained_shared, project / "runs" / "one"))
    config = (moved / "config.yaml").read_text()
    config = config.replace("max_length: 256", "max_length: 6000")
    (moved / "config.yaml").write_text(config.replace(f"{trained_shared.parent}/", "texts/"))
    texts = project / "texts"
    shutil.copytree(trained_shared.parent, texts, ignore=shutil.ignore_patterns("run", "*.yaml"))
    for side in ("src", "tgt"):  # the first line is too long for the format
        text = project / "texts" / f"valid.{side}"
        text.write_text("1 " * 5_000 + "\n" + text.read_text())
    (moved / "manifest.json").unlink()  # it says that the run was trained with other text
    monkeypatch.chdir(tmp_path)
    result = seq2seq("export", moved, "--format", "ctranslate2", "-o", tmp_path / "out")
    assert result.stderr.startswith(
        "translating 60 validation lines with both programs, to compare"
    )
    assert result.stderr.count("\n") == 1
    assert "greedy translations of validation lines are equal" in result.stdout
    shutil.rmtree(project / "texts")
    result = seq2seq("export", moved, "--format", "ctranslate2", "-o", tmp_path / "again").ok()
    assert "validation text texts/valid.src does not exist" in result.stderr


def test_export_rejects_unsupported_models(trained, seq2seq, tmp_path):
    """This one has a vocabulary for each side."""
    message = seq2seq("export", trained, "--format", "huggingface", "-o", tmp_path / "out").error()
    assert "tokenizer.shared" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_rotary_positions_are_exported_to_ctranslate2_only(seq2seq, tmp_path):
    config = numbers_config(tmp_path, max_steps=60)
    config["tokenizer"] = {"kind": "char", "shared": True}
    config["model"] |= {"positions": "rotary", "layers": {"encoder": 2, "decoder": 1}}
    run = tmp_path / "run"
    seq2seq("train", write_config(tmp_path, config), "--run-dir", run).ok()
    result = seq2seq("export", run, "--format", "ctranslate2", "-o", tmp_path / "out").ok()
    equal, total = (int(word) for word in result.stdout.split() if word.isdigit())
    assert equal >= 0.97 * total > 0
    message = seq2seq("export", run, "--format", "huggingface", "-o", tmp_path / "hf").error()
    assert "it needs model.positions: sinusoidal" in message


SEEN = "the quick brown fox, über den Hund! 你好，世界 42 . 。 <b>a</b> <0x4> </s 0x"
LEARNED = [SEEN, *SEEN.split()] * 4
NORMALIZATIONS = ("identity", "nfkc", "nfkc_cf", "nfd")
# The rules of normalization are the same for all kinds.
ALL = [("bpe", form) for form in NORMALIZATIONS]
ALL += itertools.product(("unigram", "char", "word"), ("identity", "nfkc_cf"))
odd_texts = st.lists(
    st.text(max_size=5) | st.sampled_from([*ATOMS, *SEEN.split(), " ", " a", "<s>", "</s> "]),
    max_size=12,
).map("".join)


@functools.cache
def both_tokenizers(
    kind: str, normalization: str, symbols: tuple[str, ...] = (), features: tuple[str, ...] = ()
):
    options = TokenizerConfig(kind=kind, vocab_size=420, user_defined_symbols=symbols)
    form = normalization.split("_")[0].upper()
    learned = LEARNED if form == "IDENTITY" else [unicodedata.normalize(form, x) for x in LEARNED]
    ours = Tokenizer.fit(learned, options, features=features)
    ours = ours.with_normalization(normalization, symbols)
    with tempfile.TemporaryDirectory() as folder:
        fast_tokenizer(ours, 1_024).save_pretrained(folder)
        return ours, transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "normalization"), ALL)
@example(text="\ufdd2 \ufdd1\ufdd1\ufdd0\ufdd1")
@given(text=odd_texts)
def test_huggingface_tokenizer_gives_the_same_ids(kind, normalization, text):
    ours, theirs = both_tokenizers(kind, normalization)
    if normalization != "identity":  # there, `tokenizers` loses marks that have no composed form
        text = "".join(c for c in text if unicodedata.category(c)[0] != "M" and c not in "ﾞﾟ")
    assert theirs(text)["input_ids"] == [*ours.to_ids(text), EOS_ID]
    back = theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True)
    assert kind in ("char", "word") or back.split() == ours.normalize(text).split()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
@given(text=odd_texts)
def test_huggingface_tokenizer_gives_the_same_ids_with_user_defined_symbols(kind, text):
    ours, theirs = both_tokenizers(kind, "identity", ("<b>", "ü", "42", "<b>a"))
    assert theirs(text)["input_ids"] == [*ours.to_ids(text), EOS_ID]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "normalization"), ALL)
def test_huggingface_tokenizer_gives_the_same_ids_for_the_probe_lines(kind, normalization):
    for features in ((), ("<feature V>", "<feature fox>")):
        ours, theirs = both_tokenizers(kind, normalization, features=features)
        for line in DIFFICULT_LINES:
            assert theirs(line)["input_ids"] == [*ours.to_ids(line), EOS_ID], line
        assert theirs.convert_tokens_to_ids(features) == list(ours.features.values())
