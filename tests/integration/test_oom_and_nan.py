"""Runs that memory or numbers set back: out of memory, a loss that is not finite."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import yaml
from bare_runs import stop_at
from commands import Command, Result, last_checkpoint, logged_points
from safetensors.torch import load_file
from seams import (
    after_forward,
    after_update,
    before_forward,
    out_of_memory,
    raise_out_of_memory,
    signal_after,
)

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.attention import MultiHeadAttention
from seq2seq_cli.model.layers import FeedForward
from seq2seq_cli.training import loop
from seq2seq_cli.training.losses.cross_entropy import BatchLoss, Losses
from seq2seq_cli.training.run import Hooks

SHORT = ("training.max_steps=40", "training.log_every=5", "training.warmup_steps=10")


def train(seq2seq: Command, numbers: Path, run: Path, *settings: str) -> Result:
    given = [part for setting in (*SHORT, *settings) for part in ("--set", setting)]
    return seq2seq("train", numbers / "numbers.yaml", "--run-dir", run, *given)


def points_of(run: Path) -> list[dict]:
    return [point for point in logged_points(run) if "train/tokens" in point]


def pairs_of(numbers: Path) -> list[tuple[str, str]]:
    src, tgt = ((numbers / f"train.{side}").read_text().splitlines() for side in ("src", "tgt"))
    return list(zip(src, tgt, strict=True))


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_file(last_checkpoint(run) / "weights.safetensors")


@pytest.mark.slow
def test_oom_at_random_batches_does_not_change_the_run(numbers, seq2seq, tmp_path):
    """Without key biases, whose true gradient is zero, so that Adam follows the rounding."""
    settings = (
        "model.attention_bias=false",
        "training.precision=fp32",
        "training.gradient_accumulation=3",
    )
    chance, failed = random.Random(1), []

    def fail_in_backward(module: torch.nn.Module, batch: Batch, losses: Losses) -> None:
        if batch.src_BS.numel() > 300 and chance.random() < 0.1:  # no half is as large
            failed.append(len(batch.src_BS))
            losses.total.register_hook(raise_out_of_memory)

    assert train(seq2seq, numbers, tmp_path / "whole", *settings).exit_code == 0
    with after_forward(BatchLoss, fail_in_backward):
        result = train(seq2seq, numbers, tmp_path / "split", *settings)
    assert result.exit_code == 0
    assert len(failed) > 2
    assert result.stderr.count("out of memory with a batch of") == 1
    assert (tmp_path / "split/train.log").read_text().count("out of memory") == len(failed)
    for expected, found in zip(
        points_of(tmp_path / "whole"), points_of(tmp_path / "split"), strict=True
    ):
        assert found["train/loss"] == pytest.approx(expected["train/loss"], rel=1e-4)
        assert found["train/grad_norm"] == pytest.approx(expected["train/grad_norm"], rel=1e-2)
    weights = weights_of(tmp_path / "split")
    for name, expected in weights_of(tmp_path / "whole").items():
        torch.testing.assert_close(weights[name], expected, atol=2e-3, rtol=1e-2, msg=name)


@pytest.mark.slow
def test_run_with_a_split_batch_resumes_exactly(numbers, seq2seq, tmp_path):
    """What was learned in a failure before the interruption is used after it."""
    tried: list[int] = []

    def fails(batch: Batch) -> bool:
        tried.append(len(batch.src_BS))
        return len(tried) == 3

    with out_of_memory(fails):
        assert train(seq2seq, numbers, tmp_path / "whole").exit_code == 0
    whole = list(tried)
    tried.clear()
    with out_of_memory(fails):
        with signal_after(10):
            assert train(seq2seq, numbers, tmp_path / "parts").exit_code == 130
        assert train(seq2seq, numbers, tmp_path / "parts").exit_code == 0
    assert tried == whole
    assert len(tried) > 45, "later batches of that size are split"
    ours, theirs = weights_of(tmp_path / "parts"), weights_of(tmp_path / "whole")
    assert all(ours[name].equal(theirs[name]) for name in theirs)


def budget_of(run: Path) -> int:
    return yaml.safe_load((run / "config.yaml").read_text())["training"]["tokens_per_batch"]


@pytest.mark.slow
def test_auto_batch_size_is_kept_by_the_run(numbers, seq2seq, tmp_path):
    auto, run = "training.tokens_per_batch=auto", tmp_path / "auto"
    assert train(seq2seq, numbers, run, auto).exit_code == 0
    positions = sum(max(len(src.split()), len(tgt.split())) + 1 for src, tgt in pairs_of(numbers))
    assert budget_of(run) == positions // 50
    number = f"training.tokens_per_batch={positions // 50}"
    assert train(seq2seq, numbers, tmp_path / "number", number).exit_code == 0
    ours, theirs = weights_of(run), weights_of(tmp_path / "number")
    assert all(ours[name].equal(theirs[name]) for name in theirs), "the trial leaves no trace"
    result = train(seq2seq, numbers, run, auto, "training.max_steps=45").ok()
    assert "looking for the largest tokens_per_batch that fits into memory" not in result.stderr
    assert (budget_of(run), logged_points(run)[-1]["step"]) == (positions // 50, 45)


@pytest.mark.slow
def test_auto_batch_size_without_memory_is_a_user_error(numbers, seq2seq, tmp_path):
    auto = "training.tokens_per_batch=auto"
    config = load_config(numbers / "numbers.yaml", [auto])
    with pytest.raises(UserError, match="not even one pair of 7 tokens fits into memory"):
        loop.train(config, tmp_path / "run", hooks=Hooks(available_memory=lambda: 0))
    seq2seq("check", numbers / "numbers.yaml", "--set", auto).ok()


@contextmanager
def nan_weight(module: str, after_step: int) -> Iterator[None]:
    """Put a NaN among the weights of a module after an update."""
    updates: list[int] = []

    def plant(batch_loss: BatchLoss, batch: Batch) -> None:
        if updates:
            with torch.no_grad():
                batch_loss.model.get_submodule(module).weight.view(-1)[-1] = torch.nan

    with (
        after_update(after_step, lambda: updates.append(after_step)),
        before_forward(BatchLoss, plant),
    ):
        yield


@pytest.mark.parametrize(
    ("weight", "module"),
    [
        ("decoder.0.cross_attention.key", "decoder.0.cross_attention"),
        pytest.param(*["encoder.0.feed_forward.expand"] * 2, marks=pytest.mark.slow),
        ("decoder_norm", "decoder_norm"),
    ],
)
def test_nan_loss_stops_the_run_and_reports_its_source(numbers, seq2seq, tmp_path, weight, module):
    with nan_weight(weight, after_step=11):
        settings = ("training.save_every=10", "model.dropout=0.1", "training.max_steps=14")
        result = train(seq2seq, numbers, tmp_path / "run", *settings)
    assert result.exit_code == 2
    first, *report = result.stderr[result.stderr.index("error: ") :].splitlines()
    assert first == "error: step 12: loss nan, gradient norm nan"
    assert report[0].split() == ["began", "in", f"{module}:", *report[0].split()[3:]]
    assert "gradients   not finite: " in report[1]
    texts = {f"{src} → {tgt}" for src, tgt in pairs_of(numbers)}
    assert {line.strip() for line in report[4:7]} <= texts
    assert "the last checkpoint is unaffected. Lower training.lr" in report[7]
    assert first.removeprefix("error: ") in (tmp_path / "run/train.log").read_text()
    state = json.loads((last_checkpoint(tmp_path / "run") / "state.json").read_text())
    assert state["step"] == 10
    skipping = "training.on_nonfinite=skip"  # may be changed half-way
    train(seq2seq, numbers, tmp_path / "run", *settings, skipping).ok()
    assert all(weight.isfinite().all() for weight in weights_of(tmp_path / "run").values())


def began_in(result: Result) -> str:
    assert result.exit_code == 2
    return result.stderr.partition("began in")[2].split(":")[0].strip()


def test_nan_source_is_found_with_the_dropout_of_the_update(numbers, seq2seq, tmp_path):
    def rarely_nan(module: torch.nn.Module, _: object, x: torch.Tensor) -> torch.Tensor | None:
        return x * torch.nan if module.training and torch.rand(()) < 0.05 else None

    with after_forward(FeedForward, rarely_nan):
        result = train(seq2seq, numbers, tmp_path / "run")
    assert began_in(result).endswith("feed_forward")


def test_validation_scores_that_are_not_finite_are_null_in_metrics(numbers, seq2seq, tmp_path):
    def nan_in_evaluation(module: torch.nn.Module, _: object, x: torch.Tensor) -> torch.Tensor:
        return x if module.training else x * torch.nan

    with after_forward(FeedForward, nan_in_evaluation):
        settings = ("training.max_steps=2", "training.warmup_steps=1", "validation.decode=false")
        train(seq2seq, numbers, tmp_path / "run", *settings).ok()
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    points = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [point["valid/loss"] for point in points if "valid/loss" in point] == [None]


def test_nan_source_is_the_module_itself_if_its_children_are_finite(numbers, seq2seq, tmp_path):
    """Not the projection inside it."""
    with after_forward(MultiHeadAttention, lambda module, _, x: x * torch.nan):
        result = train(seq2seq, numbers, tmp_path / "run")
    assert began_in(result) == "encoder.0.self_attention"


def test_infinite_gradient_is_reported_as_the_backward_pass(numbers, seq2seq, tmp_path):
    def make_gradient_infinite(batch_loss: BatchLoss, batch: Batch) -> None:
        weight = batch_loss.model.encoder[0].feed_forward.expand.weight
        weight.register_hook(lambda gradient: gradient * torch.inf)

    with before_forward(BatchLoss, make_gradient_infinite):
        result = train(seq2seq, numbers, tmp_path / "run")
    assert "began in    the backward pass" in result.error()
    assert "not finite: 1 of" in result.stderr
    assert "(encoder.0.feed_forward.expand.weight)" in result.stderr
    assert "largest finite ones: " in result.stderr


def test_skipped_updates_are_counted_and_keep_the_weights(numbers, seq2seq, tmp_path):
    """Also the last of a window, whose point has no norm of a gradient, and the last of all."""
    calls, weights = [], []

    def nan_at_times(module: BatchLoss, batch: Batch, losses: Losses) -> Losses | None:
        calls.append(1)
        if len(calls) in (7, 20, 21):
            weights.append([weight.detach().clone() for weight in module.parameters()])
        is_bad = len(calls) in (7, 20) or len(calls) > 35
        return losses._replace(total=losses.total * torch.nan) if is_bad else None

    with after_forward(BatchLoss, nan_at_times):
        result = train(seq2seq, numbers, tmp_path / "run", "training.on_nonfinite=skip")
    assert result.exit_code == 0
    assert result.stderr.count("the update is skipped (1 in a row, at most 10)") == 3
    points = points_of(tmp_path / "run")
    skipped = {point["step"]: point["train/skipped"] for point in points}
    assert skipped == {5: 0, 10: 1, 15: 0, 20: 1, 25: 0, 30: 0, 35: 0, 40: 5}
    assert [p["step"] for p in points if "train/grad_norm" not in p] == [20, 40]
    first, *_, last = (point["train/loss"] for point in points if "train/loss" in point)
    assert last < 0.7 * first and "train/loss" not in points[-1]
    assert all(a.equal(b) for a, b in zip(weights[1], weights[2], strict=True))
    assert not all(a.equal(b) for a, b in zip(weights[0], weights[1], strict=True))


def test_too_many_skipped_updates_stop_the_run_even_across_a_resume(numbers, seq2seq, tmp_path):
    settings = ("training.on_nonfinite=skip", "training.lr=1e30")
    config = load_config(numbers / "numbers.yaml", [*SHORT, *settings])
    loop.train(config, tmp_path / "run", hooks=stop_at(8))
    message = train(seq2seq, numbers, tmp_path / "run", *settings).error()
    assert "step 11: loss nan, gradient norm nan: the update is skipped (10 in a" in message
    assert "error: step 12: loss nan" in message


def with_a_long_line(numbers: Path, folder: Path, tokens: int) -> list[str]:
    """Settings of another validation text: its pair 4 has so many target tokens."""
    lines = {side: (numbers / f"valid.{side}").read_text().splitlines() for side in ("src", "tgt")}
    lines["tgt"][3] = " ".join(["one"] * tokens)
    for side, text in lines.items():
        (folder / f"valid.{side}").write_text("".join(f"{line}\n" for line in text))
    files = {side: str(folder / f"valid.{side}") for side in lines}
    return [f"data.valid={files}", "data.max_length=20"]


@pytest.mark.slow
def test_overlong_validation_line_is_left_out_of_the_loss_and_counted(numbers, seq2seq, tmp_path):
    scores = {}
    for tokens in (160, 161):  # 8 times data.max_length, and more
        folder, run = tmp_path / str(tokens), tmp_path / f"run-{tokens}"
        folder.mkdir()
        given = with_a_long_line(numbers, folder, tokens)
        few = ("training.max_steps=2", "training.warmup_steps=1")
        result = train(seq2seq, numbers, run, *given, *few).ok()
        found = json.loads(seq2seq("eval", run, "--json").stdout)
        assert found["num_lines"] == 60
        (point,) = (p for p in logged_points(run) if "valid/loss" in p)
        assert point["valid/loss"] == found["loss"]
        scores[tokens] = found
        is_left_out = "1 of 60 pairs, which have more than 160 tokens (8 times data.max_length)"
        assert (is_left_out in result.stderr) == (tokens == 161)
        assert ("1 too long for the loss" in result.stderr) == (tokens == 161)
        assert ("too_long             1  lines" in seq2seq("eval", run).stdout) == (tokens == 161)
    assert [scores[tokens]["num_too_long"] for tokens in (160, 161)] == [0, 1]
    assert scores[160]["num_tokens"] - scores[161]["num_tokens"] == 160 + 1
    found = seq2seq(
        "check", numbers / "numbers.yaml", "--json", "--set", given[0], "--set", given[1]
    )
    assert json.loads(found.stdout)["run"]["validation_text"]["too_long"] == 1


def test_validation_text_of_overlong_lines_only_is_rejected(numbers, seq2seq, tmp_path):
    text = {side: str(tmp_path / f"long.{side}") for side in ("src", "tgt")}
    for path in text.values():
        Path(path).write_text("1 " * 200 + "\n")
    result = train(seq2seq, numbers, tmp_path / "run", f"data.valid={text}", "data.max_length=20")
    assert "all have more than 160 tokens, 8 times data.max_length" in result.error()


LITTLE_MEMORY = """
import resource, sys, torch
from seq2seq_cli.cli import app
import seq2seq_cli.training.loop, sacrebleu
torch.set_num_threads(1)
(size,) = (int(l.split()[1]) << 10 for l in open("/proc/self/status") if l.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (size + (500 << 20), resource.RLIM_INFINITY))
app(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps such a limit")
def test_oom_in_validation_says_what_to_change_and_resumes(numbers, seq2seq, tmp_path):
    """A hundred hypotheses of each of 60 lines, in memory that holds those of some."""
    settings = ("decoding.beam_size=100", "decoding.max_len_factor=30", "training.max_steps=4")
    settings += ("training.warmup_steps=2", "decoding.tokens_per_batch=1000000")
    settings += ("decoding.engine=plain",)  # the search in C needs less
    given = [part for setting in settings for part in ("--set", setting)]
    command = ("train", numbers / "numbers.yaml", "--run-dir", tmp_path / "run", *given)
    script = (sys.executable, "-c", LITTLE_MEMORY, *map(str, command))
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "error: step 4: out of memory in the validation" in done.stderr
    state = json.loads((last_checkpoint(tmp_path / "run") / "state.json").read_text())
    assert (state["step"], state["awaits_validation"]) == (4, True)
    less = ("--set", "decoding.tokens_per_batch=1000")
    done = subprocess.run((*script, *less), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "step 4  valid  loss" in done.stderr


@pytest.mark.slow
def test_processes_agree_on_the_auto_batch_size_and_stop_together(numbers, seq2seq, tmp_path):
    settings = ("training.lr=1e30", "training.processes=2", "training.tokens_per_batch=auto")
    message = train(seq2seq, numbers, tmp_path / "run", *settings).error()
    assert message.count("error: step 2: loss nan, gradient norm nan") == 1
    assert "began in    encoder.0" in message
