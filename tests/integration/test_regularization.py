"""Subword sampling and consistency training through the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bare_runs import stop_at
from commands import ROOT, Command, logged_points
from number_task import numbers_config, write_config

from seq2seq_cli.commands.diff import differing_results
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.training.loop import train

BOTH = {
    "subword_sampling": {"src": None, "tgt": 0.1},
    "consistency": {"kind": "simcut", "weight": 3.0, "cutoff": 0.1},
}


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("regularized")
    settings = numbers_config(
        folder, max_steps=12, warmup_steps=4, log_every=4, save_every=None, processes=1, **BOTH
    )
    settings["tokenizer"] = {"kind": "bpe", "vocab_size": 310, "shared": False}
    settings["model"]["dropout"] = 0.1
    settings["validation"] = {"every": 6, "unit": "steps", "metric": "loss", "decode": False}
    return write_config(folder, settings)


@pytest.fixture(scope="module")
def whole(config: Path, seq2seq: Command) -> Path:
    run = config.parent / "whole"
    seq2seq("train", config, "--run-dir", run).ok()
    return run


def test_summary_names_subword_sampling(whole):
    log = (whole / "train.log").read_text()
    assert " bpe; subword sampling: target 0.1\n" in log


def test_a_run_with_both_continues_exactly(config, whole, seq2seq, tmp_path):
    """It was stopped in the middle of an epoch."""
    run = tmp_path / "run"
    train(load_config(config), run, hooks=stop_at(5))
    assert seq2seq("train", config, "--run-dir", run).exit_code == 0
    assert differing_results(run, whole) == []


def test_cross_entropy_and_consistency_are_logged_apart(whole):
    training = [point for point in logged_points(whole) if "train/loss" in point]
    assert len(training) == 3
    assert all(point["train/consistency"] > 0 for point in training)
    assert training[-1]["train/loss"] < training[0]["train/loss"]
    [first, *_] = [point for point in logged_points(whole) if "valid/loss" in point]
    assert "valid/consistency" not in first


def test_changed_subword_sampling_starts_a_new_epoch(config, whole, seq2seq, tmp_path):
    run = tmp_path / "run"
    train(load_config(config), run, hooks=stop_at(5))
    more = ("train", config, "--run-dir", run, "--set", "training.subword_sampling.tgt=0.3")
    message = seq2seq(*more).error()
    assert "training.subword_sampling.tgt: 0.1 in the run, 0.3 now" in message
    result = seq2seq(*more, "--allow-changed", "training.subword_sampling").ok()
    assert "the training data changed; a new epoch starts" in result.stderr


def test_check_tries_batches_with_sampled_subwords(config, seq2seq):
    report = json.loads(seq2seq("check", config, "--json").stdout)
    longest = report["run"]["training_text"]["tgt"]["longest"]
    assert max(shape["tgt_positions"] for shape in report["longest_batches"]["shapes"]) > longest
    assert 0 < report["run"]["training"]["padding"] < 0.15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["tokenizer.kind=word"], "subword_sampling: kind word has no subwords"),
        (["training.consistency.kind=r_drop"], "r_drop has no cutoff: choose simcut"),
        (
            ["training.consistency={kind: r_drop}", "model.dropout=0"],
            "the two passes of r_drop differ only in dropout",
        ),
        (["training.consistency.cutoff=null"], "simcut needs a probability"),
        (["training.subword_sampling=1.5"], "must be less than 1.0, not 1.5"),
    ],
)
def test_options_that_do_not_fit_are_refused(config, seq2seq, tmp_path, options, message):
    sets = [text for option in options for text in ("--set", option)]
    assert message in seq2seq("train", config, "--run-dir", tmp_path / "run", *sets).error()


SAMPLE = """
import hashlib, sys
import numpy as np
from pathlib import Path
from seq2seq_cli.extras.subwords.sampler import SubwordSampler
from seq2seq_cli.tokenizers.tokenizer import Tokenizer
tokenizer = Tokenizer.load(Path(sys.argv[1]))
sentences = [np.array(ids) for ids in tokenizer.to_ids_batch(["seven three", "zero nine"] * 30)]
sampled = SubwordSampler(tokenizer, 0.3, 99, [1, 0])(sentences, range(60), 1)
print(hashlib.sha256(str([list(ids) for ids in sampled]).encode()).hexdigest())
"""


@pytest.mark.slow
def test_all_processes_sample_alike(whole):
    """Python's hashes of text, and the order of sets, differ between processes."""
    found = set()
    for seed in "12":
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", SAMPLE, whole / "tgt.model"]
        found.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert len(found) == 1
