"""`seq2seq check` finds every defect of a text, and none in a clean text."""

import json
import os
import random
import re
from pathlib import Path

import pytest
import torch
import yaml
from commands import Command

from seq2seq_cli.commands.check.check import check
from seq2seq_cli.config.loader import load_config

WORDS = ("Haus house", "Baum tree", "Katze cat", "Weg way", "Wasser water", "Brot bread", "rot red")

# By line of the training text: what stands there, and what check says of it.
DEFECTS = {
    3: (
        ("Кот пьёт воду", "The cat drinks"),
        "train source: 1 line (0.33%) without a letter of Latin",
    ),
    5: (("Haus und Baum", "Кот"), "train target: 1 line (0.33%) without a letter of Latin"),
    7: (("same text", "same text"), "train: 1 line (0.33%) with sides that are equal by 90%"),
    9: (
        ("Ã¤rger im Haus", "anger at home"),
        "train source: 1 line (0.33%) with UTF-8 that seems",
    ),
    11: (("Haus \ufffd rot", "house red red"), "train source: 1 line (0.33%) with U+FFFD"),
    13: (("Haus rot", "house\x07 red"), "train target: 1 line (0.33%) with control characters"),
    15: (("Cafe\u0301 rot", "red house"), "train source: 1 line (0.33%) not in Unicode's composed"),
    16: (("Haus ro@@ t", "red house"), "train source: 1 line (0.33%) split into subwords"),
    17: (("", "house tree"), "train: 1 line (0.33%) with an empty side"),
    19: (("Haus " * 41, "house " * 41), "train: 1 line (0.33%) over data.max_length, 40 tokens"),
    21: (("Haus", "house tree " * 6), "train: 1 line (0.33%) with a length ratio over 3 times"),
    23: (("Weg \udcff", "way out"), "train: 1 line (0.33%) that cannot be read"),
}
REPEATED, LEAKED, LEAKED_WHOLE = 25, 27, 29  # lines


def clean_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    generator = random.Random(seed)
    pairs = (generator.choices([word.split() for word in WORDS], k=8) for _ in range(count))
    return [(" ".join(s for s, _ in pair), " ".join(t for _, t in pair)) for pair in pairs]


def write_text(folder: Path, name: str, pairs: list[tuple[str, str]]) -> dict[str, str]:
    for side, lines in zip(("src", "tgt"), zip(*pairs, strict=True), strict=True):
        text = "".join(f"{line}\n" for line in lines)
        (folder / f"{name}.{side}").write_bytes(text.encode("utf-8", "surrogateescape"))
    return {side: str(folder / f"{name}.{side}") for side in ("src", "tgt")}


def write_run(folder: Path, train: list[tuple[str, str]], valid: list[tuple[str, str]]) -> Path:
    config = {
        "data": {
            "train": write_text(folder, "train", train),
            "valid": write_text(folder, "valid", valid),
            "max_length": 40,
            "on_bad_line": "skip",
        },
        "tokenizer": {"kind": "word", "shared": False},
        "model": {"d_model": 16, "heads": 2, "layers": 1, "d_ff": 16},
        "training": {"max_steps": 60, "tokens_per_batch": 256, "warmup_steps": 10},
    }
    (folder / "x.yaml").write_text(yaml.safe_dump(config))
    return folder / "x.yaml"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config of clean text."""
    folder = tmp_path_factory.mktemp("clean")
    write_text(folder, "test", clean_pairs(20, seed=3))
    return write_run(folder, clean_pairs(300, seed=1), clean_pairs(20, seed=2))


@pytest.fixture(scope="module")
def defective(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config of the same text with each defect once, and a test text."""
    folder = tmp_path_factory.mktemp("defective")
    train, valid, test = clean_pairs(300, seed=1), clean_pairs(20, seed=2), clean_pairs(20, seed=3)
    for line, (pair, _) in DEFECTS.items():
        train[line - 1] = pair
    train[REPEATED - 1] = train[0]
    valid[3] = (train[LEAKED - 1][0].upper(), "something else")
    test[5] = train[LEAKED_WHOLE - 1]
    write_text(folder, "test", test)
    config = write_run(folder, train, valid)
    marked = folder / "train.src"
    marked.write_bytes(b"\xef\xbb\xbf" + marked.read_bytes().replace(b"\n", b"\r\n", 1))
    return config


