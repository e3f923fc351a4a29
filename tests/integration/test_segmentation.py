"""Lines of several sentences, translated by a model trained on single sentences."""

import json
import math
import random
import shutil
from pathlib import Path

import pytest
from commands import Command
from number_task import FAST, number_pairs, numbers_config, write_config, write_pairs

from seq2seq_cli import Translator
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.data.record import read_record
from seq2seq_cli.data.statistics import TextStatistics
from seq2seq_cli.decoding.lines.segmentation import Bounds, segment_lines
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.tokenizers.tokenizer import Tokenizer

LINES = 40


def sentence_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Digits with a full stop; one line in ten begins with "0 !", which never stands alone."""
    generator = random.Random(seed)
    pairs = []
    for src, tgt in number_pairs(count, seed):
        is_greeted = generator.random() < 0.1
        greeting = ("0 ! ", "zero ! ") if is_greeted else ("", "")
        pairs.append((f"{greeting[0]}{src} .", f"{greeting[1]}{tgt} ."))
    return pairs


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sentences")
    config = numbers_config(folder, **FAST, max_steps=200)
    config["data"] = {
        "train": write_pairs(folder, "train", sentence_pairs(3_000, seed=1)),
        "valid": write_pairs(folder, "valid", sentence_pairs(60, seed=2)),
    }
    write_config(folder, config)
    write_pairs(folder, "test", sentence_pairs(LINES, seed=3))
    return folder


@pytest.fixture(scope="module")
def run(folder: Path, seq2seq: Command) -> Path:
    seq2seq("train", folder / "numbers.yaml", "--run-dir", folder / "run").ok()
    return folder / "run"


@pytest.fixture(scope="module")
def lines(folder: Path) -> list[str]:
    return (folder / "test.src").read_text().splitlines()


@pytest.fixture(scope="module")
def outputs(run: Path, seq2seq: Command, folder: Path) -> list[str]:
    """The translations of the single lines."""
    result = seq2seq("translate", run, "-i", folder / "test.src")
    assert result.stderr == ""
    found = result.stdout.splitlines()
    references = (folder / "test.tgt").read_text().splitlines()
    assert sum(a == b for a, b in zip(found, references, strict=True)) >= 0.95 * LINES
    return found


def test_run_folder_has_statistics_of_the_training_text(run):
    statistics = json.loads((run / "statistics.json").read_text())
    assert statistics["src_tokens"] == {"p50": 5, "p90": 7, "p99": 9, "p999": 9, "max": 9}
    assert statistics["tgt_tokens"] == statistics["src_tokens"]
    assert set(statistics["length_ratio"].values()) == {1.0}
    assert set(statistics["src_sentences"].values()) == {1}
    assert statistics["src_inner_marks"] == "!"


def test_a_split_line_has_a_log_probability_for_every_token(run, lines, seq2seq):
    """EOS of a sentence counts with the first token of the next."""

    def found(*given: str) -> list[dict]:
        made = seq2seq("translate", run, "--split-sentences", "--format", "jsonl", *given).ok()
        return [json.loads(line) for line in made.stdout.splitlines()]

    (joined,), (first, second) = found(" ".join(lines[:2])), found(*lines[:2])
    assert joined["tokens"] == first["tokens"] + second["tokens"]
    (*before, eos), (start, *after) = (one["token_log_probs"] for one in (first, second))
    assert joined["token_log_probs"] == pytest.approx([*before, eos + start, *after], abs=1e-3)


@pytest.mark.parametrize("count", [2, 5, LINES])
def test_lines_of_several_sentences_are_translated_sentence_by_sentence(
    run, lines, outputs, seq2seq, count
):
    groups = [slice(start, start + count) for start in range(0, LINES, count)]
    stdin = "".join(" ".join(lines[group]) + "\n" for group in groups)
    result = seq2seq("translate", run, stdin=stdin)
    assert result.stdout == "".join(" ".join(outputs[group]) + "\n" for group in groups)
    is_one = len(groups) == 1
    were_split = "line is longer" if is_one else "lines are longer"
    assert result.stderr.startswith(f"{len(groups)} {were_split} than training lines in sentences")
    assert result.stderr.endswith(f"split into {LINES} sentences, translated one by one\n")
    assert result.stderr.count("\n") == 1
    asked_for = seq2seq("translate", run, "--split-sentences", stdin=stdin)
    assert (asked_for.stdout, asked_for.stderr) == (result.stdout, "")
    short = ("--set=decoding.max_len_factor=0", "--set=decoding.max_len_extra=1")
    at_limit = seq2seq("translate", run, "--split-sentences", *short, stdin=stdin)
    assert at_limit.stderr.startswith(f"{len(groups)} translation{'s' * (not is_one)} hit the")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_segmentation_is_reported_once(run, lines, seq2seq, tmp_path, processes):
    """The lines make more than one chunk."""
    (tmp_path / "in").write_text("".join(f"{one} {one}\n" for one in (lines * 30)))
    result = seq2seq("translate", run, "-i", tmp_path / "in", "--processes", processes)
    assert result.stderr.startswith(f"{30 * LINES:,} lines are longer than training lines")
    assert f"; they were split into {60 * LINES:,} sentences" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_eval_segments_lines_like_translate(folder, run, lines, seq2seq):
    references = (folder / "test.tgt").read_text().splitlines()
    pairs = [
        tuple(" ".join(side[start : start + 4]) for side in (lines, references))
        for start in range(0, LINES, 4)
    ]
    files = write_pairs(folder, "joined", pairs)
    options = ("--src", files["src"], "--ref", files["tgt"], "--json")
    result = seq2seq("eval", run, *options)
    assert json.loads(result.stdout)["exact_match"] >= 80
    assert "10 lines are longer than training lines" in result.stderr


def test_without_statistics_only_lines_over_max_length_are_split(run, lines, seq2seq, tmp_path):
    earlier = Path(shutil.copytree(run, tmp_path / "run"))
    (earlier / "statistics.json").unlink()
    line = " ".join(lines[:3])
    assert seq2seq("translate", earlier, line).stderr == ""
    config = (earlier / "config.yaml").read_text()
    (earlier / "config.yaml").write_text(config.replace("max_length: 256", "max_length: 12"))
    result = seq2seq("translate", earlier, line)
    assert "; it was split into 3 sentences, translated one by one" in result.stderr
    assert result.stdout == seq2seq("translate", run, line).stdout


def test_a_target_of_fixed_length_is_of_the_whole_line(run, lines, seq2seq):
    """Such as a label."""
    fixed = ("--set", "decoding.max_len_factor=0", "--set", "decoding.max_len_extra=3")
    result = seq2seq("translate", run, *fixed, " ".join(lines[:3]))
    assert "sentences" not in result.stderr
    assert len(result.stdout.split()) <= 3


def test_strings_may_have_more_sentences_than_in_training(run):
    """Such as the sources of formulas."""
    config = load_config(run / "config.yaml")
    statistics = read_record(run / "statistics.json", TextStatistics)
    strings = config.updated(validation={"metric": "exact_match"})
    assert Bounds.of(strings, statistics).sentences == math.inf
    assert Bounds.of(config, statistics).sentences == 1


def test_only_sentences_over_max_length_are_split_into_parts(run, seq2seq):
    between, beyond = "1 " * 30 + ".", "1 " * 300 + "."
    assert "sentences" not in seq2seq("translate", run, between).stderr
    result = seq2seq("translate", run, f"{between} {beyond}")
    assert [line for line in result.stderr.splitlines() if "length limit" not in line] == [
        "1 line is longer than training lines in sentences or tokens; it was split into 2 "
        "sentences, translated one by one",
        "1 sentence is longer than data.max_length; it was translated in 2 parts",
    ]


@pytest.mark.parametrize(
    ("line", "are_in_words"),
    [("abcd", [False, True]), ("東京東京", [False, False]), ("東京ab", [False, False])],
)
def test_parts_of_a_script_without_spaces_are_separated(line, are_in_words):
    tokenizer = Tokenizer.fit([line] * 9, TokenizerConfig(kind="char", vocab_size=9))
    half = (len(tokenizer.to_ids(line)) + 1) // 2
    ((parts,), _) = segment_lines([line], tokenizer, Bounds(half, half))
    assert [part.begins_in_word for part in parts] == are_in_words


def test_alignments_count_words_across_segments(run, lines, seq2seq):
    line = "  ".join(lines[:6])
    found = json.loads(seq2seq("translate", run, "--align", "--format", "jsonl", line).stdout)
    words = found["translation"].split()
    assert sorted(target for _, target in found["alignment"]) == list(range(len(words)))
    assert all(len(row) == len(line.split()) for row in found["attention"])
    src_sentence, tgt_sentence = (  # of each word the number of its sentence
        [side[:place].count(".") for place in range(len(side))] for side in (line.split(), words)
    )
    assert src_sentence[-1] == tgt_sentence[-1] == 5
    assert all(src_sentence[a] == tgt_sentence[b] for a, b in found["alignment"])


def test_required_words_go_to_the_segment_with_the_lowest_cost(run, seq2seq):
    """Required words may belong to any sentence of the line."""
    constraints = ("-b", 5, "--require", "seven", "--require", "two")
    line = "1 2 . 3 4 5 . 6 7 ."
    found = seq2seq("translate", run, *constraints, line)
    assert found.stdout == seq2seq("translate", run, "-b", 5, line).stdout
    assert found.stdout == "one two . three four five . six seven .\n"
    other = seq2seq("translate", run, "-b", 5, "--require", "nine", line).stdout
    assert "nine" in other.split()


def test_equal_segments_are_sampled_independently(run):
    overrides = ["decoding.sampling=true", "decoding.temperature=5.0"]
    translator = Translator.load(run, "cpu", overrides)
    sentence = "1 2 3 4 5 ."
    (alone,) = translator.translate([sentence])
    (several,) = translator.translate([" ".join([sentence] * 4)])
    (again,) = translator.translate([" ".join([sentence] * 4)])
    assert several == again
    assert several.startswith(alone)  # what is not cut is drawn as ever
    assert several != " ".join([alone] * 4)


def test_line_of_many_sentences_is_tokenized_once(run):
    translator = Translator.load(run, "cpu")
    pieces, issues = translator.cut([TranslationInput("1 2 . " * 20_000), TranslationInput("3 .")])
    assert [len(of_line) for of_line in pieces] == [20_000, 1]
    assert (issues.lines, issues.sentences) == (1, 20_000)


def test_statistics_follow_a_changed_training_text(folder, seq2seq, tmp_path):
    config = numbers_config(tmp_path, max_steps=2, warmup_steps=1)
    run, path = tmp_path / "run", write_config(tmp_path, config)
    assert seq2seq("train", path, "--run-dir", run).exit_code == 0
    before = json.loads((run / "statistics.json").read_text())
    (run / "statistics.json").unlink()  # as in a run of an earlier version
    longer = ("train", path, "--run-dir", run, "--set", "training.max_steps=4")
    assert seq2seq(*longer).exit_code == 0
    assert json.loads((run / "statistics.json").read_text()) == before
    write_pairs(tmp_path, "train", [(f"{src} {src}", tgt) for src, tgt in number_pairs(900, 1)])
    longer = (*longer[:-1], "training.max_steps=6", "--allow-changed", "data.train")
    assert seq2seq(*longer).exit_code == 0
    after = json.loads((run / "statistics.json").read_text())
    assert after["src_tokens"]["max"] == 2 * before["src_tokens"]["max"]
    assert after["length_ratio"]["max"] == 0.5
