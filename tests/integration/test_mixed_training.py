"""Training on several corpora, and the workflows that mix them: docs/data.md."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import yaml
from bare_runs import stop_at
from commands import Command
from number_task import number_pairs, numbers_config, write_config, write_pairs
from safetensors.torch import load_file

from seq2seq_cli import Translator
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.evaluation import read_held_out
from seq2seq_cli.training.loop import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Text of both sides, and some of the target side only."""
    folder = tmp_path_factory.mktemp("mixed")
    config = numbers_config(folder, max_steps=20, warmup_steps=5, log_every=10, processes=1)
    config["data"]["train"] = write_pairs(folder, "train", number_pairs(300, seed=4))
    config["data"]["valid"] = write_pairs(folder, "valid", number_pairs(20, seed=5))
    config["tokenizer"] = {"kind": "word"}
    config["validation"] = {"every": 20, "unit": "steps", "metric": "loss", "decode": False}
    write_config(folder, config, "mine.yaml")
    write_pairs(folder, "mono", number_pairs(40, seed=6))
    return folder


def with_corpora(folder: Path, *more: dict, name: str = "mixed.yaml", **data: object) -> Path:
    """Write a config with further corpora."""
    config = yaml.safe_load((folder / "mine.yaml").read_text())
    config["data"] = {**config["data"], "train": [config["data"]["train"], *more], **data}
    return write_config(folder, config, name)


def run(seq2seq: Command, *arguments: object) -> str:
    result = seq2seq(*arguments).ok()
    return result.stdout + result.stderr


@pytest.fixture(scope="module")
def back_translated(folder: Path, seq2seq: Command) -> Path:
    """The config of a run on text and back-translated text, made as docs/data.md describes."""
    turned = ("--set", "data.direction=reverse")
    run(seq2seq, "train", folder / "mine.yaml", "--run-dir", folder / "reverse", *turned)
    mono, made = folder / "mono.tgt", folder / "mono.bt.src"
    run(seq2seq, "translate", folder / "reverse", "-i", mono, "-o", made, "--sampling")
    assert len(made.read_text().splitlines()) == 40
    bt = {"src": str(made), "tgt": str(mono), "tag": "<bt>", "weight": 2}
    config = with_corpora(folder, bt)
    run(seq2seq, "train", config, "--run-dir", folder / "mixed")
    return config


def test_back_translation(back_translated, folder, seq2seq):
    reverse = Translator.load(folder / "reverse")
    assert "0" in reverse.tokenizers.tgt.to_text(reverse.tokenizers.tgt.to_ids("0"))
    held_out = read_held_out(reverse.config.valid_text, reverse.tokenizers, reverse.config.data)
    assert held_out.pairs[0].src == (folder / "valid.tgt").read_text().splitlines()[0]
    log = (folder / "mixed" / "train.log").read_text()
    made = (folder / "mono.bt.src").read_text().splitlines()
    usable = sum(bool(line.strip()) for line in made)
    assert f"mono.tgt: {usable} pairs, {2 * usable} an epoch, tag <bt>" in log
    mixed = Translator.load(folder / "mixed")
    assert mixed.tokenizers.src.pieces().count("<bt>") == 1


