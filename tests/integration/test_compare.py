"""`seq2seq compare`, and public test sets of sacreBLEU, without a network."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest
from sacrebleu.dataset import DATASETS
from sacrebleu.dataset.plain_text import PlainTextDataset

LANGS = "xx-en"


@pytest.fixture
def text(numbers) -> tuple[object, ...]:
    return ("--src", numbers / "test.src", "--ref", numbers / "test.tgt")


@pytest.fixture
def damaged(numbers, tmp_path) -> Path:
    """The references, every fifth of them empty."""
    lines = (numbers / "test.tgt").read_text().splitlines()
    path = tmp_path / "damaged.tgt"
    path.write_text("".join(f"{line if i % 5 else ''}\n" for i, line in enumerate(lines)))
    return path


@pytest.fixture
def public(numbers, tmp_path, monkeypatch) -> PlainTextDataset:
    """A test set of sacreBLEU that is downloaded from this machine, with two references."""
    files = ["test.src", "test.tgt", "other.tgt"]
    lines = (numbers / "test.tgt").read_text().splitlines()
    (numbers / "other.tgt").write_text("".join(f"{line.title()}\n" for line in lines))
    archive = tmp_path / "numbers.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in files:
            tar.add(numbers / name, name)
    monkeypatch.setattr("sacrebleu.dataset.base.SACREBLEU_DIR", str(tmp_path / "sacrebleu"))
    dataset = PlainTextDataset("numbers", data=[archive.as_uri()], langpairs={LANGS: files})
    monkeypatch.setattr(dataset, "fieldnames", lambda _: ["src", "ref:A", "ref:B"])
    monkeypatch.setitem(DATASETS, "numbers", dataset)
    return dataset


def test_a_source_that_occurs_twice_is_translated_once(trained, tmp_path, seq2seq):
    (tmp_path / "src").write_text("1 2 3\n4\n1 2 3\n1 2 3\n")
    (tmp_path / "ref").write_text("one two three\nfour\none two\none\n")
    (tmp_path / "out").write_text("one\nfour\none\none\n")
    files = ("--src", tmp_path / "src", "--ref", tmp_path / "ref", "--hypotheses", tmp_path / "out")
    short = ("--set", "decoding.max_len_factor=0", "--set", "decoding.max_len_extra=2")
    result = seq2seq("compare", trained, *files, *short).ok()
    assert result.stderr.startswith("1 translation hit the length limit")
    twice = seq2seq("compare", trained, trained, *files[:4], *short)
    assert twice.stderr == result.stderr  # a warning that two runs share is printed once


@pytest.mark.parametrize("merge", ["true", "false"])
def test_samples_of_a_source_that_occurs_twice_are_scored_as_by_eval(
    trained, tmp_path, seq2seq, merge
):
    for name, line in {"src": "1 2 3 4 5 6", "ref": "one two three four five six"}.items():
        (tmp_path / name).write_text(f"{line}\n" * 20)
    given = ("--src", tmp_path / "src", "--ref", tmp_path / "ref", "--metrics", "chrf", "--json")
    options = ("decoding.sampling=true", f"validation.merge_references={merge}")
    given += tuple(part for option in options for part in ("--set", option))
    scores = json.loads(seq2seq("eval", trained, *given).ok().stdout)
    compared = json.loads(seq2seq("compare", trained, trained, *given).ok().stdout)
    assert compared["metrics"]["chrf"]["systems"][0]["score"] == scores["chrf"]


def test_scores_are_those_of_eval(trained, damaged, text, seq2seq):
    result = seq2seq("compare", trained, "--hypotheses", damaged, *text, "--json").ok()
    report = json.loads(result.stdout)
    scores = json.loads(seq2seq("eval", trained, *text, "--json").stdout)
    assert (report["num_lines"], report["test"], report["trials"]) == (100, "randomization", 10_000)
    assert list(report["metrics"]) == ["bleu", "chrf", "exact_match"]
    for name, metric in report["metrics"].items():
        run, file = metric["systems"]
        assert (run["system"], file["system"]) == (str(trained), str(damaged))
        assert run["score"] == scores[name]
        assert run["score_interval"] == scores[f"{name}_interval"]
        assert run["p_value"] is None
        assert file["p_value"] < 0.05
    signature = report["metrics"]["bleu"]["signature"]
    assert signature.replace("|ar:10000", "") == scores["bleu_signature"]


def test_files_are_compared_without_a_run(numbers, damaged, text, seq2seq):
    systems = ("--hypotheses", damaged, "--hypotheses", numbers / "test.tgt")
    options = ("--test", "bootstrap", "--trials", 200, "--metrics", "exact_match,ter")
    result = seq2seq("compare", *systems, *text, *options, "--lowercase")
    header, ter, exact_match = result.stdout.split("\n\n")
    assert header == (
        "100 lines; p-value against the first system: paired bootstrap resampling, 200 trials"
    )
    assert exact_match.splitlines()[1].split()[1:] == ["80.00", "±", "7.50"]
    assert exact_match.splitlines()[2].split()[1:] == ["100.00", "±", "0.00", "0.0050"]
    assert "bs:200|seed:12345|case:lc" in ter.splitlines()[-1]


def test_white_space_is_no_normalization(trained, numbers, seq2seq, tmp_path):
    reference = tmp_path / "reference"
    reference.write_text((numbers / "test.tgt").read_text().replace("\n", " \n"))
    given = ("--src", numbers / "test.src", "--ref", reference, "--metrics", "chrf")
    result = seq2seq("compare", trained, "--hypotheses", reference, *given, "--trials", 10).ok()
    assert "normalization" not in result.stderr


def test_a_run_does_not_differ_from_itself_on_its_validation_text(trained, seq2seq):
    result = seq2seq("compare", trained, trained, "--metrics", "bleu", "--trials", 20, "--json")
    (metric,) = json.loads(result.stdout)["metrics"].values()
    assert [system["p_value"] for system in metric["systems"]] == [None, 1]
    scores = json.loads(seq2seq("eval", trained, "--json").stdout)
    assert metric["systems"][1]["score"] == scores["bleu"]


def test_a_file_of_text_may_be_named_after_the_archive_that_it_is_from(damaged, text, seq2seq):
    named = shutil.copy(damaged, damaged.parent / "corpus.tmx.en")
    files = ("--hypotheses", damaged, "--hypotheses", named, *text)
    seq2seq("compare", *files).ok()
    for option in (("--set", "decoding.beam_size=2"), ("--tag", "<x>"), ("--model", "last")):
        refused = seq2seq("compare", *files, *option).error()
        assert "--model are for runs, but only files are given" in refused


def test_files_may_have_several_references(seq2seq, tmp_path):
    texts = {"src": "a\nb\na\nb\n", "ref": "x y\nz\nx x\nz z\n", "one": "x x\nz z\nx x\nz z\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    hypotheses = ("--hypotheses", tmp_path / "one", "--hypotheses", tmp_path / "ref")
    given = (*hypotheses, "--src", tmp_path / "src", "--ref", tmp_path / "ref", "--trials", 10)
    metrics = ("--metrics", "exact_match", "--json")
    for merges, score in (("false", 50.0), ("true", 100.0)):
        option = ("--set", f"validation.merge_references={merges}")
        found = json.loads(seq2seq("compare", *given, *option, *metrics).ok().stdout)
        assert found["metrics"]["exact_match"]["systems"][0]["score"] == score
    option = ("--set", "validation.merge_references=3")
    assert "--set validation.merge_references: " in seq2seq("compare", *given, *option).error()


def test_unusable_systems_are_refused(trained, numbers, damaged, text, seq2seq, tmp_path):
    (tmp_path / "short").write_text("one\n")
    for arguments, message in (
        ([trained, *text], "two systems or more"),
        ([trained, "--hypotheses", tmp_path / "short", *text], "has 1 translations"),
        ([trained, damaged, *text], "is a file: give translations as --hypotheses"),
        ([trained, "--hypotheses", "a.tmx.gz", *text], "a.tmx.gz is not text with a sentence"),
        (["--hypotheses", damaged, "--hypotheses", damaged], "give the text: --src and --ref"),
        ([trained, trained, "--model", "x.safetensors"], "belongs to one run, but 2 are given"),
        ([trained, trained, "--metrics", "blue"], "no metric blue of translations (valid: bleu,"),
        ([trained, trained, "--test-set", "wmt14"], "give --test-set and --langs together"),
        ([trained, trained, "--test-set", "x", "--langs", "y", *text], "--test-set excludes"),
    ):
        assert message in seq2seq("compare", *arguments).error()


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter", "exact_match_error"])
def test_an_empty_line_that_is_right_is_none_of_the_worst(trained, seq2seq, tmp_path, metric):
    for name, lines in {"src": "1 2\n\n3 4\n", "ref": "one two\n\nseven\n"}.items():
        (tmp_path / name).write_text(lines)
    text = ("--src", tmp_path / "src", "--ref", tmp_path / "ref")
    options = ("--worst", 1, "--json", "--metrics", metric)
    (worst,) = json.loads(seq2seq("eval", trained, *text, *options).ok().stdout)["worst"]
    assert worst["line"] == 3


def test_eval_breaks_scores_down(trained, numbers, text, seq2seq):
    options = ("--breakdown", "--worst", 3, "--metrics", "chrf++,bleu")
    report = json.loads(seq2seq("eval", trained, *text, *options, "--json").stdout)
    assert {"bleu", "chrf++"} <= report.keys()
    assert not {"chrf", "exact_match"} & report.keys()
    assert sum(group["num_lines"] for group in report["by_source_length"]) == 100
    training = (numbers / "train.tgt").read_text().split()
    words = (numbers / "test.tgt").read_text().split()
    assert min(training.count(word) for word in set(words)) >= 100
    assert sum(group["in_references"] for group in report["by_training_frequency"]) == len(words)
    assert all(group["fewest"] >= 100 for group in report["by_training_frequency"])
    chrf = [line["chrf"] for line in report["worst"]]
    assert len(chrf) == 3
    assert chrf == sorted(chrf)
    refused = seq2seq("eval", trained, *text, "--loss-only", "--worst", 1)
    assert "--loss-only excludes --metrics, --breakdown, --worst and --errors" in refused.stderr


def test_eval_without_bootstrap_has_no_intervals(trained, text, seq2seq):
    with_intervals = seq2seq("eval", trained, *text).stdout
    without = seq2seq("eval", trained, *text, "--bootstrap", 0).stdout
    assert with_intervals.count(" ± ") == 3
    assert " ± " not in without
    assert "|bs:" not in without


def test_a_public_test_set_is_downloaded_once_and_scored(trained, public, text, seq2seq):
    options = ("--test-set", "numbers", "--langs", LANGS)
    result = seq2seq("eval", trained, *options, "--json").ok()
    found, expected = (
        json.loads(result.stdout),
        json.loads(seq2seq("eval", trained, *text, "--json").stdout),
    )
    assert found["loss"] == expected["loss"]
    assert found["exact_match"] == expected["exact_match"]
    assert found["bleu_signature"].startswith("nrefs:2|")
    assert f"|test:numbers|lang:{LANGS}|" in found["bleu_signature"]
    Path(public.data[0].removeprefix("file://")).unlink()
    compared = seq2seq("compare", trained, trained, *options, "--trials", 20, "--json")
    (run, _) = json.loads(compared.stdout)["metrics"]["bleu"]["systems"]
    assert run["score"] == found["bleu"]


def test_what_sacrebleu_cannot_provide_is_explained(trained, public, seq2seq):
    Path(public.data[0].removeprefix("file://")).unlink()
    for name, langs, message in (
        ("number", LANGS, "sacreBLEU has no test set number (similar names: numbers)"),
        ("numbers", "en-xx", f"the test set numbers has no languages en-xx (valid: {LANGS})"),
        ("numbers", LANGS, f"sacreBLEU cannot provide numbers {LANGS} ("),
    ):
        result = seq2seq("eval", trained, "--test-set", name, "--langs", langs)
        assert message in result.error()
