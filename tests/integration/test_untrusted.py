"""Untrusted run folders, tokenizers and text: one-line errors, no harm, bounded memory."""

import gzip
import itertools
import json
import os
import resource
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from commands import Command
from number_task import numbers_config, write_config
from safetensors.torch import load_file, save_file

from seq2seq_cli.errors import UserError
from seq2seq_cli.model.weights import read_tensors
from seq2seq_cli.text import io as text_io

Attack = Callable[[Path], object]


def replaced(name: str, old: str, new: str) -> Attack:
    def replace(run: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new))

    return replace


def written(name: str, content: bytes) -> Attack:
    return lambda run: (run / name).write_bytes(content)


def linked_out(name: str) -> Attack:
    """Move a file out of the run folder and put a link in its place."""

    def link(run: Path) -> None:
        elsewhere = run.parent / "elsewhere"
        shutil.move(run / name, elsewhere)
        (run / name).symlink_to(elsewhere)

    return link


def linked_by_dots(run: Path) -> None:
    (run.parent / "secret").write_text("x")
    (run / "train.log").unlink()
    (run / "train.log").symlink_to(Path("..") / "secret")


def a_pipe(run: Path) -> None:
    (run / "src.model").unlink()
    os.mkfifo(run / "src.model")


def sparse(name: str, size: int) -> Attack:
    """Replace a file with a sparse one of so many zeros."""
    return lambda run: os.truncate(run / name, size)


def deep_states(run: Path) -> None:
    for path in run.glob("checkpoints/*/state.json"):
        path.write_bytes(b"[" * 99_999)


def cut_short(run: Path) -> None:
    os.truncate(run / "src.model", (run / "src.model").stat().st_size - 1)


