"""The commands on real files, from end to end."""

import gzip
import html
import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from bare_runs import stop_at
from commands import Command, last_checkpoint, logged_points
from number_task import number_pairs, numbers_config, write_config, write_pairs
from safetensors.torch import load_file
from seams import before_update, signal_after
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.evaluation import evaluate_corpus
from seq2seq_cli.metrics.metrics import Scoring
from seq2seq_cli.training.logging.metrics_log import as_markdown
from seq2seq_cli.training.loop import train

SCALARS = {
    "train/loss",
    "train/lr",
    "train/grad_norm",
    "train/seconds",
    "train/tokens",
    "train/tokens_per_second",
    "train/padding",
    "train/epoch",
    "train/skipped",
    "valid/loss",
    "valid/perplexity",
    "valid/accuracy",
    "valid/bleu",
    "valid/chrf",
    "valid/exact_match",
    "valid/at_length_limit",
}


def read_events(run: Path) -> EventAccumulator:
    events = EventAccumulator(str(run), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def test_held_out_text_is_translated_correctly(trained, numbers, seq2seq):
    result = seq2seq("translate", trained, "--input", numbers / "test.src").ok()
    translations = result.stdout.splitlines()
    references = (numbers / "test.tgt").read_text().splitlines()
    right = sum(a == b for a, b in zip(translations, references, strict=True))
    assert right >= 95


def test_arguments_files_and_pipes_are_translated_alike(trained, numbers, seq2seq, tmp_path):
    lines = (numbers / "test.src").read_text().splitlines()[:7]
    (tmp_path / "in").write_text("\n".join(lines))
    (tmp_path / "in.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    seq2seq("translate", trained, "-i", tmp_path / "in", "-o", tmp_path / "out")
    expected = (tmp_path / "out").read_text()
    assert len(expected.splitlines()) == 7
    assert seq2seq("translate", trained, *lines).stdout == expected
    assert seq2seq("translate", trained, stdin="\n".join(lines) + "\n").stdout == expected
    assert seq2seq("translate", trained, "-i", "-", stdin="\n".join(lines)).stdout == expected
    assert seq2seq("translate", trained, "-i", tmp_path / "in.gz").stdout == expected


def hostile_lines(count: int) -> list[bytes]:
    generator = random.Random(5)
    kinds = [
        b"",
        b"   \t ",
        b"1 2 3",
        "👩‍👩‍👧 🏳️‍🌈".encode(),
        "مرحبا 1 2 بالعالم".encode(),
        "א\u202e1 2 3\u202c".encode(),
        b"1\t2\t3",
        b"1 \x00 2\x00",
        "1\u20282\u20293\x0b\x0c\x1c\x854".encode(),
        b"\xff\xfe\x80 1",
        b"1 2\r",
        "e\u0301" * 20 + " 5",
        " ".join(generator.choices("0123456789", k=500)).encode(),
        b"x" * 3_000,
        b"\\n <s> </s> <pad> &amp; | ||| \"'",
    ]
    kinds = [kind if isinstance(kind, bytes) else kind.encode() for kind in kinds]
    return [generator.choice(kinds[:12]) for _ in range(count - len(kinds))] + kinds


def test_translate_writes_one_line_per_input_line(trained, seq2seq, tmp_path):
    """There are more lines than one chunk holds."""
    lines = hostile_lines(1_100)
    (tmp_path / "in").write_bytes(b"\n".join(lines))
    result = seq2seq("translate", trained, "-i", tmp_path / "in", "-o", tmp_path / "out").ok()
    out = (tmp_path / "out").read_bytes()
    assert out.count(b"\n") == len(lines)
    for line, translation in zip(lines, out.split(b"\n"), strict=False):
        if not line.strip():
            assert translation == b""
        if line == b"1 2 3":
            assert translation == b"one two three"
    assert " longer than data.max_length; " in result.stderr


def test_translate_prompts_at_a_terminal_until_end_of_input(trained):
    """Only standard input is a terminal, so prompts go to standard error."""
    terminal, terminal_of_the_command = pty.openpty()
    os.write(terminal, b"1 2\n\n3\n\x04")  # Ctrl-D ends it
    command = [sys.executable, "-m", "seq2seq_cli", "translate", trained]
    done = subprocess.run(
        command, stdin=terminal_of_the_command, capture_output=True, text=True, timeout=60
    )
    os.close(terminal)
    os.close(terminal_of_the_command)
    help_line = "Type a sentence and press Enter; Ctrl-D ends.\n"
    assert (done.stdout, done.stderr) == ("one two\n\nthree\n", f"{help_line}> > > > \n")


def test_eval_reproduces_the_logged_validation_scores(trained, seq2seq):
    result = seq2seq("eval", trained, "--json")
    report = json.loads(result.stdout)
    points = [point for point in logged_points(trained) if "valid/loss" in point]
    best = min(points, key=lambda point: point["valid/loss"])
    for name in ("loss", "perplexity", "accuracy", "bleu", "chrf", "exact_match"):
        assert report[name] == best[f"valid/{name}"], name
    assert "tok:13a" in report["bleu_signature"]
    assert "nc:6" in report["chrf_signature"]


def test_eval_prints_a_table_with_or_without_decoding(trained, numbers, seq2seq):
    files = ("--src", numbers / "test.src", "--ref", numbers / "test.tgt")
    table = seq2seq("eval", trained, *files).stdout
    assert [line.split()[0] for line in table.splitlines()] == [
        "loss",
        "perplexity",
        "accuracy",
        "bleu",
        "chrf",
        "exact_match",
    ]
    assert "nats per target token" in table
    assert "version:" in table
    report = json.loads(seq2seq("eval", trained, *files, "--loss-only", "--json").stdout)
    counts = {"num_lines", "num_tokens", "num_too_long"}
    assert set(report) == {"loss", "perplexity", "accuracy"} | counts


def test_eval_scores_empty_source_lines(trained, seq2seq, tmp_path):
    (tmp_path / "x.jsonl").write_text('{"src": "", "tgt": "one"}\n{"src": "2", "tgt": "two"}\n')
    report = json.loads(seq2seq("eval", trained, "--pairs", tmp_path / "x.jsonl", "--json").stdout)
    assert report["exact_match"] == 50
    assert report["num_lines"] == 2
    assert report["num_tokens"] == 4


def test_eval_computes_logits_in_chunks(trained, numbers):
    """A large vocabulary times a large batch would fill the memory."""
    loaded = Translator.load(trained, "cpu", exact=True)
    rows: list[int] = []
    loaded.model.projection.register_forward_hook(lambda *found: rows.append(len(found[2])))
    text = ParallelText.of(src=numbers / "train.src", tgt=numbers / "train.tgt")
    scores = []
    for tokens_per_batch, most_rows in ((500, 512), (100_000, 1_024)):  # packed ones: 64 n rows
        config = loaded.config.updated(training={"tokens_per_batch": tokens_per_batch})
        translator = Translator(loaded.model, loaded.tokenizers, config)
        rows.clear()
        scores.append(evaluate_corpus(translator, text, decode=False, scoring=Scoring(())))
        assert max(rows) == most_rows
    assert scores[0].loss == pytest.approx(scores[1].loss)
    assert scores[0].accuracy == scores[1].accuracy
    assert scores[0].num_tokens <= sum(rows)


def test_translate_with_the_last_model(trained, seq2seq):
    assert seq2seq("translate", trained, "--model", "last", "1 2").stdout == "one two\n"


def test_tensorboard_and_metrics_file_have_the_same_points(trained):
    events = read_events(trained)
    losses = {"Loss/train": "train/loss", "Loss/valid": "valid/loss"}  # again, as the first group
    assert set(events.Tags()["scalars"]) == SCALARS | losses.keys() | {"best/loss"}
    written = logged_points(trained)
    for name in SCALARS | losses.keys():
        source = losses.get(name, name)
        points = [(point["step"], point[source]) for point in written if source in point]
        shown = [(event.step, event.value) for event in events.Scalars(name)]
        assert [step for step, _ in points] == [step for step, _ in shown]
        assert [value for _, value in shown] == pytest.approx([v for _, v in points], rel=1e-5)
    assert [p["step"] for p in written if "train/loss" in p] == list(range(20, 241, 20))
    assert [p["step"] for p in written if "valid/loss" in p] == [120, 240]
    assert 0 < max(p["train/padding"] for p in written if "train/padding" in p) < 0.1


def test_tensorboard_shows_samples_and_the_config(trained, numbers):
    events = read_events(trained)
    samples = events.Tensors("valid/samples/text_summary")[-1].tensor_proto.string_val[0].decode()
    src, tgt = ((numbers / f"valid.{side}").read_text().split("\n")[0] for side in ("src", "tgt"))
    assert f"| {src} | {tgt} | {tgt} |" in samples
    config = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "    d_model: 64" in config.replace("      d_model", "    d_model")


@pytest.mark.parametrize(
    "text",
    [
        "a | b",
        "2*3*4",
        "_e_ __x__",
        "&amp; <b>",
        "`a|b`",
        "[l](http://a.b)",
        "![x](http://a.b/p.png)",
    ],
)
@pytest.mark.filterwarnings("ignore:html5lib:DeprecationWarning")
def test_samples_are_shown_as_they_are(text):
    """TensorBoard's page reads samples as Markdown."""
    from tensorboard.plugin_util import markdown_to_safe_html

    page = markdown_to_safe_html(f"| source |\n|---|\n| {as_markdown(text)} |")
    (shown,) = re.findall("<td>(.*)</td>", page)
    assert html.unescape(shown) == text


def test_run_folder_has_everything_to_reproduce_the_run(trained, numbers):
    names = {path.name for path in trained.iterdir() if not path.name.startswith("events")}
    assert names == {
        "config.yaml",
        "src.model",
        "tgt.model",
        "model.safetensors",
        "checkpoints",
        "metrics.jsonl",
        "manifest.json",
        "statistics.json",
        "train.log",
        "lock",
    }
    saved = yaml.safe_load((trained / "config.yaml").read_text())
    assert saved["training"]["adam_beta2"] == 0.98
    manifest = json.loads((trained / "manifest.json").read_text())
    assert len(manifest["data"]["train"]) == 64
    assert manifest["packages"]["torch"]
    log = (trained / "train.log").read_text()
    assert "step 20/240" in log
    assert "finished after 240 updates" in log
    assert "3,000 pairs; dropped: none" in log


def test_run_folder_can_be_moved(trained, seq2seq, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(trained, moved)
    assert seq2seq("translate", moved, "7").stdout == "seven\n"


def test_training_a_finished_run_does_nothing(trained, numbers, seq2seq):
    before = logged_points(trained)
    result = seq2seq("train", numbers / "numbers.yaml", "--run-dir", trained).ok()
    assert "finished after 240 updates (training.max_steps reached)" in result.stderr
    assert logged_points(trained) == before


def test_resuming_with_another_config_is_rejected_naming_the_difference(trained, numbers, seq2seq):
    config = numbers / "numbers.yaml"
    message = seq2seq("train", config, "--run-dir", trained, "--set", "model.d_model=32").error()
    assert "model.d_model: 64 in the run, 32 now" in message


def train_short(seq2seq: Command, config: Path, run: Path, *more: str):
    short = ("max_steps=30", "warmup_steps=10", "log_every=10", "tokens_per_batch=256")
    settings = [part for option in short for part in ("--set", f"training.{option}")]
    for option in ("validation.every=12", "model.d_model=16", "model.heads=2", "model.d_ff=16"):
        settings += ["--set", option]
    return seq2seq("train", config, "--run-dir", run, *settings, *more)


def test_interrupted_run_resumes_to_the_same_result(numbers, seq2seq, tmp_path):
    """The run is stopped twice, in mid-epoch and between two logged points."""
    config = numbers / "numbers.yaml"
    dropout = ("--set", "model.dropout=0.1", "--set", "training.gradient_accumulation=2")
    assert train_short(seq2seq, config, tmp_path / "whole", *dropout).exit_code == 0
    for steps in (13, 22):
        with signal_after(steps):
            result = train_short(seq2seq, config, tmp_path / "parts", *dropout)
        assert result.exit_code == 130
        assert f"saved at step {steps}; the same command resumes" in result.stderr
    assert train_short(seq2seq, config, tmp_path / "parts", *dropout).exit_code == 0
    whole, parts = logged_points(tmp_path / "whole"), logged_points(tmp_path / "parts")
    for point in whole + parts:
        for name in ("train/tokens_per_second", "train/seconds"):
            point.pop(name, None)  # a matter of the machine, not of the run
    assert parts == whole
    for name in ("model.safetensors", "checkpoints/step-00000030/weights.safetensors"):
        ours, theirs = load_file(tmp_path / "parts" / name), load_file(tmp_path / "whole" / name)
        assert all(ours[key].equal(theirs[key]) for key in theirs)
    steps = [event.step for event in read_events(tmp_path / "parts").Scalars("train/loss")]
    assert steps == [10, 20, 30]


def test_second_ctrl_c_stops_immediately(numbers, seq2seq, tmp_path):
    def interrupt_twice(optimizer: torch.optim.Optimizer) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with before_update(interrupt_twice):
        result = train_short(seq2seq, numbers / "numbers.yaml", tmp_path / "run")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (130, "interrupted")


def test_early_stopping_after_patience_validations(numbers, seq2seq, tmp_path):
    settings = "validation={every: 5, unit: steps, metric: exact_match, patience: 2, decode: true}"
    options = ("--set", settings, "--set", "training.lr=1e-30")  # no weight changes
    run = tmp_path / "run"
    result = seq2seq("train", numbers / "numbers.yaml", "--run-dir", run, *options).ok()
    assert "no better score within validation.patience" in result.stderr
    assert [p["step"] for p in logged_points(run) if "valid/loss" in p] == [5, 10, 15]
    assert [p["step"] for p in logged_points(run) if "train/loss" in p][-1] == 15
    again = seq2seq("train", numbers / "numbers.yaml", "--run-dir", run, *options)
    assert "finished after 15 updates (no better score" in again.stderr
    killed = tmp_path / "killed"  # after the last points were logged, before a checkpoint
    given = [option for option in options if option != "--set"]
    train(load_config(numbers / "numbers.yaml", given), killed, hooks=stop_at(15))
    last = [p for p in logged_points(run) if p["step"] == 15]
    with (killed / "metrics.jsonl").open("a") as file:
        file.writelines(f"{json.dumps(point)}\n" for point in last)
    seq2seq("train", numbers / "numbers.yaml", "--run-dir", killed, *options).ok()
    names = [sorted(p) for p in logged_points(killed) if p["step"] == 15]
    assert names == [sorted(point) for point in last]


def test_validation_and_run_length_in_epochs(numbers, seq2seq, tmp_path):
    options = ("training.max_epochs=2", "validation.unit=epochs", "validation.every=1")
    settings = [argument for option in options for argument in ("--set", option)]
    run = tmp_path / "run"
    assert seq2seq("train", numbers / "numbers.yaml", "--run-dir", run, *settings).exit_code == 0
    validated = [p["step"] for p in logged_points(run) if "valid/loss" in p]
    assert len(validated) == 2
    assert validated[1] == 2 * validated[0]


def test_without_validation_text_the_last_model_is_saved(numbers, seq2seq, tmp_path):
    run = tmp_path / "run"
    result = train_short(
        seq2seq, numbers / "numbers.yaml", run, "--set", "data.valid=null", "--device", "cpu"
    )
    assert result.exit_code == 0
    last = load_file(last_checkpoint(run) / "weights.safetensors")
    best = load_file(run / "model.safetensors")
    assert all(best[name].equal(last[name]) for name in last)
    assert seq2seq("eval", run).exit_code == 2


def test_resuming_with_changed_text_is_rejected(seq2seq, tmp_path, numbers):
    text = write_pairs(tmp_path, "train", number_pairs(500, seed=1))
    options = ("--set", f"data.train={text}")
    config, run = numbers / "numbers.yaml", tmp_path / "run"
    assert train_short(seq2seq, config, run, *options).exit_code == 0
    write_pairs(tmp_path, "train", number_pairs(500, seed=9))
    message = train_short(seq2seq, config, run, *options, "--set", "training.max_steps=35").error()
    assert "the text of data.train changed since this run started" in message


def test_check_prints_a_summary_and_writes_nothing(numbers, seq2seq, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = seq2seq("check", numbers / "numbers.yaml", "--set", "data.max_length=4").ok()
    summary = result.stdout
    assert "over 4 tokens" in summary
    assert "source 14 word, target 14 word" in summary
    assert "also occur in the training text" in summary
    assert "1+1 layers, d_model 64" in summary
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_length_limit_is_learned_from_the_training_pairs(seq2seq, tmp_path):
    """Targets seven times as long as their sources are output whole; validation counts the rest."""
    config = numbers_config(tmp_path, max_steps=60, warmup_steps=10)
    pairs = [(src, " ".join([tgt] * 7)) for src, tgt in number_pairs(200, seed=1)]
    config["data"] = {"train": write_pairs(tmp_path, "long", pairs)}
    config["data"]["valid"] = write_pairs(tmp_path, "short", pairs[:20])
    config["model"]["positions"] = "rotary"
    config["validation"] = {"every": 30, "unit": "steps", "metric": "loss"}
    path, run = write_config(tmp_path, config), tmp_path / "run"
    assert "at most 7.7 × source tokens + 20" in seq2seq("check", path).stdout
    assert json.loads(seq2seq("check", path, "--json").stdout)["run"]["length_limit"] == {
        "max_len_factor": 7.7,
        "max_len_extra": 20,
    }
    assert seq2seq("train", path, "--run-dir", run).exit_code == 0
    translation = seq2seq("translate", run, "--set=decoding.min_len_extra=42", "1 2 3 4 5 6").stdout
    assert len(translation.split()) >= 42
    limit = ("--set=decoding.max_len_factor=2", "--allow-changed=decoding")
    more = ("--set=training.max_steps=90", *limit)
    result = seq2seq("train", path, "--run-dir", run, *more).ok()
    last = [point for point in logged_points(run) if "valid/loss" in point][-1]
    assert 0 < last["valid/at_length_limit"] <= 20
    assert f"  at_length_limit {last['valid/at_length_limit']}" in result.stderr
    assert "hit the length limit" in result.stderr


def test_vocab_writes_tokenizers_and_vocabulary_lists(numbers, seq2seq, tmp_path):
    result = seq2seq("vocab", numbers / "numbers.yaml", "--output", tmp_path / "v").ok()
    assert {path.name for path in (tmp_path / "v").iterdir()} == {
        "src.model",
        "src.vocab",
        "tgt.model",
        "tgt.vocab",
    }
    assert "▁three" in (tmp_path / "v" / "tgt.vocab").read_text().splitlines()
    assert "14 word entries" in result.stdout


def test_finished_run_can_be_extended(numbers, seq2seq, tmp_path):
    """The automatic warm-up, which depends on the number of updates, keeps its value."""
    config, run = numbers / "numbers.yaml", tmp_path / "run"
    auto = ("--set", "training.warmup_steps=auto")
    assert train_short(seq2seq, config, run, *auto).exit_code == 0
    longer = (*auto, "--set", "training.max_steps=40")
    assert train_short(seq2seq, config, run, *longer).exit_code == 0
    assert logged_points(run)[-1]["step"] == 40
    assert yaml.safe_load((run / "config.yaml").read_text())["training"]["warmup_steps"] == 3


def test_resuming_with_another_metric_is_rejected(trained, numbers, seq2seq):
    config = numbers / "numbers.yaml"
    result = seq2seq("train", config, "--run-dir", trained, "--set", "validation.metric=bleu")
    assert "validation.metric: loss in the run, bleu now" in result.error()


def test_run_stopped_before_any_validation_can_be_resumed(numbers, seq2seq, tmp_path):
    run = tmp_path / "run"
    with signal_after(3):
        assert train_short(seq2seq, numbers / "numbers.yaml", run).exit_code == 130
    message = seq2seq("translate", run, "1").error()
    assert "no best model, model.safetensors; --model last uses the last checkpoint" in message
    assert seq2seq("translate", run, "--model", "last", "1").exit_code == 0


def test_sigterm_saves_and_exits_with_143(numbers, seq2seq, tmp_path):
    with signal_after(5, signal.SIGTERM):
        result = train_short(seq2seq, numbers / "numbers.yaml", tmp_path / "run")
    assert result.exit_code == 143
    assert "saved at step 5" in result.stderr


@pytest.mark.slow
def test_run_that_crashed_before_its_first_checkpoint_restarts(numbers, seq2seq, tmp_path):
    class PowerCut(BaseException):
        pass

    def cut(optimizer: torch.optim.Optimizer) -> None:
        raise PowerCut

    config, whole, parts = numbers / "numbers.yaml", tmp_path / "whole", tmp_path / "parts"
    with before_update(cut), pytest.raises(PowerCut):
        train_short(seq2seq, config, parts)
    for run in (whole, parts):
        assert train_short(seq2seq, config, run).exit_code == 0
    ours, theirs = (load_file(run / "model.safetensors") for run in (parts, whole))
    assert all(ours[name].equal(theirs[name]) for name in theirs)


@pytest.mark.slow
def test_damaged_caches_are_rebuilt(numbers, seq2seq, tmp_path, monkeypatch):
    monkeypatch.setenv("SEQ2SEQ_CACHE", str(tmp_path))
    expected = _text_facts(seq2seq, numbers)
    for name, content in {"facts.json": b"", "src.ids": b"", "tgt.offsets": b"x" * 8}.items():
        for store in tmp_path.iterdir():
            (store / name).write_bytes(content)
        assert _text_facts(seq2seq, numbers) == expected


def _text_facts(seq2seq, numbers) -> tuple[dict, dict]:
    found = json.loads(seq2seq("check", numbers / "numbers.yaml", "--json").stdout)
    return found["run"], found["texts"]


def test_invalid_utf8_on_the_command_line_is_translated(trained, seq2seq):
    result = seq2seq("translate", trained, "1 \udcff 2").ok()
    assert len(result.stdout.splitlines()) == 1


def test_run_files_respect_the_umask(trained, tmp_path):
    (tmp_path / "plain").write_text("")
    mode = (tmp_path / "plain").stat().st_mode
    files = [path for path in trained.rglob("*") if path.is_file()]
    assert {path.stat().st_mode for path in files} == {mode}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_training_on_a_gpu(numbers, seq2seq, tmp_path):
    run = tmp_path / "run"
    trained = seq2seq("train", numbers / "numbers.yaml", "--run-dir", run, "--device", "cuda").ok()
    assert "cuda (" in trained.stderr
    for device in ("cuda", "cpu"):
        result = seq2seq("eval", run, "--json", "--device", device)
        assert json.loads(result.stdout)["exact_match"] >= 95
