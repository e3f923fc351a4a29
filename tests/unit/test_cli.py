"""The command-line interface."""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from commands import Command, all_commands

from seq2seq_cli.native.library import kernels_name

VERBS = {
    "train": {"config", "run_dir", "source", "ensemble", "allow_changed", "overrides", "device"},
    "average": {"run_dir", "last", "best", "steps", "output", "force", "device"},
    "verify-resume": {"config", "steps", "interruptions", "overrides", "device"},
    "translate": {
        "run_dir",
        "sentences",
        "input_file",
        "output_file",
        "force",
        "input_format",
        "output_format",
        "log_probs",
        "align",
        "split_sentences",
        "beam_size",
        "n_best",
        "sampling",
        "ensemble",
        "precision",
        "prefix",
        "tag",
        "require",
        "ban",
        "replace_unk",
        "processes",
        "shard",
        "overrides",
        "device",
        "model",
    },
    "translate-ray": {
        "run_dir",
        "input_files",
        "output_folder",
        "concurrency",
        "num_cpus",
        "num_gpus",
        "input_format",
        "output_format",
        "log_probs",
        "align",
        "split_sentences",
        "beam_size",
        "n_best",
        "sampling",
        "ensemble",
        "precision",
        "prefix",
        "tag",
        "require",
        "ban",
        "replace_unk",
        "overrides",
        "device",
        "model",
    },
    "join": {"parts", "output_file", "force"},
    "attend": {
        "run_dir",
        "sentences",
        "target",
        "compare",
        "output",
        "force",
        "sample",
        "beam_size",
        "n_best",
        "kind",
        "layer",
        "head",
        "view",
        "by_words",
        "overrides",
        "device",
        "model",
    },
    "eval": {
        "run_dir",
        "src",
        "ref",
        "pairs",
        "fields",
        "features",
        "tag",
        "test_set",
        "langs",
        "metrics",
        "bootstrap",
        "breakdown",
        "worst",
        "errors",
        "loss_only",
        "as_json",
        "overrides",
        "device",
        "model",
    },
    "score": {
        "run_dir",
        "src",
        "ref",
        "pairs",
        "fields",
        "features",
        "tag",
        "nbest",
        "as_json",
        "overrides",
        "device",
        "model",
    },
    "inspect": {
        "run_dir",
        "tensors",
        "split",
        "neighbors",
        "side",
        "trace",
        "target",
        "tag",
        "as_json",
        "model",
    },
    "compare": {
        "run_dirs",
        "hypotheses",
        "src",
        "ref",
        "pairs",
        "fields",
        "features",
        "tag",
        "test_set",
        "langs",
        "metrics",
        "test",
        "trials",
        "tokenize",
        "lowercase",
        "as_json",
        "overrides",
        "device",
        "model",
    },
    "diff": {"run_dir", "other_dir", "as_json"},
    "export": {"run_dir", "output", "file_format", "model", "langs", "tag", "license_name"},
    "distill": {
        *("teachers", "src", "output", "shape", "pairs", "pairs_weight", "valid", "fields"),
        *("config", "beam_size", "sampling", "precision", "tag", "input_format"),
        *("max_length_ratio", "drop_worst", "shards", "processes", "as_json", "overrides"),
        *("device", "model"),
    },
    "diversify": {
        *("config", "output", "beam_size", "processes", "as_json", "overrides", "device"),
    },
    "tune": {"config", "hours", "output", "search", "as_json", "overrides", "device"},
    "import": {"source", "run_dir", "langs", "verify", "text"},
    "trim": {"run_dir", "text", "output", "fields", "model"},
    "push": {"run_dir", "repo", "is_public", "revision", "license_name"},
    "pull": {"repo", "run_dir", "revision"},
    "vocab": {"config", "output", "overrides"},
    "preprocess": {"config", "shard", "overrides"},
    "check": {
        "config",
        "source",
        "src",
        "ref",
        "pairs",
        "fields",
        "features",
        "as_json",
        "overrides",
        "device",
    },
    "bench translate": {
        "run_dir",
        "precisions",
        "input_file",
        "num_lines",
        "as_json",
        "overrides",
        "device",
    },
    "serve": {
        *("runs", "langs", "host", "port", "token_file", "no_auth", "allow_host", "allow_origin"),
        *("char_limit", "batch_limit", "alternatives_limit", "time_limit", "queue_limit"),
        *("cache_size", "processes", "overrides", "device", "model", "log_text"),
    },
    "find-lr": {
        *("config", "updates", "start_lr", "end_lr", "output", "as_json"),
        *("overrides", "device"),
    },
    "init": {
        *(
            "files",
            "features",
            "fields",
            "output",
            "valid",
            "valid_size",
            "test_size",
            "hours",
            "preset",
            "yes",
            "example",
        ),
    },
    "clean": {
        *("files", "output", "rejected", "dry_run", "fields", "features", "against", "as_json"),
        *("langs", "identify_languages", "without", "max_words", "max_word_length", "min_letters"),
        *("min_script", "max_ratio", "max_similarity", "max_repeats", "min_numbers", "examples"),
        *("processes", "force"),
    },
    "plot": {"run_dirs", "metric", "x", "output"},
    "bench train": {"config", "updates", "warmup", "as_json", "overrides", "device"},
}