def test_tag_reaches_the_model_wherever_it_is_given(back_translated, folder, seq2seq, tmp_path):
    """By an option, by a line of JSON, by a default, in evaluation and in every process."""
    lines = (folder / "valid.src").read_text().splitlines()
    mixed = folder / "mixed"
    plain = seq2seq("translate", mixed, *lines, "--log-probs", "--format", "tsv").stdout
    tagged = ("translate", mixed, "--format", "tsv", "--log-probs", "--tag", "<bt>")
    expected = seq2seq(*tagged, *lines).stdout
    assert expected != plain
    records = "".join(json.dumps({"src": line, "tag": "<bt>"}) + "\n" for line in lines)
    piped = seq2seq(*tagged[:-2], "--input-format", "jsonl", stdin=records).stdout
    assert piped == expected
    default = ("--set", "decoding.tag=<bt>")
    assert seq2seq(*tagged[:-2], *default, *lines).stdout == expected
    aligned = seq2seq(*tagged[:2], "--tag", "<bt>", "--align", "--format", "jsonl", lines[0]).stdout
    rows = json.loads(aligned)["attention"]
    assert {len(row) for row in rows} == {len(lines[0].split())}  # the tag is no word
    assert all(abs(sum(row) - 1) < 1e-3 for row in rows)
    scores = {
        name: json.loads(run(seq2seq, "eval", mixed, *more, "--loss-only", "--json"))["loss"]
        for name, more in {
            "plain": (),
            "option": (
                "--src",
                folder / "valid.src",
                "--ref",
                folder / "valid.tgt",
                "--tag",
                "<bt>",
            ),
            "default": default,
        }.items()
    }
    assert scores["option"] == scores["default"] != scores["plain"]
    (tmp_path / "typed.src").write_text("".join(f"<bt> {line}\n" for line in lines))
    typed = ("--src", tmp_path / "typed.src", "--ref", folder / "valid.tgt", "--loss-only")
    assert "20 sources with a tag in the text, which loss" in seq2seq("eval", mixed, *typed).stderr
    own = Path(shutil.copytree(mixed, tmp_path / "run"))
    config = yaml.safe_load((own / "config.yaml").read_text())
    config["data"]["valid"]["tag"] = "<bt>"
    (own / "config.yaml").write_text(yaml.safe_dump(config))
    of_corpus = json.loads(run(seq2seq, "eval", own, "--loss-only", "--json"))["loss"]
    assert of_corpus == scores["option"]
    other = config["data"]["valid"] | {"tag": "<2en>"}
    config["data"]["valid"] = [other, config["data"]["valid"]]
    (own / "config.yaml").write_text(yaml.safe_dump(config))
    of_tag = seq2seq("eval", own, "--tag", "<bt>", "--loss-only", "--json").ok().stdout
    assert json.loads(of_tag)["loss"] == of_corpus
    assert seq2seq("compare", own, own, "--tag", "<bt>").ok().stdout.startswith("20 lines")
    config["data"]["valid"][0] = other | {"tag": None}  # it has the default tag
    (own / "config.yaml").write_text(yaml.safe_dump(config | {"decoding": {"tag": "<2en>"}}))
    of_tag = seq2seq("eval", own, "--tag", "<bt>", "--loss-only", "--json").ok().stdout
    assert json.loads(of_tag)["loss"] == of_corpus
    assert seq2seq("compare", own, own, "--tag", "<bt>").ok().stdout.startswith("20 lines")
    config["data"]["valid"] = other
    (own / "config.yaml").write_text(yaml.safe_dump(config))
    for command in (("eval", own), ("compare", own, mixed)):
        refused = seq2seq(*command, "--tag", "<bt>").error()
        assert "run has no validation text with the tag <bt>: give --src" in refused
    message = seq2seq("translate", mixed, "--tag", "<2en>", "1").error()
    assert "the vocabulary lacks the tag <2en>" in message


