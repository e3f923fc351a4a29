"""Packages for Argos Translate: used by `argostranslate` itself, without a network."""

import json
import os
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from commands import Command
from number_task import FAST, numbers_config, write_config, write_pairs

INSTALLED = Path(sys.prefix) / "argostranslate"  # by make install

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not INSTALLED.is_dir(), reason="argostranslate is not installed"),
]

# Installs a package and translates lines, in a process that cannot connect to anything.
PROGRAM = """
import json, socket, sys

def refuse(*arguments):
    raise OSError("no network")

socket.socket.connect = socket.socket.connect_ex = refuse
from argostranslate import package, sbd, translate

# Its splitter downloads a model; here every text is one sentence.
sbd.MiniSBDSentencizer.split_sentences = lambda self, text: [text]

package.install_from_path(sys.argv[1])
(installed,) = package.get_installed_packages()
languages = [(language.code, language.name) for language in translate.get_installed_languages()]
codes = installed.from_code, installed.to_code
texts = json.loads(sys.stdin.read())
translations = [translate.translate(text, *codes) for text in texts]
print(json.dumps([languages, installed.get_readme(), translations]))
"""


def use(
    package: Path, home: Path, lines: list[str], program: Path = INSTALLED, **settings: str
) -> tuple[list, str, list]:
    """What Argos Translate says of an installed package, and its translations of lines."""
    folders = {name: str(home) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    folders |= {"XDG_CACHE_HOME": str(home), "ARGOS_INTRA_THREADS": "1", "PYTHONPATH": str(program)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(package)],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        env={**os.environ, **folders, **settings},
    )
    assert done.returncode == 0, done.stderr
    languages, readme, translations = json.loads(done.stdout)
    return languages, readme, translations


def export(seq2seq: Command, run: Path, output: Path, *options: object) -> str:
    result = seq2seq("export", run, "--format", "argos", "-o", output, *options).ok()
    assert list(output.parent.glob(".*")) == list(output.parent.glob("tmp*")) == []
    return result.stdout


def ours(seq2seq: Command, run: Path, lines: list[str], *options: object) -> list[str]:
    text = "".join(f"{line}\n" for line in lines)
    result = seq2seq("translate", run, "--precision", "fp32", *options, stdin=text)
    return result.stdout.splitlines()


LINES = ["1 2", "3\t7\u00a08  9", "", " ", "5 4 3 2 1 0", "9", "6 6 6 7"]


@pytest.mark.slow
def test_argos_translate_gives_the_same_translations(trained, numbers, seq2seq, tmp_path):
    """Of a run with two vocabularies of words; the folder of the package is its own."""
    package = tmp_path / "numbers.argosmodel"
    report = export(seq2seq, trained, package, "--langs", "de-pt_BR", "--license", "MIT")
    assert "60 of 60 greedy translations of validation lines are equal" in report
    lines = [*LINES, *(numbers / "test.src").read_text().splitlines()]
    options = {"ARGOS_COMPUTE_TYPE": "float32", "ARGOS_BEAM_SIZE": "1"}
    languages, readme, translations = use(package, tmp_path / "home", lines, **options)
    assert languages == [["de", "German"], ["pb", "Portuguese (Brazil)"]]
    assert translations == ours(seq2seq, trained, lines)
    assert translations[:2] == ["one two", "three seven eight nine"]
    assert readme.startswith("---\nlanguage: [de, pt]\nlicense: mit\n")
    assert 'translate.translate("a sentence", "de", "pb")' in readme


def test_a_package_holds_one_folder_and_is_always_the_same(trained, seq2seq, tmp_path):
    first, second = tmp_path / "1.argosmodel", tmp_path / "2.argosmodel"
    for package in (first, second):
        export(seq2seq, trained, package, "--langs", "de-en")
    assert first.read_bytes() == second.read_bytes()
    names = ["README.md", "metadata.json", "model/config.json"]
    names += ["model/model.bin", "model/source_vocabulary.json", "model/target_vocabulary.json"]
    with zipfile.ZipFile(first) as archive:
        found = [name.removeprefix("translate-de_en-seq2seq/") for name in archive.namelist()]
        assert found == [*names, "sentencepiece.model"]
    again = seq2seq("export", trained, "--format", "argos", "-o", first, "--langs", "de-en")
    assert (again.exit_code, "exists; remove it" in again.stderr) == (2, True)


@pytest.fixture(scope="module")
def tagged(seq2seq, tmp_path_factory) -> Path:
    """A run that turns letters around or keeps them, as the tag says; its text has no languages."""
    folder = tmp_path_factory.mktemp("tagged")
    words = [f"{a}{b}{c}" for a in "abcde" for b in "fghij" for c in "klmno"]
    config = numbers_config(folder, **FAST, max_steps=90)
    data: dict[str, list[dict[str, str]]] = {"train": [], "valid": []}
    for tag, step in (("<same>", 1), ("<🔙>", -1)):
        pairs = [(" ".join(word), " ".join(word[::step])) for word in words]
        for part, some in (("train", pairs[7:]), ("valid", pairs[:7])):
            data[part].append({**write_pairs(folder, f"{part}{step}", some), "tag": tag})
    config["data"] = data
    config["tokenizer"] = {"kind": "unigram", "vocab_size": 300}
    seq2seq("train", write_config(folder, config), "--run-dir", folder / "run").ok()
    return folder / "run"