def with_test_text(config: Path) -> tuple[str, Path, str, Path]:
    return ("--src", config.with_name("test.src"), "--ref", config.with_name("test.tgt"))


@pytest.fixture(scope="module")
def page(defective: Path, seq2seq: Command) -> list[str]:
    result = seq2seq("check", defective, *with_test_text(defective)).ok()
    return result.stdout.splitlines()


@pytest.fixture(scope="module")
def found(defective: Path, seq2seq: Command) -> dict:
    return json.loads(seq2seq("check", defective, *with_test_text(defective), "--json").stdout)


def test_check_gives_no_warning_for_clean_text(clean: Path, seq2seq: Command):
    result = seq2seq("check", clean, *with_test_text(clean)).ok()
    assert "WARNING" not in result.stdout
    assert "warnings         none" in result.stdout
    assert "encoding         UTF-8, no byte-order marks, lines end in LF" in result.stdout


@pytest.mark.parametrize("line", DEFECTS)
def test_check_finds_each_defect_with_its_line(line: int, page: list[str]):
    expected = DEFECTS[line][1]
    [number] = [n for n, text in enumerate(page) if text.startswith(f"WARNING          {expected}")]
    assert page[number + 1].strip().startswith(f"line {line}:")


def test_check_says_why_a_line_cannot_be_read(page: list[str]):
    (place,) = (n for n, line in enumerate(page) if "that cannot be read" in line)
    reason = page[place + 1].strip()
    assert reason.startswith("line 23: ") and "train.src, line 23, byte 5: not valid" in reason


def test_check_gives_no_false_warnings(page: list[str]):
    warnings = [line for line in page if line.startswith("WARNING")]
    assert len(warnings) == len(DEFECTS) + len(("valid in train", "test in train"))


def test_check_prints_printable_examples_only(page: list[str]):
    assert not [line for line in page if not line.isprintable()]
    assert any(r"house\x07 red" in line for line in page)


def test_check_finds_duplicates_and_train_test_leakage(page: list[str], found: dict):
    assert "repeated         1 identical pair (0.34%) and 1 source (line 25 is line 1)" in page
    assert "same sources     1 valid in train, 1 test in train, 0 test in valid" in page
    valid = "1 source and 0 identical pairs, ignoring case (line 4 is line 27)"
    assert f"WARNING          valid in train: {valid}" in page
    test = "1 source and 1 identical pair, ignoring case (line 6 is line 29)"
    assert f"WARNING          test in train: {test}" in page
    assert found["overlap"]["valid in train"] == {
        "sources": {"count": 1, "examples": [[4, LEAKED]]},
        "pairs": {"count": 0, "examples": []},
    }


def test_check_counts_what_clean_rejects(defective: Path, page: list[str], seq2seq: Command):
    """All but the pairs of which other rows and warnings say how many there are."""
    text = [defective.with_name(f"train.{side}") for side in ("src", "tgt")]
    findings = json.loads(seq2seq("clean", *text, "--dry-run", "--json").ok().stdout)["findings"]
    counts = {name: found["pairs"] for name, found in findings.items() if found["pairs"]}
    assert [counts.pop(name) for name in ("unreadable", "empty", "duplicate")] == [1, 1, 1]
    [row] = [line for line in page if line.startswith("clean ")]
    assert f"rejects {sum(counts.values())} pairs (" in row
    shown = ", ".join(f"{name} {count}" for name, count in counts.items())
    assert row.endswith(f", not counting empty and repeated ones: {shown}")


def test_train_and_check_count_leaked_sources_alike(page: list[str], found: dict):
    """Line 4 of the validation text is in capitals, and yet a sentence of the training text."""
    [text] = [line for line in page if line.startswith("validation text")]
    assert text.endswith("WARNING: 1 source line also occurs in the training text")
    leaked = found["overlap"]["valid in train"]["sources"]["count"]
    assert found["run"]["validation_text"]["sources_in_training_text"] == leaked == 1