@pytest.mark.slow
def test_sources_without_a_tag_are_named_if_all_training_sources_have_one(
    back_translated, folder, seq2seq, tmp_path
):
    run_dir = tmp_path / "run"
    config, tags = folder / "mine.yaml", ("data.train.tag=<2en>", "data.valid.tag=<2en>")
    plain, tagged = ("--set", tags[0]), ("--set", tags[0], "--set", tags[1])
    in_summary = "WARNING: pairs without a tag, which all training pairs have"
    log = run(seq2seq, "train", config, "--run-dir", run_dir, *plain)
    assert in_summary in log
    page = run(seq2seq, "check", config, *plain)
    assert in_summary in page
    assert "valid: 20 lines (100.00%) without a tag, which all training pairs have" in page
    for right in (tagged, (*plain, "--set", "decoding.tag=<2en>")):
        assert "without a tag" not in run(seq2seq, "check", config, *right)
    message = "{} no tag, which all training sources have: give --tag, or set decoding.tag"
    text = ("--src", folder / "valid.src", "--ref", folder / "valid.tgt")
    assert message.format("20 lines have") in seq2seq("eval", run_dir, *text).ok().stderr
    assert message.format("1 line has") in seq2seq("translate", run_dir, "1 2", "").ok().stderr
    given = ("--input-format", "jsonl", '{"src": "1 2", "tag": "<2en>"}')
    for command in (
        ("translate", run_dir, "1 2", "--tag", "<2en>"),
        ("translate", run_dir, "1 2", "--set", "decoding.tag=<2en>"),
        ("translate", run_dir, "<2en> 1 2"),
        ("translate", run_dir, *given),
        ("eval", run_dir, *text, "--tag", "<2en>"),
        ("translate", folder / "mixed", "1 2"),
    ):
        assert "no tag" not in seq2seq(*command).ok().stderr


def test_every_sentence_of_a_line_is_tagged(back_translated, folder):
    translator = Translator.load(folder / "mixed", overrides=["decoding.tag=<bt>"])
    (tag,) = translator.tokenizers.src.tag_ids("<bt>")
    (segments,), _ = translator.cut([TranslationInput("Eins. Zwei drei.")], split_sentences=True)
    assert len(segments) == 2
    assert [segment.src_ids[0] for segment in segments] == [tag, tag]
    assert all(tag not in segment.ids for segment in segments)
    typed = Translator.load(folder / "mixed").cut(
        [TranslationInput(" <bt> Eins. Zwei drei.")], split_sentences=True
    )
    assert typed[0] == [segments]


def test_mixed_run_resumes_exactly_within_an_epoch(back_translated, folder, tmp_path, seq2seq):
    config = load_config(back_translated, is_given_now=True)
    train(config, tmp_path / "run", hooks=stop_at(11))
    state = json.loads(next((tmp_path / "run/checkpoints").glob("*11/state.json")).read_text())
    assert state["position"] > 0
    run(seq2seq, "train", back_translated, "--run-dir", tmp_path / "run")
    whole, resumed = (
        load_file(path / "model.safetensors") for path in (folder / "mixed", tmp_path / "run")
    )
    assert all(whole[name].equal(resumed[name]) for name in whole)


def test_changed_weight_is_refused_or_begins_an_epoch(back_translated, folder, tmp_path, seq2seq):
    copy = Path(shutil.copytree(folder / "mixed", tmp_path / "run"))
    longer = ("train", back_translated, "--run-dir", copy, "--set", "training.max_steps=22")
    changed = (*longer, "--set", "data.train.1.weight=0.5")
    assert "data.train.1.weight: 2.0 in the run, 0.5 now" in seq2seq(*changed).error()
    allowed = seq2seq(*changed, "--allow-changed", "data.train.1.weight")
    assert "the training data changed; a new epoch starts" in allowed.stderr
    (folder / "mono.tgt").rename(folder / "moved.tgt")
    try:
        moved = run(seq2seq, *changed, "--set", f"data.train.1.tgt={folder / 'moved.tgt'}")
        assert "a new epoch" not in moved
    finally:
        (folder / "moved.tgt").rename(folder / "mono.tgt")


def test_compare_gives_each_run_its_own_tag(back_translated, folder, seq2seq, tmp_path):
    """The validation text is that of the first run, its tag is not."""
    tagged = shutil.copytree(folder / "mixed", tmp_path / "tagged")
    config = yaml.safe_load((tagged / "config.yaml").read_text())
    config["decoding"]["tag"] = "<bt>"
    write_config(tagged, config, "config.yaml")
    scores = {}
    for order in ([tagged, folder / "mixed"], [folder / "mixed", tagged]):
        given = ("--metrics", "chrf", "--trials", 10, "--json")
        (metric,) = json.loads(seq2seq("compare", *order, *given).stdout)["metrics"].values()
        scores[order[0]] = {system["system"]: system["score"] for system in metric["systems"]}
    assert scores[tagged] == scores[folder / "mixed"]
    assert len({*scores[tagged].values()}) == 2