def test_a_model_without_room_on_the_disk_names_the_package(trained, seq2seq, tmp_path):
    output = tmp_path / "numbers.argosmodel"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        result = seq2seq("export", trained, "--format", "argos", "-o", output, "--langs", "de-en")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"{output}: File too large" in result.error()
    assert not [*tmp_path.iterdir()]


def test_a_package_gives_one_tag(tagged, seq2seq, tmp_path):
    argos = ("--format", "argos", "--langs", "de-en")
    message = seq2seq("export", tagged, *argos, "-o", tmp_path / "no.argosmodel").error()
    assert "all sources have a tag, which Argos Translate cannot give" in message
    for tag in ("<same>", "<🔙>"):
        package = tmp_path / f"{tag[1:-1]}.argosmodel"
        report = export(seq2seq, tagged, package, "--langs", "de-en", "--tag", tag)
        assert "7 of 7 greedy translations of validation lines are equal" in report
        with zipfile.ZipFile(package) as archive:
            model = json.loads(archive.read("translate-de_en-seq2seq/model/config.json"))
        assert (model["add_source_bos"], model["bos_token"]) == (True, tag)


def test_a_trimmed_model_keeps_its_tags(tagged, seq2seq, tmp_path):
    """Its config names no text, so only the vocabulary shows them."""
    text, small = tmp_path / "text", tmp_path / "small"
    text.write_text("a f k\n")
    seq2seq("trim", tagged, "--text", text, "--output", small).ok()
    argos = ("--format", "argos", "--langs", "de-en")
    output = tmp_path / "small.argosmodel"
    warning = seq2seq("export", small, *argos, "-o", output).stderr
    assert "adds no tag to the text; the vocabulary has the symbols `<same>`, `<🔙>`" in warning
    output = tmp_path / "back.argosmodel"
    said = seq2seq("export", small, *argos, "-o", output, "--tag", "<🔙>").stderr
    assert "no tag" not in said
    assert "made-up lines with both programs" in said
    reports = [json.loads(seq2seq("inspect", run, "--json").ok().stdout) for run in (tagged, small)]
    for report in reports:
        assert report["run"]["vocabulary"]["both"]["symbols"].keys() == {"<same>", "<🔙>"}
    seq2seq("export", small, "--format", "huggingface", "-o", tmp_path / "out").ok()
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "The id of a tag precedes the source" in readme  # Marian's tokenizer knows only >>x<<


@pytest.mark.slow
def test_argos_translate_gives_the_tag(tagged, seq2seq, tmp_path):
    package = tmp_path / "back.argosmodel"
    export(seq2seq, tagged, package, "--langs", "de-en", "--tag", "<🔙>")
    options = {"ARGOS_COMPUTE_TYPE": "float32", "ARGOS_BEAM_SIZE": "1"}
    lines = ["a f k", "e j o", "b g l", "c h n"]
    _, _, translations = use(package, tmp_path / "home", lines, **options)
    assert translations == ours(seq2seq, tagged, lines, "--tag", "<🔙>")
    assert translations != ours(seq2seq, tagged, lines, "--tag", "<same>")


@pytest.mark.slow
def test_the_fork_of_libretranslate_gives_the_same_translations(
    trained, numbers, seq2seq, tmp_path
):
    """LibreTranslate installs argos-translate-lt, which has the same modules."""
    fork, name = tmp_path / "fork", "argos-translate-lt"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", fork, name]
    if subprocess.run(pip, capture_output=True).returncode:
        pytest.skip(f"cannot install {name}")
    package = tmp_path / "numbers.argosmodel"
    export(seq2seq, trained, package, "--langs", "de-en")
    lines = [*LINES, *(numbers / "test.src").read_text().splitlines()]
    options = {"ARGOS_COMPUTE_TYPE": "float32", "ARGOS_BEAM_SIZE": "1"}
    _, _, translations = use(package, tmp_path / "home", lines, fork, **options)
    assert translations == ours(seq2seq, trained, lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tokenizer",
    [
        {"kind": "bpe", "vocab_size": 300, "shared": False},
        {"kind": {"src": "bpe", "tgt": "char"}, "vocab_size": {"src": 300, "tgt": 30}},
    ],
)
def test_two_vocabularies(tokenizer, seq2seq, tmp_path):
    """One SentencePiece model writes what it does not know: all but bytes."""
    config = numbers_config(tmp_path, **FAST, max_steps=50)
    config["tokenizer"] = tokenizer
    run = tmp_path / "run"
    seq2seq("train", write_config(tmp_path, config), "--run-dir", run).ok()
    package = tmp_path / "x.argosmodel"
    assert "translations of validation" in export(seq2seq, run, package, "--langs", "de-en")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-o", "x.argosmodel"), "nothing names the languages: give them as --langs de-en"),
        (("-o", "x", "--langs", "de-en"), "the name of a package for Argos Translate ends in"),
        (("-o", "x.argosmodel", "--langs", "deen"), "write two language codes, as in de-en"),
        (("-o", "x.argosmodel", "--langs", "de-en", "--license", "© me"), "write an identifier"),
    ],
)
def test_bad_options_of_an_export(trained, options, message, seq2seq, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = seq2seq("export", trained, "--format", "argos", *options)
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
    assert list(tmp_path.iterdir()) == []
