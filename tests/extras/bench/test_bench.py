"""`seq2seq bench`: speed and memory of training and translation."""

import json
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from commands import Command

from seq2seq_cli.config.loader import config_yaml, load_config
from seq2seq_cli.extras.bench.measure import DecodingSpeed, TrainingSpeed, decoding_table
from seq2seq_cli.files import write_json
from seq2seq_cli.model.device import has_fast_bf16
from seq2seq_cli.native import library as native


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_bench_train_measures_each_part_of_a_step(numbers, seq2seq, processes):
    options = ("--updates", 3, "--warmup", 1, "--set", f"training.processes={processes}", "--json")
    result = seq2seq("bench", "train", numbers / "numbers.yaml", *options).ok()
    found = json.loads(result.stdout)
    parts = sum(found[f"ms_{part}"] for part in ("data", "forward", "backward", "optimizer"))
    assert parts == pytest.approx(found["ms_per_update"])
    rate = 1000 * found["tokens_per_update"] / found["ms_per_update"]
    assert found["tokens_per_second"] == pytest.approx(rate)
    assert found["processes"] == processes
    assert min(value for value in found.values() if not isinstance(value, str)) >= 0
    assert found["ceiling_fp32_gflops"] > 0
    assert 0 < found["share_of_ceiling"] < 1


def test_small_numbers_are_not_rounded_away():
    numbers_of = dict.fromkeys((field.name for field in fields(TrainingSpeed)), 1)
    speed = TrainingSpeed(**numbers_of | {"gflops": 0.0123, "ceiling_bf16_gflops": 1_234.5})
    page = speed.table()
    assert "0.0123 GFLOP/s\n" in page and "1 GFLOP/s in fp32, 1,234 in bf16" in page
    assert "1, each with 1 thread" in page.splitlines()[-1]


@pytest.mark.slow
def test_bench_train_prints_a_table_and_writes_nothing(numbers, seq2seq):
    before = sorted(numbers.iterdir())
    result = seq2seq("bench", "train", numbers / "numbers.yaml", "--updates", 1, "--warmup", 0)
    assert [line.split("  ")[0] for line in result.stdout.splitlines()][:3] == [
        "target tokens/s",
        "tokens per update",
        "time per update",
    ]
    assert sorted(numbers.iterdir()) == before


@pytest.mark.slow
def test_bench_train_finds_the_batch_size(numbers, seq2seq):
    options = ("--updates=1", "--warmup=0", "--set", "training.tokens_per_batch=auto")
    seq2seq("bench", "train", numbers / "numbers.yaml", *options).ok()


@pytest.mark.slow
def test_bench_translate_measures_each_precision(trained, seq2seq):
    options = ("--precision", "fp32", "--precision", "int8", "--lines", 20)
    found = json.loads(seq2seq("bench", "translate", trained, *options, "--json").stdout)
    assert [one["precision"] for one in found] == ["fp32", "int8"]
    assert all(
        one[name] > 0 for one in found for name in one if name not in ("precision", "engine")
    )
    for one in found:
        is_compiled = one["precision"] in native.precisions()
        engine = f"C, {native.kernels_name()}" if is_compiled else "PyTorch"
        assert one["engine"].startswith(engine)
    assert found[0]["p50_ms"] <= found[0]["p95_ms"]
    page = decoding_table([DecodingSpeed(**speed) for speed in found])
    assert "sentences/s" in page.splitlines()[0]
    assert [line.split()[0] for line in page.splitlines()[1:]] == ["fp32", "int8"]


def test_bench_translate_measures_what_the_engine_supports(trained, seq2seq):
    plain = ("--set", "decoding.engine=plain", "--lines", 3, "--json")
    found = json.loads(seq2seq("bench", "translate", trained, *plain).ok().stdout)
    supported = ["fp32", *["bf16"] * has_fast_bf16(torch.device("cpu"))]
    assert [one["precision"] for one in found] == supported


def test_bench_translate_warns_once_for_each_precision(trained, seq2seq, tmp_path, capfd):
    (tmp_path / "long").write_text(f"{'3 ' * 400}\n" * 5)  # longer than data.max_length
    options = ("--precision", "fp32", "--precision", "int8", "--input", tmp_path / "long")
    assert seq2seq("bench", "translate", trained, *options).exit_code == 0
    warnings = capfd.readouterr().err.splitlines()
    assert warnings and all(warnings.count(warning) == 2 for warning in warnings)


def test_bench_translate_refuses_an_empty_file_no_text_and_an_ensemble(
    trained: Path, seq2seq: Command, tmp_path: Path
):
    (tmp_path / "empty").touch()
    run = shutil.copytree(trained, tmp_path / "run")
    config = load_config(run / "config.yaml").updated(data={"valid": None})
    (run / "config.yaml").write_text(config_yaml(config))
    write_json(tmp_path / "ensemble.json", {"members": 1})
    for arguments, message in (
        ((trained, "--input", tmp_path / "empty"), "empty has no lines"),
        ((trained, "--set", "decoding.precision=int8"), "measures each --precision: leave out"),
        ((run,), "run has no validation text here: give --input"),
        ((tmp_path,), "is an ensemble, but one model is needed: give a member, such as"),
    ):
        result = seq2seq("bench", "translate", *arguments)
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
