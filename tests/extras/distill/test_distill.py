"""Distillation: what is translated, what is learned from, and that no interruption changes it."""

import errno
import json
import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml
from commands import Command
from ended import ended
from feature_task import write_rows
from foreign_models import write_marian_mt
from number_languages import GERMAN, in_german
from number_task import (
    FAST,
    NAMES,
    as_ensemble,
    number_pairs,
    numbers_config,
    write_config,
    write_pairs,
)

from seq2seq_cli import Translator
from seq2seq_cli.commands.diff import differing_results
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.text import Corpus, ParallelText
from seq2seq_cli.decoding.lines.shards import described
from seq2seq_cli.decoding.lines.stream import Job
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.distill import student as student_module
from seq2seq_cli.extras.distill.distillation import (
    Task,
    check_student,
    held_out_text,
    refuse_pairs_without_features,
    student_config,
    translate_source,
)
from seq2seq_cli.extras.distill.filters import RULES, Filters, Seen, Translated, judge
from seq2seq_cli.extras.distill.stages import written
from seq2seq_cli.extras.distill.student import Shape

PAIRS = number_pairs(240, seed=8)
LINES = [src for src, _ in PAIRS]
NOTHING = Seen(frozenset(), frozenset())
STUDENT = (
    *("--shape", "1+1x16", "--shards", 3, "--device", "cpu", "--set", "training.processes=1"),
    *("--set", "training.max_steps=20", "--set", "training.warmup_steps=2"),
    *("--set", "training.save_every=10", "--set", "training.tokens_per_batch=512"),
)