def test_general_text_is_checked_as_validation_text_is(clean: Path, seq2seq: Command, tmp_path):
    """`check` starts from a run, as fine-tuning does."""
    run, brief = tmp_path / "run", ("--set", "training.max_steps=10")
    assert seq2seq("train", clean, "--run-dir", run, *brief).exit_code == 0
    [source, _], valid = clean_pairs(300, seed=1)[4], clean_pairs(20, seed=2)[2]
    files = write_text(tmp_path, "x", [(source.upper(), "a"), valid, ("Brot", "bread")])
    tuned = ("--from", run, "--set", f"data.general={{src: {files['src']}, tgt: {files['tgt']}}}")
    report = json.loads(seq2seq("check", clean, *tuned, "--json").stdout)
    counts = {name: o["sources"]["count"] for name, o in report["overlap"].items()}
    assert counts == {"valid in train": 0, "general in train": 1, "general in valid": 1}
    assert report["run"]["general_text"]["pairs"] == report["texts"]["general"]["pairs"] == 3
    assert report["run"]["general_text"]["sources_in_training_text"] == 1
    printed = seq2seq("train", clean, "--run-dir", tmp_path / "tuned", *tuned, *brief)
    [row] = [line for line in printed.stderr.splitlines() if line.startswith("general text ")]
    assert row.endswith("WARNING: 1 source line also occurs in the training text")


def test_very_little_text_is_pointed_out(clean: Path, seq2seq: Command):
    result = seq2seq("check", clean, "--set", "tokenizer.kind=bpe")
    assert "WARNING          train: 300 pairs, very little text for sentences" in result.stdout


def test_preprocessed_text_is_pointed_out(clean: Path, seq2seq: Command, tmp_path: Path):
    """In sentences only: words and symbols are often in lower case and separated by marks."""
    pairs = [(f"Ein {s}, {s}.", f"a {t} , {t} .") for s, t in clean_pairs(300, seed=1)]
    text = write_text(tmp_path, "x", pairs)
    given = f"data.train={{src: {text['src']}, tgt: {text['tgt']}}}"
    options = ("--set", given, "--set", "data.valid=null")
    warned = seq2seq("check", clean, *options, "--set", "tokenizer.kind=bpe").stdout
    for what in ("with spaces before commas and periods", "without capital letters"):
        assert f"WARNING          train target: 300 lines (100.00%) {what}" in warned
        assert f"source: 300 lines (100.00%) {what}" not in warned
    assert "300 lines" not in seq2seq("check", clean, *options).stdout


def test_forms_that_equal_their_lemma_are_no_copies(clean: Path, seq2seq: Command, tmp_path: Path):
    words = sorted({side for pair in clean_pairs(300, seed=1) for side in pair})
    lines = [f"{word}\tN;SG\t{word}\n" for word in words]
    (tmp_path / "x.tsv").write_text("".join(lines))
    text = f"data.train={{pairs: {tmp_path / 'x.tsv'}, fields: [1, 3], features: 2}}"
    result = seq2seq("check", clean, "--set", text, "--set", "data.valid=null").ok()
    assert "sides that are equal" not in result.stdout


def test_tags_and_features_count_as_tokens(clean: Path, seq2seq: Command, tmp_path: Path):
    pairs = enumerate(clean_pairs(300, seed=1))  # of 8 words
    lines = [f"{src}\t{'A;B' if number % 2 else 'A'}\t{tgt}\n" for number, (src, tgt) in pairs]
    (tmp_path / "train.tsv").write_text("".join(lines))
    (tmp_path / "test.tsv").write_text("".join(lines[:50]).replace(";B", ";C"))
    columns = "fields: [1, 3], features: 2"
    text = f"data.train={{pairs: {tmp_path / 'train.tsv'}, {columns}, tag: <new>}}"
    options = ("--set", text, "--set", "data.valid=null", "--set", "data.max_length=10")
    test = ("--pairs", tmp_path / "test.tsv", "--fields", 1, 3, "--features", 2)
    report = json.loads(seq2seq("check", clean, *options, *test, "--json").ok().stdout)
    too_long = report["texts"]["train"]["findings"]["too_long"]
    assert too_long["count"] == report["run"]["training_text"]["too_long"] == 150
    assert report["texts"]["test"]["src"]["unknown"] == 25


