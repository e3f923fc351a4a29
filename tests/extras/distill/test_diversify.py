"""Diversification: whose translations are added, and that no interruption changes the result."""

import json
import random
import re
import shutil
import signal
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from commands import Command
from ended import ended
from number_task import FAST, NAMES, numbers_config, write_config, write_pairs

from seq2seq_cli.commands.diff import differing_results
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.extras.distill.diversification import on_more_text, tuned, turned_around

ONE = ("--set", "training.processes=1", "--device", "cpu")


def ambiguous_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Digits and their names, each in one of two forms, so that translations differ.

    Some digits have full width, which the vocabulary normalizes.
    """
    generator = random.Random(seed)
    pairs = []
    for _ in range(count):
        digits = generator.choices(range(10), k=generator.randint(1, 4))
        forms = (generator.choices(("0", "０", "0."), (6, 1, 3))[0] for _ in digits)
        src = (chr(ord(form[0]) + d) + form[1:] for form, d in zip(forms, digits, strict=True))
        tgt = (NAMES[d] if generator.random() < 0.7 else NAMES[d].upper() for d in digits)
        pairs.append((" ".join(src), " ".join(tgt)))
    return pairs


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diversify")
    options = numbers_config(folder, **FAST, max_steps=120, save_every=60)
    options["data"] = {
        "train": write_pairs(folder, "train", ambiguous_pairs(300, seed=1)),
        "valid": write_pairs(folder, "valid", ambiguous_pairs(40, seed=2)),
    }
    options["model"]["dropout"] = 0.15
    options["tokenizer"]["normalization"] = {"src": "nfkc", "tgt": "identity"}
    return write_config(folder, options)


@pytest.fixture(scope="module")
def diversified(config: Path, seq2seq: Command) -> Path:
    """A run that was made without interruptions."""
    output = config.parent / "run"
    seq2seq("diversify", config, "--output", output, *ONE).ok()
    return output


def rows_of(path: Path) -> set[tuple[str, str]]:
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {(row["src"], row["tgt"]) for row in rows}


def sides_of(path: Path, name: str) -> list[list[str]]:
    return [(path / f"{name}.{side}").read_text().splitlines() for side in ("src", "tgt")]


def test_both_directions_add_new_pairs(config, diversified, seq2seq, tmp_path):
    folder = diversified / "diversified"
    sources, targets = sides_of(config.parent, "train")
    held_out = sides_of(config.parent, "valid")
    original = set(zip(sources, targets, strict=True))
    normalized = {(unicodedata.normalize("NFKC", src), tgt) for src, tgt in original}
    forward = rows_of(folder / "forward/distilled/pairs.jsonl")
    backward = {(tgt, src) for src, tgt in rows_of(folder / "backward/distilled/pairs.jsonl")}
    assert forward and backward
    assert not original & forward
    assert not normalized & backward
    assert not {src for src, _ in backward} & {*held_out[0]}, "the final model reads them"
    rejected = (folder / "backward/distilled/rejected.jsonl").read_text().splitlines()
    assert "in the validation text" in {json.loads(line)["rule"] for line in rejected}
    assert not forward & backward
    assert {src for src, _ in forward} <= {*sources} - {*held_out[0]}
    assert {tgt for _, tgt in backward} <= {*targets} - {*held_out[1]}
    for run, text in (("forward", sources), ("backward", targets)):
        (tmp_path / "text").write_text("".join(f"{line}\n" for line in text))
        translate = ("translate", folder / run, "--beam-size", 5, "--input", tmp_path / "text")
        made = zip(text, seq2seq(*translate).stdout.splitlines(), strict=True)
        added = forward if run == "forward" else {(tgt, src) for src, tgt in backward}
        assert added <= {*made}
    data = yaml.safe_load((diversified / "config.yaml").read_text())["data"]["train"]
    assert [corpus.get("fields") for corpus in data] == [None, ["src", "tgt"], ["tgt", "src"]]


def test_the_recipe_and_its_report(config, diversified, seq2seq):
    names = ("diversified/forward", "diversified/backward", "diversified/mixed", ".")
    saved = [yaml.safe_load((diversified / name / "config.yaml").read_text()) for name in names]
    forward, backward, _, final = saved
    assert backward["data"]["direction"] == "reverse"
    assert [each["training"]["max_steps"] for each in saved] == [120, 120, 180, 90]
    assert final["training"]["lr"] == forward["training"]["lr"] / 2
    assert final["model"]["dropout"] == pytest.approx(0.1)
    assert final["tokenizer"]["reuse"] == str(diversified / "diversified/mixed")
    again = seq2seq("diversify", config, "--output", diversified, *ONE, "--json")
    report = json.loads(again.stdout)
    systems = {row["system"]: row for row in report["metrics"]["chrf"]["systems"]}
    for name, run in (("forward", diversified / names[0]), ("final", diversified)):
        scores = json.loads(seq2seq("eval", run, "--json").stdout)
        assert systems[name]["score"] == pytest.approx(scores["chrf"], abs=2)  # int8, not fp32
    pairs = [len(rows_of(diversified / name / "distilled/pairs.jsonl")) for name in names[:2]]
    assert [*report["pairs"].values()] == pairs
    assert all(dropped["known pair"] > 0 for dropped in report["dropped"].values())
    assert all(minutes > 0 for minutes in report["minutes"].values())


def test_the_length_of_later_stages_follows_the_updates_of_the_first(config, tmp_path):
    """Not its epochs, which have more pairs later on, also those of a weighted corpus."""
    given = load_config(config)
    begun = given.updated(training={"max_epochs": 1, "max_steps": None, "max_hours": 2.0})
    mixed = on_more_text(begun, given.data.train, 104)
    final = tuned(mixed, tmp_path)
    found = [(t.max_epochs, t.max_steps, t.max_hours) for t in (mixed.training, final.training)]
    assert found == [(None, 156, 3.0), (None, 78, 1.5)]


@pytest.mark.slow
def test_interruptions_in_every_stage_change_nothing(config, seq2seq, diversified, tmp_path):
    output = tmp_path / "0"
    for number, (sign, how) in enumerate(
        [
            ("teachers.json", signal.SIGKILL),
            ("part-1", signal.SIGINT),
            ("pairs.jsonl", signal.SIGKILL),
            ("step-00000090", signal.SIGKILL),
        ],
        1,
    ):
        ended(("diversify", config, "--output", output, *ONE), sign, how)
        output = output.rename(tmp_path / f"{number}")  # which is allowed, too
        if sign == "part-1":
            source = output / "diversified/forward.jsonl"
            source.write_bytes(source.read_bytes().splitlines(keepends=True)[0])
    seq2seq("diversify", config, "--output", output, *ONE).ok()
    for name in (".", "diversified/forward", "diversified/backward", "diversified/mixed"):
        assert differing_results(output / name, diversified / name) == []
    for name in ("forward", "backward"):
        pairs = f"diversified/{name}/distilled/pairs.jsonl"
        assert (output / pairs).read_bytes() == (diversified / pairs).read_bytes()


def test_a_finished_folder_may_be_moved(config, seq2seq, diversified, tmp_path):
    report = seq2seq("diversify", config, "--output", diversified, *ONE).ok().stdout
    moved = shutil.copytree(diversified, tmp_path / "moved")
    away = diversified.rename(tmp_path / "away")
    try:
        assert seq2seq("diversify", config, "--output", moved, *ONE).ok().stdout == report
    finally:
        away.rename(diversified)
    assert differing_results(moved, diversified) == []


def edited(change: Callable[[dict], object], config: Path) -> Path:
    options = yaml.safe_load(config.read_text())
    change(options)
    return write_config(config.parent, options, "edited.yaml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: (c["data"].update(direction="both"), c.update(tokenizer={"kind": "word"})),
            "takes no tags, no features",
        ),
        (lambda c: c["data"]["train"].update(tag="<x>"), "takes no tags, no features"),
        (
            lambda c: c.update(tokenizer={"shared": False, "reuse": "some/run"}),
            "needs a vocabulary that both sides share",
        ),
        (lambda c: c["data"].update(valid=None), "diversify needs data.valid"),
        (lambda c: c.update(decoding={"sampling": True}), "sampling and beam search exclude"),
    ],
)
def test_what_cannot_be_turned_around(config, seq2seq, tmp_path, change, message):
    result = seq2seq("diversify", edited(change, config), "--output", tmp_path / "run", *ONE)
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
    assert not (tmp_path / "run").exists()


def test_the_options_of_the_sides_are_exchanged(config):
    options = yaml.safe_load(config.read_text())
    sides = {"kind": ("char", "bpe"), "vocab_size": (90, 900), "normalization": ("nfd", "nfkc_cf")}
    for name, (src, tgt) in sides.items():
        options["tokenizer"][name] = {"src": src, "tgt": tgt}
    loaded = load_config(write_config(config.parent, options, "sides.yaml"))
    backward = turned_around(loaded)
    for name, (src, tgt) in sides.items():
        assert getattr(backward.tokenizer, name).src == tgt
        assert getattr(backward.tokenizer, name).tgt == src
    assert turned_around(backward) == loaded


def test_other_options_need_another_run(config, diversified, trained, seq2seq):
    command = ("diversify", config, *ONE, "--output")
    of_groups = ("--set", "decoding.diversity_groups=2", "--set", "decoding.beam_size=4")
    for output, options, message in (
        (diversified, ("--beam-size", 2), "has learned from another source"),
        (diversified, ("--set", "model.layers=2"), "has learned from another source"),
        (diversified, ("--set", "training.max_steps=140"), "has learned from another source"),
        (trained, (), "is a run already: choose another --output"),
        (trained, of_groups, "is a run already: choose another --output"),
        (trained, (*of_groups, "--beam-size", 3), "does not divide beam_size 3"),
    ):
        result = seq2seq(*command, output, *options)
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
    assert seq2seq(*command, diversified).exit_code == 0, "nothing of it has changed"


@pytest.mark.slow
def test_text_that_both_models_know_by_heart_adds_nothing(seq2seq, tmp_path):
    """All one or two digits, so that no model makes a mistake."""
    numbers = [str(number) for number in range(100)]
    pairs = [(" ".join(n), " ".join(NAMES[int(digit)] for digit in n)) for n in numbers]
    options = numbers_config(tmp_path, **FAST, max_steps=150, save_every=150)
    options["data"] = {
        "train": write_pairs(tmp_path, "train", pairs),
        "valid": write_pairs(tmp_path, "valid", [("1 2 3", "one two three")]),
    }
    path = write_config(tmp_path, options)
    result = seq2seq("diversify", path, "--output", tmp_path / "run", *ONE)
    assert (result.exit_code, "is left to add (dropped: " in result.stderr) == (2, True)
    assert re.search(r"\d known pair.* another --output", result.stderr), "the reason and a way out"