@pytest.fixture(scope="module")
def mono(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mono") / "mono.src"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


@pytest.fixture(scope="module")
def student(trained, mono, seq2seq, tmp_path_factory) -> Path:
    """A run that was distilled without interruptions."""
    output = tmp_path_factory.mktemp("distilled") / "student"
    made = distilled(seq2seq, trained, mono, output)
    assert "teacher  100.00" in made
    return output


def distilled(seq2seq: Command, teacher: Path, source: Path, output: Path, *options: object) -> str:
    return (
        seq2seq("distill", teacher, "--src", source, "--output", output, *STUDENT, *options)
        .ok()
        .stdout
    )


def rows_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_interruptions_in_every_stage_change_nothing(trained, seq2seq, mono, student, tmp_path):
    output = tmp_path / "student"
    command = ["distill", trained, "--src", mono, "--output", output, *STUDENT]

    end = partial(ended, command)
    end("source.jsonl", signal.SIGKILL)
    goes_on = "interrupted; the same command goes on\n"
    assert end("part-2", signal.SIGINT).endswith(goes_on)
    # Another machine may translate a shard.
    shard = ("translate", trained, "--input", output / "distilled/source.jsonl", "--n-best", 1)
    formats = ("--input-format", "jsonl", "--format", "nbest")
    part = ("--output", output / "distilled/part-2", "--shard", "2/3")
    assert seq2seq(*shard, *formats, *part).exit_code == 0
    assert end("part-3", signal.SIGTERM).endswith(goes_on)
    before = {path: path.stat() for path in (output / "distilled").glob("part-[12]")}
    assert len(before) == 2
    assert not (output / "distilled/student.yaml").exists()  # there are no pairs yet
    end("pairs.jsonl", signal.SIGKILL)
    assert all(path.stat() == status for path, status in before.items())
    end("step-00000010", signal.SIGINT)
    end("step-00000020", signal.SIGKILL)
    end("model.safetensors", signal.SIGKILL)
    made = seq2seq(*command).ok()
    assert differing_results(output, student) == []
    names = ("source.jsonl", "pairs.jsonl", "rejected.jsonl", "part-1", "part-2", "part-3")
    for name in ("model.safetensors", *(f"distilled/{name}" for name in names)):
        assert (output / name).read_bytes() == (student / name).read_bytes(), name
    status = {path: path.stat().st_mtime_ns for path in output.rglob("*") if path.is_file()}
    assert seq2seq(*command).stdout == made.stdout  # nothing is made again
    assert status == {path: path.stat().st_mtime_ns for path in status}


def test_what_was_cut_is_reported_once_for_all_shards(trained, tmp_path, caplog):
    source = tmp_path / "source.jsonl"
    with written(source) as write:
        for number in range(3):
            write({"src": f"{number} " * 300})
    task = Task(Job((trained,), "cpu"), source, tmp_path, Filters(3.0, 0.0), num_shards=3)
    task.folder.mkdir()
    models = described(task.teacher)["runs"]
    assert len(translate_source(task, source, 3, models)) == 3
    with pytest.raises(UserError, match="the teacher was replaced"):
        translate_source(task, source, 3, ["another"])
    (message,) = (m for m in caplog.messages if "data.max_length" in m)
    assert message.startswith("3 sentences are longer")


def test_the_student_is_an_ordinary_run(student, seq2seq):
    config = yaml.safe_load((student / "config.yaml").read_text())
    assert config["model"]["layers"] == {"encoder": 1, "decoder": 1}
    assert config["tokenizer"]["kind"] == "word"
    assert not config["tokenizer"]["shared"]
    assert seq2seq("translate", student, "1 2 3").exit_code == 0
    assert seq2seq("eval", student, "--loss-only").exit_code == 0


def test_the_report_has_scores_speed_and_size(trained, mono, student, seq2seq):
    command = ("distill", trained, "--src", mono, "--output", student, *STUDENT, "--json")
    report = json.loads(seq2seq(*command).stdout)
    teacher, of_student = report["systems"]
    assert (teacher["system"], of_student["system"]) == ("teacher", "student")
    assert of_student["megabytes"] == (student / "model.safetensors").stat().st_size / 1e6
    assert of_student["megabytes"] < teacher["megabytes"]
    for run, size in ((trained, teacher), (student, of_student)):
        assert size["precision"] == Translator.load(run, "cpu").backend.precision
    assert min(each["tokens_per_second"] for each in report["systems"]) > 0
    scores = report["metrics"]["chrf"]["systems"]
    low, high = scores[1]["score_interval"]
    assert low <= scores[1]["score"] <= high <= scores[0]["score"] == 100
    pairs = rows_of(student / "distilled/pairs.jsonl")
    rejected = rows_of(student / "distilled/rejected.jsonl")
    source, translations = report["source"], report["translations"]
    assert source["lines"] == len(LINES) == source["kept"] + sum(source["dropped"].values())
    assert translations["pairs"] == len(pairs)
    assert source["kept"] == len(pairs) + len(rejected)
    assert translations["dropped"] == {"worst scores": source["kept"] * 5 // 100}


def test_pairs_are_the_translations_of_the_teacher(trained, student):
    pairs = rows_of(student / "distilled/pairs.jsonl")
    translator = Translator.load(trained)
    assert translator.translate([pair["src"] for pair in pairs]) == [pair["tgt"] for pair in pairs]


def test_source_lines_are_clean_and_unseen(trained, numbers, seq2seq, tmp_path):
    held_out = (numbers / "valid.src").read_text().splitlines()
    lines = [b"7 7 7 1", b" 7  7 7 1\r", b"", b"\t", b"2 \xff 2", b"3 " * 600]
    lines += [line.encode() for line in held_out[:3]] + [b"1 2 3 4 5 7"]
    expected = [b"7 7 7 1", b"1 2 3 4 5 7"]
    assert not {*map(bytes.decode, expected)} & {*held_out}
    (tmp_path / "mono").write_bytes(b"\n".join(lines))
    made = distilled(seq2seq, trained, tmp_path / "mono", tmp_path / "run", "--json")
    source = json.loads(made)["source"]
    assert source["dropped"] == {
        "duplicate": 1,
        "empty": 2,
        "not valid UTF-8": 1,
        "longer than 1,000 characters": 1,
        "in the validation text": 3,
    }
    kept = rows_of(tmp_path / "run/distilled/source.jsonl")
    assert kept == [{"src": line.decode()} for line in expected]


@pytest.mark.parametrize(
    ("src", "tgt", "rule"),
    [
        ("ein Haus", "a house", "kept"),
        ("ein Haus", " ", "empty"),
        ("das ist ein Haus", "Das  ist ein Haus", "copy of the source"),
        ("Anna Müller", "Anna Müller", "kept"),
        ("ein Haus", "a house a house a house a house", "repetition"),
        ("ja", "no no no no", "repetition"),
        ("ja ja ja ja", "no no no no", "kept"),
        ("das ist ein Haus", "das ist ein Hans", "kept"),
        ("1 2 3 4", "1 2 3 4", "kept"),
        ("ein Haus", "a haaaaaaaaaaaa", "repetition"),
        ("房子", "好的好的好的好的好的好的好的好的", "repetition"),
        ("ein Haus", "a big house, a small house, a house", "kept"),
    ],
)
def test_rules_for_one_translation(src, tgt, rule, trained):
    tokenizer = Translator.load(trained).tokenizers.tgt
    [number] = judge(
        iter([Translated({"src": src}, tgt, 0.0)]), tokenizer, Filters(9.0, 0.0), NOTHING
    )
    assert RULES[number] == rule


def test_rules_for_all_translations(trained):
    """Lengths are compared with the median, and scores with the ones that are left."""
    tgt = Translator.load(trained).tokenizers.tgt
    lines = [Translated({"src": "1 " * 20}, "one " * 7 + "two " * 3, -float(n)) for n in range(40)]
    lines += [Translated({"src": "1 2 " * 20}, text, 0.0) for text in ("one", "one two " * 300)]
    lines[7:7] = [Translated({"src": "1 2"}, "", -99.0)]
    lines = [line._replace(text=line.text.replace("one one", "one two")) for line in lines]
    rules = [RULES[rule] for rule in judge(iter(lines), tgt, Filters(3.0, 10.0), NOTHING)]
    assert rules[7] == "empty"
    assert rules[-2] == "length ratio"
    assert rules[-1] in ("length ratio", "repetition")
    worst = [line.log_prob for line, rule in zip(lines, rules, strict=True) if rule == RULES[-1]]
    assert worst == [-36.0, -37.0, -38.0, -39.0]
    assert set(judge(iter(lines[:3]), tgt, Filters(1.0, 0.0), NOTHING)) == {0}


def test_tags_and_features_are_kept(seq2seq, tmp_path):
    """A corpus for each tag; real pairs have the tag that sources have by default."""
    folder = tmp_path
    config = numbers_config(folder, **FAST, max_steps=120)
    corpora = [write_rows(folder / f"{tag}.tsv", 400, seed) for seed, tag in enumerate("xy")]
    tagged = [corpus | {"tag": f"<{tag}>"} for tag, corpus in zip("xy", corpora, strict=True)]
    valid = write_rows(folder / "valid.tsv", 20, 5)
    config["data"] = {"train": tagged, "valid": valid}
    config["decoding"] = {"tag": "<x>"}
    teacher = folder / "teacher"
    seq2seq("train", write_config(folder, config), "--run-dir", teacher).ok()
    lines = [
        {"src": line, "features": f"NUM;{language}"} | ({"tag": "<y>"} if number % 3 else {})
        for number, line in enumerate(LINES[:120])
        for language in ("DE", "EN")
    ]
    (folder / "mono.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run = folder / "student"
    distilled(seq2seq, teacher, folder / "mono.jsonl", run, "--input-format", "jsonl")
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert saved["decoding"]["tag"] == "<x>"
    given = {corpus["tag"]: corpus for corpus in saved["data"]["train"]}
    assert given.keys() == {"<x>", "<y>"}
    found = {tag: rows_of(Path(corpus["pairs"])) for tag, corpus in given.items()}
    sources = {(row["src"], row["features"]) for rows in found.values() for row in rows}
    assert sources <= {(line["src"], line["features"]) for line in lines}
    german = [row["tgt"] for row in found["<y>"] if row["features"] == "NUM;DE"]
    assert set(" ".join(german).split()) <= {*GERMAN, *NAMES}
    assert len({corpus["pairs"] for corpus in given.values()}) == 2
    again = "3 1\tNUM;DE"
    assert seq2seq("translate", run, again).exit_code == 0
    (folder / "plain.src").write_text("\n".join(LINES[:9]))
    given = (teacher, "--src", folder / "plain.src", "--output", folder / "other")
    refused(seq2seq, given, "plain.src has no features, with which the teacher was trained")
    assert not list((folder / "other").rglob("part-*"))


def test_a_student_of_one_tag_is_validated_on_it(trained, numbers, tmp_path):
    """The teacher's validation text has others, too."""
    text = {"src": str(numbers / "test.src"), "tgt": str(numbers / "test.tgt")}
    teacher = load_config(trained / "config.yaml")
    corpora = [Corpus.model_validate({**text, "tag": tag}) for tag in ("<x>", None, "<y>")]
    teacher = teacher.updated(data={"valid": tuple(corpora)}, decoding={"tag": "<x>"})
    task = Task(Job((trained,)), tmp_path / "src", tmp_path / "run", Filters(3.0, 5.0))
    assert held_out_text(task, teacher).tags == ["<x>"]
    by_line = replace(task, teacher=Job((trained,), input_format="jsonl"))
    assert held_out_text(by_line, teacher).tags == ["<x>", "<y>"]
    untagged = teacher.updated(decoding={"tag": None})
    assert held_out_text(task, untagged).tags == []
    assert held_out_text(replace(task, config=untagged), teacher) == untagged.valid_text
    for tag, message in (("<z>", "give --valid"), (None, r"tags only \(<x>\): give --tag")):
        with pytest.raises(UserError, match=message):
            held_out_text(
                task, teacher.updated(decoding={"tag": tag}, data={"valid": (corpora[0],)})
            )


def test_pairs_of_a_teacher_with_features_need_some(trained, tmp_path):
    plain, lemmas = (
        Corpus(pairs=tmp_path / "a.tsv", fields=("1", "3"), features=features)
        for features in (None, "2")
    )
    text = ParallelText((plain,))
    task = Task(Job((trained,)), tmp_path / "src", tmp_path / "run", Filters(3.0, 5.0), real=text)
    teacher = load_config(trained / "config.yaml")
    with_features, mixed = (
        teacher.updated(data={"train": corpora}) for corpora in ((lemmas,), (lemmas, plain))
    )
    for given, names in ((task, "--pairs"), (replace(task, valid=text), "--pairs and --valid")):
        refuse_pairs_without_features(given, teacher)
        refuse_pairs_without_features(given, mixed)
        with pytest.raises(UserError, match=f"^{names}: the teacher was trained with features"):
            refuse_pairs_without_features(given, with_features)
    refuse_pairs_without_features(replace(task, real=None), with_features)


def test_an_ensemble_teaches_and_real_pairs_are_mixed_in(trained, seq2seq, mono, tmp_path):
    real = write_pairs(tmp_path, "real", number_pairs(30, seed=4))
    given = ("--pairs", real["src"], "--pairs", real["tgt"], "--pairs-weight", 2)
    output = tmp_path / "student"
    teachers = ("distill", trained, trained, "--src", mono, "--output", output)
    result = seq2seq(*teachers, *STUDENT, *given, "--beam-size", 2).ok()
    translated, mixed = yaml.safe_load((output / "config.yaml").read_text())["data"]["train"]
    assert translated["pairs"] == str(output / "distilled/pairs.jsonl")
    assert (mixed["src"], mixed["tgt"], mixed["weight"]) == (real["src"], real["tgt"], 2)
    assert len(rows_of(output / "distilled/pairs.jsonl")) > 100
    ensemble = as_ensemble(tmp_path / "ensemble", [trained, trained])
    same = ("distill", ensemble, "--src", mono, "--output", output, *STUDENT, *given)
    again = seq2seq(*same, "--beam-size", 2)
    assert (again.exit_code, again.stdout) == (0, result.stdout), again.stderr
    with Path(real["src"]).open("a") as src, Path(real["tgt"]).open("a") as tgt:
        print("1", file=src)
        print("one", file=tgt)
    assert "the text of data.train changed" in seq2seq(*same, "--beam-size", 2).error()


def test_a_config_replaces_the_generated_one(trained, numbers, seq2seq, mono, tmp_path):
    config = numbers_config(tmp_path, 50, max_steps=10, warmup_steps=2)
    path = write_config(tmp_path, config, "student.yaml")
    given = ("distill", trained, "--src", mono, "--output", tmp_path / "run", "--config", path)
    seq2seq(*given, "--set", "model.d_ff=32", "--set", "decoding.beam_size=2").ok()
    saved = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert [corpus.get("pairs") is None for corpus in saved["data"]["train"]] == [False, True]
    assert (saved["model"]["d_model"], saved["model"]["d_ff"]) == (64, 32)
    assert saved["decoding"]["beam_size"] == "auto"  # the option was the teacher's
    assert "--config excludes --shape" in seq2seq(*given, "--shape", "tiny").stderr


def test_the_student_of_a_config_has_the_tag_of_the_teacher(tmp_path):
    given = load_config(write_config(tmp_path, numbers_config(tmp_path, 10)))
    valid = given.valid_text
    assert valid is not None
    for own, expected in ((None, "<x>"), ("<y>", "<y>")):
        config, teacher = (
            given.model_copy(update={"decoding": given.decoding.model_copy(update={"tag": tag})})
            for tag in (own, "<x>")
        )
        run = tmp_path / "run"
        task = Task(Job((tmp_path,)), tmp_path / "src", run, Filters(3.0, 5.0), config=config)
        assert student_config(task, [], valid, teacher).decoding.tag == expected
    task = replace(task, config=given.updated(data={"direction": "both"}))
    with pytest.raises(UserError, match="both excludes tags"):
        check_student(task, valid, teacher)


def test_the_student_of_words_has_ngrams_if_its_teacher_has(tmp_path):
    """They are most of the weights, and no other program computes them."""
    pairs = [(f"{word}", " ".join(word)) for word in ("ab", "ba", "abc", "cab", "bca")]
    files = write_pairs(tmp_path, "train", pairs * 20)
    given = {"data": {"train": files}, "tokenizer": {"kind": {"src": "char", "tgt": "word"}}}
    for ngrams in (1, 3):
        teacher = Config.model_validate(given | {"model": {"ngrams": ngrams}})
        valid = ParallelText(teacher.data.train)
        path = tmp_path / f"{ngrams}.yaml"
        config = student_module.write_config(path, teacher.data.train, [], valid, teacher, None, [])
        assert config.model.ngrams == (1 if ngrams == 1 else 6)
        assert "vocab_size: auto  # every character and every symbol\n" in path.read_text()
    teacher = Config.model_validate(given | {"tokenizer": {"kind": "bpe"}})
    student_module.write_config(path, teacher.data.train, [], valid, teacher, None, [])
    assert "vocab_size: auto\n" in path.read_text()  # the reason was for another kind


def test_an_imported_teacher_needs_no_text_of_its_own(seq2seq, tmp_path):
    """Nor is its vocabulary one that can be learned: the student has one of its own kind.

    The teacher's weights are random, so its translations are drawn: without that it repeats itself.
    """
    write_marian_mt(tmp_path / "model", 5)
    teacher, output = tmp_path / "teacher", tmp_path / "student"
    assert seq2seq("import", tmp_path / "model", teacher, "--no-verify").exit_code == 0
    pairs = [(in_german(tgt), tgt) for _, tgt in PAIRS]
    real = write_pairs(tmp_path, "real", pairs)
    valid = write_pairs(tmp_path, "valid", pairs[::10])
    given = [("--pairs", path) for path in real.values()]
    given += [("--valid", path) for path in valid.values()]
    drawn = ("--sampling", "--set=decoding.max_len_factor=1", "--set=decoding.max_len_extra=2")
    command = ("distill", teacher, "--src", real["src"], "--output", output, *STUDENT, *drawn)
    missing = seq2seq(*command)
    assert (missing.exit_code, "--valid" in missing.stderr) == (2, True)
    seq2seq(*command, *(word for option in given for word in option)).ok()
    config = yaml.safe_load((output / "config.yaml").read_text())
    assert config["tokenizer"]["kind"] != "spm_vocab"
    assert config["data"]["languages"] == {"src": "de", "tgt": "en"}
    assert len(rows_of(output / "distilled/pairs.jsonl")) > 100
    assert seq2seq("translate", output, "eins zwei").exit_code == 0


def refused(seq2seq: Command, arguments: Sequence[object], message: str) -> None:
    assert message in seq2seq("distill", *arguments).error()


def test_other_inputs_need_another_run(trained, seq2seq, mono, student, tmp_path):
    copy = shutil.copytree(student, tmp_path / "student")
    changed = tmp_path / "mono.src"
    changed.write_text(mono.read_text() + "1 2\n")
    for options in (
        ("--src", changed, *STUDENT),
        ("--src", mono, *STUDENT, "--beam-size", 2),
        ("--src", mono, *STUDENT, "--drop-worst", 50),
    ):
        given = (trained, *options, "--output", copy)
        refused(seq2seq, given, "has learned from another source")
    with (copy / "distilled/pairs.jsonl").open("a") as file:
        file.write("\n")
    given = (trained, "--src", mono, *STUDENT, "--output", copy)
    refused(seq2seq, given, "or its files have changed")
    ordinary = (trained, "--src", mono, "--output", trained)
    refused(seq2seq, ordinary, "is a run already: choose another --output")


def test_mistakes_are_reported_before_anything_is_translated(trained, seq2seq, mono, tmp_path):
    given = (trained, "--src", mono, "--output", tmp_path / "run")
    refused(seq2seq, (*given, "--set", "model.head=2"), "did you mean model.heads?")
    assert not (tmp_path / "run").exists()
    short = (*given, "--set", "training.max_steps=6")
    refused(seq2seq, short, "error: the student's config: training.warmup_steps: ")
    refused(seq2seq, (*short, "--set", "model.heads=0"), "not 0\n  training.warmup_steps: ")
    refused(seq2seq, (*given, "--set", "decoding.beam=2"), "did you mean decoding.beam_size?")
    refused(seq2seq, (*given, "--pairs-weight", "2"), "--pairs-weight needs --pairs")
    refused(seq2seq, (*given, "--shape", "6x256"), "--shape 6x256: give tiny, small, base")
    refused(seq2seq, (*given, "--set", "decoding.n_best=2"), "leave out decoding.n_best")
    refused(seq2seq, (*given, "--fields", 1, 2), "--fields is for a file of pairs")
    for source, message in ((tmp_path, "is a folder"), (tmp_path / "none", "no such file")):
        refused(seq2seq, (trained, "--src", source, "--output", tmp_path / "run"), message)
    assert not list(tmp_path.rglob("source.jsonl"))
    (tmp_path / "empty.jsonl").write_text("\n\n")
    empty = (trained, "--src", tmp_path / "empty.jsonl", "--output", tmp_path / "run")
    for message in ("is translated as plain text; if it has JSON", "(dropped: 2 empty)"):
        refused(seq2seq, empty, message)
    for key in ({"prefix": "one"}, {"required": ["two"]}):
        (tmp_path / "empty.jsonl").write_text(json.dumps({"src": "1 2", **key}) + "\n")
        message = "line 1: a line to distill has src, tag and features"
        refused(seq2seq, (*empty, "--input-format", "jsonl"), message)
    assert distilled(seq2seq, trained, mono, tmp_path / "run")  # the folder can be used again


def test_a_teacher_without_validation_text_needs_one(trained, numbers, seq2seq, mono, tmp_path):
    teacher = shutil.copytree(trained, tmp_path / "teacher")
    config = yaml.safe_load((teacher / "config.yaml").read_text())
    config["data"]["valid"] = None
    (teacher / "config.yaml").write_text(yaml.safe_dump(config))
    given = (teacher, "--src", mono, "--output", tmp_path / "run")
    refused(seq2seq, given, "has no validation text here, to choose the best student: give --valid")
    seen = shutil.copytree(trained, tmp_path / "reverse")
    config = yaml.safe_load((seen / "config.yaml").read_text())
    config["data"]["direction"] = "reverse"
    (seen / "config.yaml").write_text(yaml.safe_dump(config))
    refused(seq2seq, (seen, *given[1:]), "has data.direction reverse, which a student cannot have")
    refused(seq2seq, (tmp_path / "none", *given[1:]), "there is no run folder")
    real = {side: str(numbers / f"test.{side}") for side in ("src", "tgt")}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"data": {"train": real}}))
    refused(seq2seq, (*given, "--config", tmp_path / "mine.yaml"), "give data.valid of --config")
    backward = {"data": {"train": real, "valid": real, "direction": "reverse"}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(backward))
    refused(seq2seq, (*given, "--config", tmp_path / "mine.yaml"), "has data.direction reverse")
    assert not list(tmp_path.rglob("source.jsonl")), "before anything is translated"
    valid = ("--valid", numbers / "test.src", "--valid", numbers / "test.tgt")
    made = distilled(seq2seq, teacher, mono, tmp_path / "run", *valid)
    assert f"held-out text    {numbers / 'test.src'}" in made


@pytest.mark.parametrize("text", ["6+2", "0+2x64", "6+00x64", "6+2x0", "6+2x100", "big", "6+2x²4"])
def test_shapes_that_are_none(text):
    with pytest.raises(UserError, match="a multiple of 8"):
        Shape.parse(text)


def test_shapes():
    assert Shape.parse("tiny") == Shape.parse("6+2x128") == Shape(6, 2, 128)
    for width in (8, 16, 24, 128, 192, 256, 264, 1024):
        heads = Shape(2, 1, width).choices()["model.heads"].value
        assert width % heads == 0 == width // heads % 2  # as rotary positions need


def test_a_full_disk_names_the_file_of_a_stage_and_nothing_is_left_of_it(tmp_path):
    path = tmp_path / "pairs.jsonl"
    with pytest.raises(OSError) as error, written(path) as write:
        write({"src": "1 2"})
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as the file would
    assert error.value.filename == str(path)
    assert not [*tmp_path.iterdir()]