def test_check_reports_encodings(page: list[str], found: dict):
    [encoding] = [line for line in page if line.startswith("encoding")]
    for note in ("begins with a byte-order mark", "CRLF at the end of 1 line", "1 line not UTF-8"):
        assert note in encoding
    assert found["texts"]["train"]["files"][0] | {"path": ""} == {
        "path": "",
        "lines": 300,
        "byte_order_mark": True,
        "crlf": 1,
        "invalid_utf8": 1,
    }


def test_check_counts_dropped_pairs_by_reason(page: list[str], found: dict):
    dropped = "dropped: 1 with an empty side, 1 over 40 tokens, 1 unreadable"
    assert page[0] == f"training text    297 pairs; {dropped}"
    text = found["run"]["training_text"]
    assert [text[name] for name in ("pairs", "empty", "too_long", "unreadable")] == [297, 1, 1, 1]


def test_check_json_has_the_numbers_of_the_page(defective: Path):
    """Both are made of one report, because timings vary."""
    report = check(load_config(defective), None)
    page, found = report.as_text().splitlines(), json.loads(json.dumps(report.report()))
    rows = {line[:16].strip(): line[17:] for line in page if not line.startswith(" ")}
    run, train, time = found["run"], found["texts"]["train"], found["time"]
    longest, ratio = found["longest_batches"], train["length_ratio"]
    assert rows["validation text"].startswith(f"{run['validation_text']['pairs']} pairs")
    tokens = [run["training_text"][side]["tokens"] for side in ("src", "tgt")]
    assert f"source {tokens[0]:,} " in rows["tokens"]
    assert f"target {tokens[1]:,} " in rows["tokens"]
    assert rows["parameters"].startswith(f"{run['parameters']['total']:,} ")
    assert rows["training"].startswith(f"{run['training']['updates']} updates")
    assert f"({run['training']['padding']:.1%} padding)" in rows["training"]
    assert rows["scripts"].startswith(f"source Latin {train['src']['scripts']['Latin']:.1%}")
    assert rows["repeated"].startswith(f"{train['repeated']['pairs']['count']} identical pair")
    assert f"{ratio['median']:.2f} in the median" in rows["length ratio"]
    for shape in longest["shapes"]:
        size = f"({shape['src_positions']} + {shape['tgt_positions']})"
        assert f"{shape['pairs']} × {size}" in rows["longest batches"]
    assert f"peak memory {longest['peak_memory_mb']:,.0f} MB" in rows["longest batches"]
    assert f"takes {longest['seconds']:.2f} s" in rows["longest batches"]
    assert rows["time"].startswith(f"{1000 * time['seconds_per_update']:,.1f} ms per update")
    assert f"{time['seconds_to_the_end']:.1f} s in total" in rows["time"]
    assert [f"WARNING          {warning}" for warning in found["warnings"]] == [
        line for line in page if line.startswith("WARNING")
    ]


@pytest.mark.parametrize("has_it", [True, False])
def test_slow_bf16_is_pointed_out(has_it: bool, clean: Path, monkeypatch: pytest.MonkeyPatch):
    for test in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, test, lambda: has_it, raising=False)
    given = ["training.precision=bf16", "training.processes=1", "training.device=cpu"]
    report = check(load_config(clean, given), None)
    assert report is not None
    assert ("bf16; WARNING: slow, without instructions" in report.as_text()) != has_it


def test_check_reports_cache_size_and_limit(page: list[str]):
    """The cache is all that is written outside of run folders."""
    [line] = [line for line in page if line.startswith("cache ")]
    place = os.environ["SEQ2SEQ_CACHE"]
    assert re.fullmatch(
        rf"cache +{re.escape(place)}: [\d.,]+ MB of token ids of this text, [\d.,]+ MB in all, "
        r"10,000 MB at most",
        line,
    )


