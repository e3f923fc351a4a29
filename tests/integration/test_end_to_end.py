"""The product as a user uses it: commands on files."""

import gzip
import json
import random
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch
import yaml
from commands import Command, last_checkpoint
from number_task import number_pairs, write_pairs
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from seq2seq_cli import evaluation
from seq2seq_cli.cli import translate
from seq2seq_cli.decoding import stream as streaming
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.evaluation import evaluate_corpus

SCALARS = {
    "train/loss",
    "train/lr",
    "train/grad_norm",
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
}


def metrics_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def events_of(run: Path) -> EventAccumulator:
    events = EventAccumulator(str(run), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def test_a_held_out_text_is_translated_right(trained, numbers, seq2seq):
    result = seq2seq("translate", trained, "--input", numbers / "test.src")
    assert result.exit_code == 0
    translations = result.stdout.splitlines()
    references = (numbers / "test.tgt").read_text().splitlines()
    right = sum(a == b for a, b in zip(translations, references, strict=True))
    assert right >= 95


def test_sentences_files_and_pipes_give_the_same(trained, numbers, seq2seq, tmp_path):
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


def test_one_line_in_is_one_line_out_whatever_the_line(trained, seq2seq, tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "_LINES_AT_ONCE", 70)
    lines = hostile_lines(300)
    (tmp_path / "in").write_bytes(b"\n".join(lines))
    result = seq2seq("translate", trained, "-i", tmp_path / "in", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    out = (tmp_path / "out").read_bytes()
    assert out.count(b"\n") == len(lines)
    for line, translation in zip(lines, out.split(b"\n"), strict=False):
        if not line.strip():
            assert translation == b""
        if line == b"1 2 3":
            assert translation == b"one two three"
    assert "sentences longer than data.max_length: " in result.stderr


def test_at_a_terminal_it_asks_until_the_input_ends(trained, seq2seq, monkeypatch):
    monkeypatch.setattr(translate, "is_terminal", lambda stream: stream is sys.stdin)
    result = seq2seq("translate", trained, stdin="1 2\n\n3\n")
    assert result.stdout == "one two\n\nthree\n"
    assert result.stderr == "> > > > \n"
    assert "readline" in sys.modules  # line editing and history


def test_eval_scores_the_validation_text_as_the_best_step_logged_it(trained, seq2seq):
    result = seq2seq("eval", trained, "--json")
    report = json.loads(result.stdout)
    points = [point for point in metrics_of(trained) if "valid/loss" in point]
    best = min(points, key=lambda point: point["valid/loss"])
    for name in ("loss", "perplexity", "accuracy", "bleu", "chrf", "exact_match"):
        assert report[name] == best[f"valid/{name}"], name
    assert "tok:13a" in report["bleu_signature"]
    assert "nc:6" in report["chrf_signature"]


def test_eval_prints_a_table_and_can_leave_out_decoding(trained, numbers, seq2seq):
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


def test_eval_counts_every_line_of_a_file_of_pairs(trained, seq2seq, tmp_path):
    (tmp_path / "x.jsonl").write_text('{"src": "", "tgt": "one"}\n{"src": "2", "tgt": "two"}\n')
    report = json.loads(seq2seq("eval", trained, "--pairs", tmp_path / "x.jsonl", "--json").stdout)
    assert report["exact_match"] == 50
    assert report["num_lines"] == 2
    assert report["num_tokens"] == 4


def test_scoring_holds_few_logits_at_once(trained, monkeypatch):
    translator = Translator.load(trained, "cpu", exact=True)
    rows: list[int] = []
    translator.model.projection.register_forward_hook(lambda *found: rows.append(len(found[2])))
    expected = evaluate_corpus(translator, None, decode=False)
    assert max(rows) <= evaluation._ROWS_AT_ONCE
    rows.clear()
    monkeypatch.setattr(evaluation, "_ROWS_AT_ONCE", 7)
    found = evaluate_corpus(translator, None, decode=False)
    assert max(rows) == 7
    assert found.loss == pytest.approx(expected.loss)
    assert found.accuracy == expected.accuracy


def test_the_last_model_can_be_used_instead_of_the_best(trained, seq2seq):
    assert seq2seq("translate", trained, "--model", "last", "1 2").stdout == "one two\n"


def test_tensorboard_and_metrics_hold_the_same_points(trained):
    events = events_of(trained)
    of_best = {name.replace("valid/", "best/") for name in SCALARS if name.startswith("valid/")}
    assert set(events.Tags()["scalars"]) == SCALARS | of_best
    written = metrics_of(trained)
    for name in SCALARS:
        points = [(point["step"], point[name]) for point in written if name in point]
        shown = [(event.step, event.value) for event in events.Scalars(name)]
        assert [step for step, _ in points] == [step for step, _ in shown]
        assert [value for _, value in shown] == pytest.approx([v for _, v in points], rel=1e-5)
    assert [p["step"] for p in written if "train/loss" in p] == list(range(20, 361, 20))
    assert [p["step"] for p in written if "valid/loss" in p] == [120, 240, 360]


def test_tensorboard_shows_samples_beside_their_references_and_the_config(trained, numbers):
    events = events_of(trained)
    samples = events.Tensors("valid/samples/text_summary")[-1].tensor_proto.string_val[0].decode()
    src, tgt = ((numbers / f"valid.{side}").read_text().split("\n")[0] for side in ("src", "tgt"))
    assert f"| {src} | {tgt} | {tgt} |" in samples
    config = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "    d_model: 64" in config.replace("      d_model", "    d_model")


def test_the_run_folder_holds_what_repeating_it_needs(trained, numbers):
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
    }
    saved = yaml.safe_load((trained / "config.yaml").read_text())
    assert saved["training"]["adam_beta2"] == 0.98
    manifest = json.loads((trained / "manifest.json").read_text())
    assert len(manifest["data"]["train"]) == 64
    assert manifest["packages"]["torch"]
    log = (trained / "train.log").read_text()
    assert "step 20/360" in log
    assert "finished after 360 updates" in log
    assert "3,000 pairs; dropped: none" in log


def test_a_run_folder_moved_elsewhere_still_works(trained, seq2seq, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(trained, moved)
    assert seq2seq("translate", moved, "7").stdout == "seven\n"


def test_training_again_says_that_it_is_finished(trained, numbers, seq2seq):
    before = metrics_of(trained)
    result = seq2seq("train", numbers / "numbers.yaml", "--run-dir", trained)
    assert result.exit_code == 0
    assert "finished after 360 updates (training.max_steps reached)" in result.stderr
    assert metrics_of(trained) == before


def test_another_config_for_the_same_folder_is_refused_with_what_differs(trained, numbers, seq2seq):
    config = numbers / "numbers.yaml"
    result = seq2seq("train", config, "--run-dir", trained, "--set", "model.d_model=32")
    assert result.exit_code == 2
    assert "model.d_model: 64 in the run, 32 now" in result.stderr


def train_short(seq2seq: Command, config: Path, run: Path, *more: str):
    short = ("--set", "training.max_steps=60", "--set", "validation.every=25")
    return seq2seq("train", config, "--run-dir", run, *short, *more)


def test_an_interrupted_run_goes_on_to_the_same_end(numbers, seq2seq, tmp_path, monkeypatch):
    """Stopped twice, in the middle of an epoch and of a logging window."""
    config = numbers / "numbers.yaml"
    dropout = ("--set", "model.dropout=0.1", "--set", "training.gradient_accumulation=2")
    assert train_short(seq2seq, config, tmp_path / "whole", *dropout).exit_code == 0
    for stop_at in (27, 41):
        with monkeypatch.context() as patch:
            _interrupt_at_step(patch, stop_at)
            result = train_short(seq2seq, config, tmp_path / "parts", *dropout)
        assert result.exit_code == 130
        assert f"saved at step {stop_at}; the same command continues" in result.stderr
    assert train_short(seq2seq, config, tmp_path / "parts", *dropout).exit_code == 0
    whole, parts = metrics_of(tmp_path / "whole"), metrics_of(tmp_path / "parts")
    for point in whole + parts:
        point.pop("train/tokens_per_second", None)  # a matter of the machine, not of the run
    assert parts == whole
    for name in ("model.safetensors", "checkpoints/step-00000060/weights.safetensors"):
        ours, theirs = load_file(tmp_path / "parts" / name), load_file(tmp_path / "whole" / name)
        assert all(ours[key].equal(theirs[key]) for key in theirs)
    steps = [event.step for event in events_of(tmp_path / "parts").Scalars("train/loss")]
    assert steps == [20, 40, 60]


def _interrupt_at_step(
    patch: pytest.MonkeyPatch, stop_at: int, number: signal.Signals = signal.SIGINT
) -> None:
    """Send a signal, SIGINT as Ctrl-C does, right after the given update."""
    from seq2seq_cli.training import loop

    real = loop.advance

    def advance_and_interrupt(state, *arguments):
        real(state, *arguments)
        if state.step == stop_at:
            signal.raise_signal(number)

    patch.setattr(loop, "advance", advance_and_interrupt)


def test_a_second_ctrl_c_ends_at_once(numbers, seq2seq, tmp_path, monkeypatch):
    from seq2seq_cli.training import loop

    def interrupt_twice(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(loop, "train_step", interrupt_twice)
    result = train_short(seq2seq, numbers / "numbers.yaml", tmp_path / "run")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (130, "interrupted")


def test_patience_ends_a_run_that_does_not_get_better(numbers, seq2seq, tmp_path):
    settings = "validation={every: 5, unit: steps, metric: exact_match, patience: 2, decode: true}"
    options = ("--set", settings, "--set", "training.lr=1e-30")  # no weight changes
    run = tmp_path / "run"
    result = seq2seq("train", numbers / "numbers.yaml", "--run-dir", run, *options)
    assert result.exit_code == 0
    assert "no better score within validation.patience" in result.stderr
    assert [p["step"] for p in metrics_of(run) if "valid/loss" in p] == [5, 10, 15]
    again = seq2seq("train", numbers / "numbers.yaml", "--run-dir", run, *options)
    assert "finished after 15 updates (no better score" in again.stderr


def test_validation_by_epochs_and_an_end_by_epochs(numbers, seq2seq, tmp_path):
    options = ("training.max_epochs=2", "validation.unit=epochs", "validation.every=1")
    settings = [argument for option in options for argument in ("--set", option)]
    run = tmp_path / "run"
    assert seq2seq("train", numbers / "numbers.yaml", "--run-dir", run, *settings).exit_code == 0
    validated = [p["step"] for p in metrics_of(run) if "valid/loss" in p]
    assert len(validated) == 2
    assert validated[1] == 2 * validated[0]


def test_without_validation_text_the_last_model_is_the_one(numbers, seq2seq, tmp_path):
    run = tmp_path / "run"
    result = train_short(
        seq2seq, numbers / "numbers.yaml", run, "--set", "data.valid=null", "--device", "cpu"
    )
    assert result.exit_code == 0
    last = load_file(last_checkpoint(run) / "weights.safetensors")
    best = load_file(run / "model.safetensors")
    assert all(best[name].equal(last[name]) for name in last)
    assert seq2seq("eval", run).exit_code == 2


def test_changed_text_is_not_trained_on_further(seq2seq, tmp_path, numbers):
    text = write_pairs(tmp_path, "train", number_pairs(500, seed=1))
    options = ("--set", f"data.train={text}")
    config, run = numbers / "numbers.yaml", tmp_path / "run"
    assert train_short(seq2seq, config, run, *options).exit_code == 0
    write_pairs(tmp_path, "train", number_pairs(500, seed=9))
    result = train_short(seq2seq, config, run, *options, "--set", "training.max_steps=70")
    assert result.exit_code == 2
    assert "the text of data.train changed since this run began" in result.stderr


def test_check_summarises_and_leaves_no_trace(numbers, seq2seq, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = seq2seq("check", numbers / "numbers.yaml", "--set", "data.max_length=4")
    assert result.exit_code == 0
    summary = result.stdout
    assert "over 4 tokens" in summary
    assert "source 14, target 14 word" in summary
    assert "stand in the training text too" in summary
    assert "1+1 layers, d_model 64" in summary
    assert list(tmp_path.iterdir()) == []


def test_vocab_writes_the_tokenizers_and_a_readable_list(numbers, seq2seq, tmp_path):
    result = seq2seq("vocab", numbers / "numbers.yaml", "--output", tmp_path / "v")
    assert result.exit_code == 0
    assert {path.name for path in (tmp_path / "v").iterdir()} == {
        "src.model",
        "src.vocab",
        "tgt.model",
        "tgt.vocab",
    }
    assert "▁three" in (tmp_path / "v" / "tgt.vocab").read_text().splitlines()
    assert "14 word entries" in result.stdout


def test_a_finished_run_can_be_trained_for_longer(numbers, seq2seq, tmp_path):
    """Also when the warm-up was left out, whose default depends on the number of updates."""
    config = yaml.safe_load((numbers / "numbers.yaml").read_text())
    del config["training"]["warmup_steps"]
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(config))
    run = tmp_path / "run"
    assert train_short(seq2seq, tmp_path / "x.yaml", run).exit_code == 0
    longer = ("--set", "training.max_steps=80", "--set", "validation.every=25")
    assert seq2seq("train", tmp_path / "x.yaml", "--run-dir", run, *longer).exit_code == 0
    assert metrics_of(run)[-1]["step"] == 80
    assert yaml.safe_load((run / "config.yaml").read_text())["training"]["warmup_steps"] == 6


def test_what_is_the_best_may_not_change_half_way(trained, numbers, seq2seq):
    config = numbers / "numbers.yaml"
    result = seq2seq("train", config, "--run-dir", trained, "--set", "validation.metric=bleu")
    assert result.exit_code == 2
    assert "validation.metric: loss in the run, bleu now" in result.stderr


def test_a_run_stopped_before_any_validation_can_be_used_and_continued(
    numbers, seq2seq, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        _interrupt_at_step(patch, 3)
        assert train_short(seq2seq, numbers / "numbers.yaml", run).exit_code == 130
    result = seq2seq("translate", run, "1")
    assert result.exit_code == 2
    assert "no model.safetensors yet; --model last uses the last checkpoint" in result.stderr
    assert seq2seq("translate", run, "--model", "last", "1").exit_code == 0


def test_sigterm_saves_and_exits_with_its_own_status(numbers, seq2seq, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        _interrupt_at_step(patch, 5, signal.SIGTERM)
        result = train_short(seq2seq, numbers / "numbers.yaml", tmp_path / "run")
    assert result.exit_code == 143
    assert "saved at step 5" in result.stderr


def test_a_crash_before_the_first_save_is_started_over(numbers, seq2seq, tmp_path, monkeypatch):
    from seq2seq_cli.training import loop

    class PowerCut(BaseException):
        pass

    def cut(*arguments):
        raise PowerCut

    config, whole, parts = numbers / "numbers.yaml", tmp_path / "whole", tmp_path / "parts"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "train_step", cut)
        with pytest.raises(PowerCut):
            train_short(seq2seq, config, parts)
    for run in (whole, parts):
        assert train_short(seq2seq, config, run).exit_code == 0
    ours, theirs = (load_file(run / "model.safetensors") for run in (parts, whole))
    assert all(ours[name].equal(theirs[name]) for name in theirs)


def test_damaged_caches_are_made_anew(numbers, seq2seq, tmp_path, monkeypatch):
    monkeypatch.setenv("SEQ2SEQ_CACHE", str(tmp_path))
    expected = _text_facts(seq2seq, numbers)
    for name, content in {"facts.json": b"", "src.ids": b"", "tgt.offsets": b"x" * 8}.items():
        for store in tmp_path.iterdir():
            (store / name).write_bytes(content)
        assert _text_facts(seq2seq, numbers) == expected


def _text_facts(seq2seq, numbers) -> tuple[dict, dict]:
    found = json.loads(seq2seq("check", numbers / "numbers.yaml", "--json").stdout)
    return found["run"], found["texts"]


def test_bytes_that_are_not_utf8_in_a_sentence_are_no_error(trained, seq2seq):
    result = seq2seq("translate", trained, "1 \udcff 2")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 1


def test_files_of_a_run_are_readable_as_any_other_file(trained, tmp_path):
    (tmp_path / "plain").write_text("")
    mode = (tmp_path / "plain").stat().st_mode
    files = [path for path in trained.rglob("*") if path.is_file()]
    assert {path.stat().st_mode for path in files} == {mode}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_learns_the_task_too(numbers, seq2seq, tmp_path):
    run = tmp_path / "run"
    trained = seq2seq("train", numbers / "numbers.yaml", "--run-dir", run, "--device", "cuda")
    assert trained.exit_code == 0
    assert "cuda (" in trained.stderr
    for device in ("cuda", "cpu"):
        result = seq2seq("eval", run, "--json", "--device", device)
        assert json.loads(result.stdout)["exact_match"] >= 95


@pytest.mark.parametrize("processes", [1, 2])
def test_bench_train_measures_every_part_of_an_update(numbers, seq2seq, processes):
    options = ("--updates", 3, "--warmup", 1, "--set", f"training.processes={processes}", "--json")
    result = seq2seq("bench", "train", numbers / "numbers.yaml", *options)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    parts = sum(found[f"ms_{part}"] for part in ("data", "forward", "backward", "optimizer"))
    assert parts == pytest.approx(found["ms_per_update"])
    rate = 1000 * found["tokens_per_update"] / found["ms_per_update"]
    assert found["tokens_per_second"] == pytest.approx(rate)
    assert found["processes"] == processes
    assert min(value for value in found.values() if not isinstance(value, str)) >= 0
    assert found["ceiling_fp32_gflops"] > 0
    assert 0 < found["share_of_ceiling"] < 1


def test_bench_train_prints_a_table_and_leaves_nothing(numbers, seq2seq):
    before = sorted(numbers.iterdir())
    result = seq2seq("bench", "train", numbers / "numbers.yaml", "--updates", 1, "--warmup", 0)
    assert [line.split("  ")[0] for line in result.stdout.splitlines()][:3] == [
        "target tokens/s",
        "tokens per update",
        "time per update",
    ]
    assert sorted(numbers.iterdir()) == before
