"""`find-lr` and `plot`: the numbers are those of training, and the files hold them."""

import csv
import itertools
import json
import math
import re
import shutil
from pathlib import Path

import pytest
from commands import Command, logged_points

from seq2seq_cli.extras.plot.find_lr import FEWEST_UPDATES, suggest, text_chart

SHAPE = ("--set", "model.d_model=16", "--set", "training.processes=1")
CONSISTENCY = ("--set", "model.dropout=0.1", "--set", "training.consistency={kind: r_drop}")


def range_test(seq2seq: Command, config: Path, *options: object) -> dict:
    result = seq2seq("find-lr", config, *SHAPE, "--json", *options).ok()
    return json.loads(result.stdout)


def read_csv(path: Path) -> list[dict]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture(scope="module")
def run(numbers: Path, seq2seq: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of as few updates as a range test may have, all at one rate."""
    folder = tmp_path_factory.mktemp("curves") / "run"
    training = ("lr=1e-3", "schedule=constant", "warmup_steps=0", "log_every=1")
    sets = [f"training.{option}" for option in (*training, f"max_steps={FEWEST_UPDATES}")]
    options = [v for option in (*sets, "validation.every=10") for v in ("--set", option)]
    seq2seq(
        "train", numbers / "numbers.yaml", "--run-dir", folder, *SHAPE, *CONSISTENCY, *options
    ).ok()
    return folder


@pytest.fixture(scope="module")
def found(numbers: Path, seq2seq: Command, tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("find-lr")
    outputs = [option for name in ("lr.csv", "lr.svg") for option in ("-o", folder / name)]
    options = ("--start-lr", 1e-5, "--end-lr", 10, "--updates", 60, *outputs)
    return {**range_test(seq2seq, numbers / "numbers.yaml", *options), "folder": folder}


def test_rates_grow_exponentially_until_the_loss_diverges(found):
    lrs = [point["lr"] for point in found["points"]]
    ratios = [higher / lower for lower, higher in itertools.pairwise(lrs)]
    assert lrs[0] == 1e-5
    assert ratios == pytest.approx([10 ** (6 / 59)] * len(ratios))
    assert found["diverged"] == (len(lrs) < 60)
    assert all(math.isfinite(point["loss"]) for point in found["points"])
    assert all(lrs[0] <= lr <= lrs[-1] for lr in found["suggestions"].values())


def test_updates_are_those_of_training(numbers, run, seq2seq):
    """At one rate, the losses of a range test are those that train logs."""
    options = ("--start-lr", 1e-3, "--end-lr", 1e-3 * (1 + 1e-12), "--updates", FEWEST_UPDATES)
    points = range_test(seq2seq, numbers / "numbers.yaml", *CONSISTENCY, *options)["points"]
    losses = [point["train/loss"] for point in logged_points(run) if "train/loss" in point]
    assert [point["loss"] for point in points] == pytest.approx(losses, rel=1e-5)


def test_range_test_is_written_to_files(found):
    rows = read_csv(found["folder"] / "lr.csv")
    points = [{name: float(value) for name, value in row.items()} for row in rows]
    assert points == found["points"]
    figure = (found["folder"] / "lr.svg").read_text()
    assert all(f"<!-- {name} {lr:.2g} -->" in figure for name, lr in found["suggestions"].items())


def test_find_lr_keeps_nothing_and_names_what_is_wrong(numbers, seq2seq, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = seq2seq(
        "find-lr", numbers / "numbers.yaml", *SHAPE, "--updates", 25, "--end-lr", 0.01
    ).ok()
    assert re.search(
        r"^training\.lr +0\.005 +reached after 40 updates", result.stdout, re.MULTILINE
    )
    assert list(tmp_path.iterdir()) == []
    swapped = seq2seq("find-lr", numbers / "numbers.yaml", "--start-lr", 1, "--end-lr", 0.1)
    assert "--start-lr 1 must be lower than --end-lr 0.1" in swapped.stderr
    options = ("--set", "training.max_grad_norm=null", "--set", "model.dropout=0")
    high = seq2seq(
        "find-lr", numbers / "numbers.yaml", *options, "--start-lr", 1e4, "--end-lr", 1e6
    )
    message = high.error()
    assert "the loss diverged after" in message
    assert "lower --start-lr, or use more --updates" in message  # if the rate rises too steeply


def test_suggestions_on_a_known_curve():
    """Flat, falling fastest in the middle of the fall, lowest at 1e-1, then rising."""
    exponents = [-6 + n / 10 for n in range(61)]
    lrs = [10**e for e in exponents]
    losses = [5 - 2 * math.tanh(2 * (e + 3)) + max(0, e + 1) ** 2 * 9 for e in exponents]
    suggested = suggest(lrs, losses)
    assert suggested["steep"] == pytest.approx(1e-3, rel=0.3)
    assert suggested["minimum/10"] == pytest.approx(1e-2, rel=0.5)
    assert suggested["steep"] / 10 < suggested["valley"] < suggested["minimum/10"]


@pytest.mark.parametrize("columns", [30, 80, 300])
def test_a_chart_fits_its_width(columns):
    curve = [(10.0 ** (n / 10 - 5), 5 - n / 20) for n in range(60)]
    lines = text_chart(curve, [1e-3], columns, "•").splitlines()
    assert max(map(len, lines)) <= min(columns, 100)
    assert lines[0].lstrip().startswith("5.000")
    assert sum(line.count("•") for line in lines) >= 10
    assert lines[1].count("|") == 2  # the axis and the mark


@pytest.mark.parametrize("x", ["updates", "time", "tokens"])
def test_plot_writes_what_was_logged(run, seq2seq, tmp_path, x):
    seq2seq("plot", run, "--x", x, "-o", tmp_path / "c.CSV").ok()
    rows = read_csv(tmp_path / "c.CSV")
    points = logged_points(run)
    for name in ("train/loss", "valid/loss", "train/lr"):
        logged = [point for point in points if name in point]
        drawn = [row for row in rows if row["name"] == name]
        assert [float(row["value"]) for row in drawn] == [point[name] for point in logged]
        places = [float(row[x]) for row in drawn]
        assert places == sorted(places)
        if x == "updates":
            assert places == [point["step"] for point in logged]
    ends = [float(row[x]) for row in rows if row["name"] == "train/loss"]
    seconds = [point["train/seconds"] for point in points if "train/seconds" in point]
    tokens = [point["train/tokens"] for point in points if "train/tokens" in point]
    assert ends[-1] == pytest.approx(
        {"updates": FEWEST_UPDATES, "time": seconds[-1] / 3600}.get(x, sum(tokens))
    )


def test_a_figure_names_its_runs_and_axes(run, seq2seq, tmp_path, monkeypatch):
    """Also runs whose names matplotlib would leave out or read as formulas."""
    monkeypatch.chdir(tmp_path)
    names = ["_first", "$x$", "plain"]
    for name in names:
        Path(name).mkdir()
        for file in ("config.yaml", "metrics.jsonl"):
            shutil.copy(run / file, name)
    seq2seq("plot", *names, "--metric", "bleu", "-o", "c.svg", "-o", "c.png", "-o", "c.pdf").ok()
    texts = [
        text.strip("\u200b") for text in re.findall("<!-- (.*) -->", Path("c.svg").read_text())
    ]
    for text in (*names, "updates", "learning rate", "bleu, 0 to 100", "validation"):
        assert texts.count(text) == 1, text
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")
    assert Path("c.pdf").read_bytes().startswith(b"%PDF")


def test_plot_says_what_is_missing(run, seq2seq, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "old", ignore=shutil.ignore_patterns("checkpoints", "*.safetensors"))
    points = logged_points(run)
    for point in points:
        point.pop("train/seconds", None)
    Path("old/metrics.jsonl").write_text("".join(f"{json.dumps(p)}\n" for p in points))
    for arguments, message in (
        (("old", "--x", "time"), "old has not logged train/seconds"),
        (("old", "--metric", "ter"), "logged: loss, perplexity, accuracy, bleu, chrf"),
        (("old", "--output", "c.txt"), "the name must end in .png, .svg, .pdf, .csv"),
        ((tmp_path,), "is not a run folder"),
    ):
        assert message in seq2seq("plot", *arguments).error()
    Path("old/metrics.jsonl").write_text("")
    assert "old has logged nothing yet" in seq2seq("plot", "old").stderr
    assert not Path("curves.png").exists()