def test_check_time_estimates_add_up(found: dict):
    time, training = found["time"], found["run"]["training"]
    assert time["seconds_to_the_end"] == pytest.approx(
        time["seconds_per_update"] * training["updates"] + time["seconds_of_validations"]
    )
    assert time["seconds_per_epoch"] == pytest.approx(
        time["seconds_per_update"] * training["updates_per_epoch"]
    )
    longest = found["longest_batches"]
    assert 0 <= longest["growth_mb"] < longest["peak_memory_mb"]


def test_check_counts_unknown_tokens_of_held_out_text(
    clean: Path, seq2seq: Command, tmp_path: Path
):
    """Words that training text lacks are unknown to a word vocabulary."""
    text = write_text(tmp_path, "other", [("Haus Garten", "house garden"), ("Weg", "way")])
    files = ("--src", text["src"], "--ref", text["tgt"])
    page = seq2seq("check", clean, *files).stdout
    # Of 3 words and 2 ends of sentences on each side one is unknown.
    assert "test text        2 pairs; 20.00% unknown tokens" in page
    assert "test source: 1 line (50.00%) with unknown tokens, 20.00% of all tokens" in page
    assert "line 1: Haus Garten" in page


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_check_counts_vocabulary_entries_of_rare_characters(
    shared: bool, seq2seq: Command, tmp_path: Path
):
    """By default, characters that occur in a single line get no entries."""
    rare = "".join(chr(0x4E00 + n) for n in range(90))
    config = write_run(tmp_path, [*clean_pairs(900, seed=1), (rare, rare)], clean_pairs(20, seed=2))
    options = ("--set", "data.max_length=300", "--set", "tokenizer.kind=bpe")
    options += ("--set", "tokenizer.vocab_size=400", "--set", f"tokenizer.shared={shared}".lower())
    names = ["vocabulary"] if shared else ["source vocabulary", "target vocabulary"]
    found = json.loads(seq2seq("check", config, *options, "--json").stdout)
    assert [one["rare_characters"] for one in found["vocabularies"].values()] == [0] * len(names)
    options += ("--set", "tokenizer.min_character_frequency=1")
    found = json.loads(seq2seq("check", config, *options, "--json").stdout)
    assert list(found["vocabularies"]) == names
    for name, one in found["vocabularies"].items():
        entries, count = one["entries"], one["rare_characters"]
        assert 90 <= count <= 91  # the first character of the line may have one with its space too
        warning = f"{name}: {count} of {entries} entries ({count / entries:.1%}) are single char"
        assert [text for text in found["warnings"] if text.startswith(warning)], found["warnings"]


@pytest.mark.slow
def test_check_gives_the_same_report_with_two_processes(clean: Path, seq2seq: Command):
    alone, together = (
        json.loads(seq2seq("check", clean, "--json", "--set", f"training.processes={n}").stdout)
        for n in (1, 2)
    )
    assert together["run"]["device"]["processes"] == 2
    assert together["texts"] == alone["texts"]
    assert together["longest_batches"]["shapes"] == alone["longest_batches"]["shapes"]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (("--src", "x"), "error: give --src and --ref, or --pairs alone"),
        (("--pairs", "x.tsv"), "error: there is no file x.tsv"),
    ],
)
def test_check_rejects_missing_test_text(
    option: tuple[str, str], expected: str, clean: Path, seq2seq: Command
):
    """The check fails before it does any work."""
    message = seq2seq("check", clean, *option).error()
    assert message.splitlines() == [expected]


def test_check_rejects_test_text_without_pairs(clean: Path, seq2seq: Command, tmp_path: Path):
    (tmp_path / "empty.tsv").write_text("\t\n")
    message = seq2seq("check", clean, "--pairs", tmp_path / "empty.tsv").error()
    assert message.startswith(f"error: no pairs in {tmp_path / 'empty.tsv'}")  # before any work