def weights_of_a_giant(run: Path) -> None:
    """Write a header that claims a terabyte, and a sparse file of that size."""
    count = 1 << 38
    names = load_file(run / "model.safetensors")
    tensor = {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}
    header = json.dumps({next(iter(names)): tensor}).encode()
    (run / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(run / "model.safetensors", 8 + len(header) + 4 * count)


def weights_of_another_shape(run: Path) -> None:
    weights = load_file(run / "model.safetensors")
    weights["encoder_norm.bias"] = torch.zeros(65)
    save_file(weights, run / "model.safetensors")


def weights_of_integers(run: Path) -> None:
    weights = load_file(run / "model.safetensors")
    weights["encoder_norm.bias"] = torch.zeros(64, dtype=torch.int32)
    save_file(weights, run / "model.safetensors")


def integers_beside_the_weights(run: Path) -> None:
    weights = load_file(run / "model.safetensors")
    save_file(weights | {"position_ids": torch.arange(9)}, run / "model.safetensors")


def a_tokenizer_that_is_no_text(run: Path) -> None:
    model = (run / "src.model").read_bytes()
    (run / "src.model").write_bytes(model.replace(b"\xe2\x96\x817", b"\xff\xff\xff7"))


def peak_memory() -> int:
    """The peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


LAUGHS = "a: &a [x, x, x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}, *{old}, *{old}]\n"
    for old, new in itertools.pairwise("abcdefghi")
)
LAST = "checkpoints/step-00000240"
D_MODEL, LAYERS = "  d_model: 64", "    encoder: 1"

ATTACKS: dict[str, tuple[Attack, str]] = {
    "weights linked out": (linked_out("model.safetensors"), "model.safetensors is a link that"),
    "checkpoint linked out": (linked_out("checkpoints"), "checkpoints is a link that leads out"),
    "in it a file linked out": (
        linked_out(f"{LAST}/weights.safetensors"),
        "weights.safetensors is a link that leads out of the run folder",
    ),
    "a log linked by dots": (linked_by_dots, "train.log is a link that leads out"),
    "a pipe": (a_pipe, "src.model is neither a file nor a folder"),
    "d_model of millions": (
        replaced("config.yaml", D_MODEL, "  d_model: 10000000"),
        "at most 65536",
    ),
    "layers of millions": (replaced("config.yaml", LAYERS, "    encoder: 9999999"), "at most 1000"),
    "a model as large as allowed": (
        replaced("config.yaml", D_MODEL, "  d_model: 65536"),
        "does not fit the config",
    ),
    "as deep as allowed": (
        replaced("config.yaml", LAYERS, "    encoder: 1000"),
        "does not fit the config: encoder.1.",
    ),
    "a beam of millions": (
        replaced("config.yaml", "beam_size: auto", "beam_size: 9999999"),
        "a whole number from 1 to 1,000",
    ),
    "weights of a giant": (weights_of_a_giant, "model.safetensors"),
    "weights of another shape": (
        weights_of_another_shape,
        "encoder_norm.bias is missing or differs",
    ),
    "integers beside the weights": (
        integers_beside_the_weights,
        "does not fit the config: position_ids is missing or differs",
    ),
    "weights of integers": (weights_of_integers, "encoder_norm.bias is missing or differs"),
    "a terminal's escape sequence": (
        replaced("config.yaml", D_MODEL, f'{D_MODEL}\n  "\\e]52;c": 1'),
        "\\x1b]52;c: unknown option",
    ),
    "a header that lies": (
        written("model.safetensors", b"\xff" * 7 + b"\x7f{}"),
        "header too large",
    ),
    "half of the weights": (sparse("model.safetensors", 5_000), "model.safetensors is damaged"),
    "a tokenizer of a gigabyte": (sparse("src.model", 1 << 30), "larger than 67,108,864 bytes"),
    "a tokenizer cut short": (cut_short, "src.model: this is not a SentencePiece model"),
    "no tokenizer at all": (sparse("src.model", 0), "src.model: this is not a SentencePiece model"),
    "a tokenizer that is no text": (a_tokenizer_that_is_no_text, "not a SentencePiece model"),
    "a tokenizer larger than it says": (
        replaced("config.yaml", "vocab_size: 50000", "vocab_size: 8"),
        "src.model does not fit the config: it has 14 entries, more than tokenizer.vocab_size 8",
    ),
    "a billion laughs": (written("config.yaml", LAUGHS.encode()), "its aliases expand to more"),
    "a list that holds itself": (written("config.yaml", b"data: &a [*a]"), "its aliases expand"),
    "deep YAML": (
        written("config.yaml", b"a: " + b"[" * 9_999),
        "this is not valid YAML",
    ),
    "a config of a gigabyte": (sparse("config.yaml", 1 << 30), "config.yaml is larger than"),
    "YAML that calls": (
        replaced("config.yaml", D_MODEL, "  d_model: !!python/object/apply:os.getpid []"),
        "could not determine a constructor",
    ),
    "a number of 30,000 digits": (
        replaced("config.yaml", D_MODEL, f"  d_model: 0x{'f' * 30_000}"),
        "d_model: must be a multiple of 2, not the given value",
    ),
    "text of 30,000 letters": (
        replaced("config.yaml", D_MODEL, f"  d_model: {'x' * 30_000}"),
        "must be a whole number, not 'xxx",
    ),
    "statistics of no text": (
        replaced("statistics.json", '"p999": 6', '"p999": 0'),
        "statistics.json is damaged: src_tokens.p999 is not valid",
    ),
    "statistics out of order": (
        replaced("statistics.json", '"p50": 1.0', '"p50": 2.0'),
        "statistics.json is damaged: length_ratio is not valid",
    ),
    "statistics of another kind": (written("statistics.json", b"[1]"), "damaged: it is not valid"),
    "statistics that are no JSON": (written("statistics.json", b"{"), "damaged: it is not JSON"),
    "statistics with marks without end": (
        written("statistics.json", b'{"src_inner_marks": "%s"}' % (b"." * 9_999)),
        "statistics.json is damaged: src_tokens is not valid",
    ),
    "statistics of a gigabyte": (sparse("statistics.json", 1 << 30), "statistics.json is larger"),
    "thousands of mistakes": (
        replaced("config.yaml", "banned_words: []", f"banned_words: [{'1, ' * 2_000}]"),
        "has 2000 mistakes; the first 20 are",
    ),
}


def test_weights_that_memory_is_too_small_for_are_not_damaged(tmp_path):
    path = tmp_path / "weights.safetensors"
    path.touch()
    os.truncate(path, 1 << 40)  # sparse
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 37, hard))
    try:
        with pytest.raises(UserError, match=r"weights.safetensors does not fit into memory"):
            read_tensors(path)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("name", ATTACKS)
def test_malicious_run_is_rejected_in_one_line_and_little_memory(
    name: str, trained: Path, seq2seq: Command, tmp_path: Path
):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    attack, expected = ATTACKS[name]
    attack(run)
    before = peak_memory()
    result = seq2seq("translate", run, "1 2")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert expected in result.stderr
    assert len(result.stderr) < 8_000
    if "mistakes" not in result.stderr:
        assert len(result.stderr.splitlines()) == 1
    assert peak_memory() - before < 200 << 20


def test_links_inside_and_to_a_run_folder_work(trained, seq2seq, tmp_path):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (run / "model.safetensors").rename(run / "best.safetensors")
    (run / "model.safetensors").symlink_to("best.safetensors")
    (tmp_path / "link").symlink_to(run)
    assert seq2seq("translate", tmp_path / "link", "7").stdout == "seven\n"
    (run / "extra").symlink_to("extra")  # a circle
    assert seq2seq("translate", run, "7").stdout == "seven\n"


TRAINING_ATTACKS: dict[str, tuple[Attack, str]] = {
    "metrics linked out": (linked_out("metrics.jsonl"), "metrics.jsonl is a link that leads out"),
    "state linked out": (
        linked_out(f"{LAST}/state.json"),
        "state.json is a link that leads out",
    ),
    "deep JSON": (written("manifest.json", b"[" * 99_999), "manifest.json is damaged: it is not"),
    "NaN": (replaced("manifest.json", '"seed": 1', '"seed": NaN'), "manifest.json is damaged"),
    "a manifest of a gigabyte": (sparse("manifest.json", 1 << 30), "manifest.json is larger than"),
    "metrics of terabytes": (sparse("metrics.jsonl", 1 << 42), "metrics.jsonl is larger than"),
    "deep states": (deep_states, "state.json is damaged"),
}


@pytest.mark.parametrize("name", TRAINING_ATTACKS)
def test_malicious_run_cannot_be_resumed(name, trained, numbers, seq2seq, tmp_path):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    attack, expected = TRAINING_ATTACKS[name]
    attack(run)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    more = ("--set", "training.max_steps=241")
    message = seq2seq("train", numbers / "numbers.yaml", "--run-dir", run, *more).error()
    assert expected in message.partition("error: ")[2]
    for path, time in before.items():
        if path.name not in ("config.yaml", "manifest.json", "statistics.json", "train.log"):
            assert path.stat().st_mtime_ns == time, path


def test_invalid_metrics_lines_are_dropped(trained, numbers, seq2seq, tmp_path):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    points = (run / "metrics.jsonl").read_bytes()
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b"[" * 99_999 + b'\n{"step": Infinity}\n{"step": 1e999}\n')
    more = ("--set", "training.max_steps=241")
    assert seq2seq("train", numbers / "numbers.yaml", "--run-dir", run, *more).exit_code == 0
    found = (run / "metrics.jsonl").read_bytes()
    assert found.startswith(points)
    assert len(found.splitlines()) == len(points.splitlines()) + 2


@pytest.fixture
def config(tmp_path: Path) -> dict:
    return numbers_config(tmp_path)


def run_check(seq2seq: Command, folder: Path, config: dict, *more: str):
    (folder / "x.yaml").write_text(yaml.safe_dump(config))
    return seq2seq("check", folder / "x.yaml", *more)


@pytest.mark.slow
def test_huge_line_is_bad_and_never_held_in_memory(config, seq2seq, tmp_path):
    assert run_check(seq2seq, tmp_path, config).exit_code == 0  # what checking needs anyway
    with (tmp_path / "train.src").open("r+b") as file:
        os.truncate(file.fileno(), file.seek(0, os.SEEK_END) + (100 << 20))
        file.seek(0, os.SEEK_END)
        file.write(b"\n")
    with (tmp_path / "train.tgt").open("a") as file:
        file.write("one\n")
    before = peak_memory()
    stopped = run_check(seq2seq, tmp_path, config)
    skipped = run_check(seq2seq, tmp_path, config, "--set", "data.on_bad_line=skip")
    assert "train.src, line 801: longer than 4,194,304 bytes" in stopped.error()
    assert skipped.exit_code == 0, skipped.stderr
    assert "800 pairs; dropped: 1 unreadable" in skipped.stdout
    assert peak_memory() - before < 64 << 20


def test_longest_allowed_line_is_read(tmp_path):
    longest = b"x" * text_io.MOST_BYTES
    for end in (b"\n", b"\r\n", b""):
        path = tmp_path / "text"
        path.write_bytes(b"\xef\xbb\xbf" + longest + b"\r\n" + longest + b"y\n1\n" + longest + end)
        found = list(text_io.raw_lines(path))
        assert [len(line) - len(longest) for line in found[:2]] == [0, 1]
        assert found[2:] == [b"1", longest]


def test_gzip_bomb_is_not_fully_decompressed(config, seq2seq, tmp_path):
    """The lines before the limit have an empty side, so that reading them is quick."""
    megabyte = gzip.compress(b"\t" + b"x" * (1 << 20) + b"\n")
    (tmp_path / "x.tsv.gz").write_bytes(megabyte * 400)  # a file may have several members
    config["data"]["train"] = {"pairs": str(tmp_path / "x.tsv.gz")}
    message = run_check(seq2seq, tmp_path, config).error()
    assert "x.tsv.gz unpacks to 100 times its size" in message


def test_translate_rejects_an_endless_line_by_number(trained, seq2seq, tmp_path):
    (tmp_path / "in").write_bytes(b"1\n" + b"2" * (9 << 20))
    message = seq2seq("translate", trained, "--input", tmp_path / "in").error()
    assert "in, line 2: longer than 4,194,304 bytes" in message


def test_deeply_nested_json_is_a_bad_line(trained, config, seq2seq, tmp_path):
    deep = "[" * 99_999
    result = seq2seq("translate", trained, "--input-format", "jsonl", "--input", "-", stdin=deep)
    assert 'line 1: not of the form {"src": "..."' in result.error()
    (tmp_path / "x.jsonl").write_text(deep)
    config["data"]["train"] = {"pairs": str(tmp_path / "x.jsonl")}
    assert "x.jsonl, line 1: not valid JSON" in run_check(seq2seq, tmp_path, config).stderr


@pytest.mark.slow
def test_cached_ids_outside_the_vocabulary_are_rebuilt(config, seq2seq, tmp_path, monkeypatch):
    monkeypatch.setenv("SEQ2SEQ_CACHE", str(tmp_path / "cache"))
    expected = json.loads(run_check(seq2seq, tmp_path, config, "--json").stdout)["run"]
    for name, number in (("src.ids", b"\xff\xff\xff\x7f"), ("tgt.offsets", b"\xff" * 8)):
        for path in (tmp_path / "cache").glob(f"*/{name}"):
            original = path.read_bytes()
            path.write_bytes(original[:8] + number + original[8 + len(number) :])
            found = json.loads(run_check(seq2seq, tmp_path, config, "--json").stdout)["run"]
            assert found == expected
            assert path.read_bytes() == original


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_training_in_an_untrusted_git_repository_runs_none_of_its_code(
    seq2seq: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Git could run its hooks; the commit is recorded without them."""
    (tmp_path / "repository").mkdir()
    monkeypatch.chdir(tmp_path / "repository")
    proof, script = tmp_path / "proof", tmp_path / "script.sh"
    script.write_text(f"#!/bin/sh\necho executed >> {proof}\ncat\n")
    script.chmod(0o755)
    git("init", "--quiet")
    Path(".gitattributes").write_text("*.src filter=evil\n")
    config = write_config(Path(), numbers_config(Path(), max_steps=2, warmup_steps=0))
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message=all")
    git("config", "core.fsmonitor", str(script))
    git("config", "filter.evil.clean", str(script))
    os.utime("train.src", (1, 1))
    assert seq2seq("train", config, "--run-dir", "run").exit_code == 0
    assert not proof.exists()
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert manifest["git"] == git("rev-parse", "HEAD")
    git("status")
    assert proof.exists(), "what should not happen can happen here"