def commands() -> dict[str, Any]:
    """Every command by name, including those of groups."""
    found: dict[str, Any] = {}
    for name, command in all_commands().items():
        members = getattr(command, "commands", None)
        found |= {f"{name} {n}": c for n, c in members.items()} if members else {name: command}
    return found


def test_commands_and_options_are_stable():
    found = {
        name: {parameter.name for parameter in command.params} - {"help"}
        for name, command in commands().items()
    }
    assert found == VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_complete_and_has_examples(verb: str, seq2seq: Command):
    result = seq2seq(*verb.split(), "--help").ok()
    assert "Examples" in result.stdout
    assert f"seq2seq {verb} " in result.stdout
    command = commands()[verb]
    assert command.help
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{parameter.name} is not explained"


def test_version_and_command_list(seq2seq: Command):
    version = seq2seq("--version").stdout
    assert version.startswith("seq2seq 0.")
    assert f"(kernels: {kernels_name() or 'not compiled'})" in version
    overview = seq2seq("--help").stdout
    assert all(verb.split()[0] in overview for verb in VERBS)


def test_shell_completion(seq2seq: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("_SEQ2SEQ_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "seq2seq tr")
    monkeypatch.setenv("COMP_CWORD", "1")
    from typer.testing import CliRunner

    from seq2seq_cli.cli import app

    completed = CliRunner().invoke(app, [], prog_name="seq2seq")
    assert completed.stdout.split() == ["train", "translate", "translate-ray", "trim"]


def test_error_that_finds_no_room_on_the_disk_keeps_its_exit_status():
    """As with `train > log 2>&1`."""
    command = [sys.executable, "-m", "seq2seq_cli", "train", "missing.yaml"]
    with Path("/dev/full").open("w") as full:
        assert subprocess.run(command, stdout=full, stderr=full).returncode == 2


def test_help_on_a_full_disk_is_an_error_without_a_traceback():
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "seq2seq_cli", "--help"], stdout=full, stderr=subprocess.PIPE
        )
    assert (ended.returncode, ended.stderr.startswith(b"error: standard output: No ")) == (2, True)


@pytest.mark.parametrize("arguments", [["--help"], ["translate", "--help"], ["--version"]])
def test_output_without_a_reader_ends_as_by_sigpipe(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "seq2seq_cli", *arguments]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


TERMINATED = """
import os, signal, sys
def end(event, arguments):
    if event == "open" and name in str(arguments[0]):
        os.kill(os.getpid(), signal.SIGTERM)
name = sys.argv.pop(1)
sys.addaudithook(end)
from seq2seq_cli.cli import main
main()
"""


@pytest.mark.parametrize("when", ["mine.yaml", "/check."])
def test_sigterm_ends_any_command_as_ctrl_c_does(tmp_path, when):
    (config := tmp_path / "mine.yaml").touch()
    command = [sys.executable, "-c", TERMINATED, when, "check", config]
    ended = subprocess.run(command, capture_output=True)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGTERM, b"terminated\n")


def test_commands_of_extras_have_a_panel_of_their_own(seq2seq: Command):
    core, _, extras = seq2seq("--help").stdout.partition("Commands of extras")
    assert all(f"│ {name} " in core for name in ("train", "translate", "compare"))
    assert all(f"│ {name} " in extras for name in ("export", "plot", "serve", "bench"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "mine.yaml", "--run-dir", "s3://bucket/run"),
        ("train", "s3://bucket/run"),
        ("translate", "runs/mine", "--output", "s3://bucket/run"),
    ],
)
def test_run_folders_and_outputs_cannot_be_urls(arguments, seq2seq, tmp_path, monkeypatch):
    """Of which a folder `s3:` would be made here."""
    monkeypatch.chdir(tmp_path)
    message = seq2seq(*arguments).error()
    assert "s3:/bucket/run is a URL, which this option does not take: use a path" in message
    assert not list(tmp_path.iterdir())


def test_ctrl_c_while_a_command_is_ending_prints_no_traceback():
    program = (
        "import atexit, os, signal\n"
        "from seq2seq_cli.cli.app import main\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, "--version"], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_ctrl_c_during_the_imports_prints_no_traceback():
    settings = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    program = (
        "import pkgutil, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(name, *_):\n"
        "        if name == 'typer':\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder)\n"
        f"pkgutil.resolve_name({settings['project']['scripts']['seq2seq']!r})()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")