@pytest.mark.slow
def test_run_length_in_epochs_is_exact_for_fractions_of_corpora(back_translated, tmp_path, caplog):
    """However often it is resumed: the learning rate depends on the last update's number."""
    given = ("training.max_steps=null", "training.max_epochs=3", "training.tokens_per_batch=256")
    config = load_config(back_translated, [*given, "data.train.0.weight=0.35"], is_given_now=True)
    logs = []
    caplog.set_level(logging.INFO)
    for name, stops in (("whole", (None,)), ("parts", (3, 8, None))):
        for stop in stops:
            train(config, tmp_path / name, hooks=stop_at(stop))
        logs.append((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])
        state = max((tmp_path / name / "checkpoints").iterdir()) / "state.json"
        assert json.loads(state.read_text())["epoch"] == 4
    assert json.loads(logs[0])["step"] == json.loads(logs[1])["step"]
    assert caplog.text.count("(max_epochs), 3.0 epochs of") == 4


def test_self_distillation(back_translated, folder, seq2seq):
    teacher, made = folder / "mixed", folder / "train.distilled.tgt"
    beam = ("--beam-size", "2", "-i", folder / "train.src", "-o", made)
    run(seq2seq, "translate", teacher, *beam)
    distilled = {"src": str(folder / "train.src"), "tgt": str(made)}
    config = with_corpora(folder, distilled, name="distilled.yaml")
    log = run(seq2seq, "train", config, "--run-dir", folder / "distilled", "--from", teacher)
    assert "reusing its vocabulary" in log
    assert "train.distilled.tgt: " in log


@pytest.mark.slow
def test_data_diversification(back_translated, folder, seq2seq):
    """Both sides of the training text are translated, and all three texts trained on."""
    pairs = []
    for model, given, made in (("mixed", "src", "tgt"), ("reverse", "tgt", "src")):
        text, output = folder / f"train.{given}", folder / f"train.translated.{made}"
        run(seq2seq, "translate", folder / model, "-b", "2", "-i", text, "-o", output)
        assert len(output.read_text().splitlines()) == 300
        pairs.append({given: str(text), made: str(output)})
    config = with_corpora(folder, *pairs, name="diversified.yaml")
    log = run(seq2seq, "train", config, "--run-dir", folder / "diversified")
    assert "train.src and " in log
    for name in ("train.translated.src", "train.translated.tgt"):
        assert name in log


@pytest.mark.slow
def test_bidirectional_training_then_fine_tuning(folder, seq2seq):
    both = ("--run-dir", folder / "both", "--set", "data.direction=both")
    log = run(seq2seq, "train", folder / "mine.yaml", *both)
    assert "600 pairs" in log
    assert "300 pairs" not in log
    translator = Translator.load(folder / "both")
    assert len(translator.translate(["1 2", "one two"])) == 2
    tuned = ("--run-dir", folder / "tuned", "--from", folder / "both")
    assert "300 pairs" in run(seq2seq, "train", folder / "mine.yaml", *tuned)
    result = seq2seq("train", folder / "mine.yaml", *both[2:], "--set", "tokenizer.shared=false")
    assert "data.direction both needs tokenizer.shared: true" in result.error()


def test_sampling_temperature_evens_out_the_corpora(folder, seq2seq):
    small = {"src": str(folder / "mono.src"), "tgt": str(folder / "mono.tgt")}
    config = with_corpora(folder, small, name="even.yaml", sampling_temperature=10_000)
    text = json.loads(seq2seq("check", config, "--json").stdout)["run"]["training_text"]
    assert [corpus["pairs"] for corpus in text["corpora"]] == [300, 40]
    assert [corpus["pairs_per_epoch"] for corpus in text["corpora"]] == [170, 170]
