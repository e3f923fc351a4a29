"""Input and output of translate: files, pipes, and unreadable lines."""

import json
import multiprocessing
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from seq2seq_cli import Translator
from seq2seq_cli.decoding.lines.stream import Job, automatic_processes, translate_chunks
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.errors import UserError

TRANSLATE = [sys.executable, "-m", "seq2seq_cli", "translate"]


def run_in_shell(run: Path, folder: Path, redirection: str) -> subprocess.CompletedProcess[str]:
    """Run translate in a shell with redirections, in a folder with the file `lines`."""
    (folder / "lines").write_text("1 2\n3\n")
    (folder / "link").unlink(missing_ok=True)
    os.link(folder / "lines", folder / "link")
    command = f'"$@" {redirection}'
    return subprocess.run(
        ["sh", "-c", command, "sh", *TRANSLATE, str(run)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,  # who reads what it writes never ends
    )


@pytest.mark.parametrize(
    "redirection",
    [
        "-o lines < lines",
        "-o link < lines",
        "-o lines -i link",
        "-o lines -i /dev/stdin < lines",
        "-i - -o lines < lines",
        "< lines >> lines",
        "-i lines >> link",
        "-i /dev/stdin -o /dev/stdout < lines >> lines",
    ],
)
def test_translate_rejects_its_input_file_as_output(trained, tmp_path, redirection):
    done = run_in_shell(trained, tmp_path, redirection)
    assert done.returncode == 2, done.stderr
    assert "is the input file" in done.stderr
    assert (tmp_path / "lines").read_text() == "1 2\n3\n"


@pytest.mark.slow
def test_translate_accepts_other_files_pipes_and_devices(trained, tmp_path):
    done = run_in_shell(trained, tmp_path, "< lines >> other; cat other")
    assert done.stdout == "one two\nthree\n", done.stderr
    assert run_in_shell(trained, tmp_path, "< /dev/null > /dev/null").returncode == 0


@pytest.mark.parametrize(
    ("redirection", "status", "printed", "message"),
    [
        ("<&- 2>&-", 0, "", ""),
        ("1 2>&-", 0, "one\n", ""),
        ("1 >&-", 2, "", "error: standard output: Bad file descriptor"),
    ],
)
def test_closed_standard_streams(trained, tmp_path, redirection, status, printed, message):
    done = run_in_shell(trained, tmp_path, redirection)
    assert (done.returncode, done.stdout) == (status, printed), done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_translate_answers_a_steady_pipe_before_it_ends(trained):
    """A pipe that never pauses must not be buffered for ever."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen([*TRANSLATE, str(trained)], **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"1\n")  # the model is loaded before the others come
        assert process.stdout.readline() == b"one\n"
        num_written = 0
        is_answered = False
        while not is_answered and num_written < 900:  # a chunk has at most 1,000 lines
            process.stdin.write(b"2\n")
            num_written += 1
            is_answered = bool(select.select([process.stdout], [], [], 0.005)[0])
        assert is_answered
        process.stdin.close()
        assert process.stdout.read() == b"two\n" * num_written
        assert process.wait(60) == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_lines_before_an_unreadable_line_are_translated(trained, seq2seq, tmp_path, processes):
    (tmp_path / "in.jsonl").write_text('{"src": "1"}\n{"src": "2"}\n{"text": "3"}\n{"src": "4"}\n')
    options = ("--input-format", "jsonl", "--processes", processes)
    broken = seq2seq("translate", trained, "-i", tmp_path / "in.jsonl", *options)
    assert (broken.exit_code, broken.stdout) == (2, "one\ntwo\n")
    assert "line 3: not of the form" in broken.stderr
    (tmp_path / "in.txt").write_text("1\n2\n" + "x" * (1 << 22) + "x\n4\n")
    broken = seq2seq("translate", trained, "-i", tmp_path / "in.txt", "--processes", processes)
    assert (broken.exit_code, broken.stdout) == (2, "one\ntwo\n")
    assert "line 3: longer than" in broken.stderr


def test_no_process_outlives_the_translation(trained, seq2seq, tmp_path):
    """Exit would close the queue that tells them to end, and wait for them."""
    (tmp_path / "in.txt").write_text("1\n2\n")
    for _ in range(2):
        done = seq2seq("translate", trained, "-i", tmp_path / "in.txt", "--processes", 2)
        assert done.stdout == "one\ntwo\n"
        assert multiprocessing.active_children() == []


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_output_stops_before_a_line_that_cannot_be_translated(
    trained, seq2seq, tmp_path, processes
):
    """All lines before it are printed, without a gap."""
    lines = ['{"src": "1"}\n'] * 14_000
    lines[2_500] = '{"src": "1", "required": ["two"]}\n'
    (tmp_path / "in.jsonl").write_text("".join(lines))
    options = ("--input-format", "jsonl", "--processes", processes)
    refused = seq2seq("translate", trained, "-i", tmp_path / "in.jsonl", *options)
    assert "need a beam search" in refused.error()
    assert refused.stdout == "one\n" * 2_000


def test_blank_line_of_json_lines_is_an_empty_line(trained, seq2seq):
    stdin = '{"src": "1"}\n\n \t\n{"src": "2"}\n\n'
    lines = seq2seq("translate", trained, "--input-format", "jsonl", stdin=stdin).stdout
    assert lines == "one\n\n\ntwo\n\n"
    options = ("--input-format", "jsonl", "--format", "jsonl")
    found = seq2seq("translate", trained, *options, stdin=stdin).stdout.splitlines()
    assert [json.loads(line)["translation"] for line in found] == ["one", "", "", "two", ""]


@pytest.mark.parametrize(("output_format", "is_kept"), [("tsv", False), ("jsonl", True)])
def test_only_json_lines_keep_attention(trained, output_format, is_kept):
    kept = []

    class Recording(Translator):
        def search(self, *args, **options):
            found = super().search(*args, **options)
            kept.extend(one.attention_MN is not None for (one,) in found)
            return found

    job = Job((trained,), output_format=output_format, align=True)
    chunk = (0, [TranslationInput("1 2"), TranslationInput("3")])
    assert len(list(translate_chunks(job, Recording.load(trained), [chunk], print))) == 2
    assert kept == [is_kept] * 2


def test_auto_processes_are_limited_by_memory(trained):
    """In a small container on a large machine, a process per core would run out of memory."""
    one = Job((trained,)).bytes_needed()
    weights = (trained / "model.safetensors").stat().st_size
    assert one > 3 * weights + (300 << 20)  # what PyTorch alone takes
    assert Job((trained, trained)).bytes_needed() == one + 3 * weights
    job = Job((trained,))
    assert [automatic_processes(job, 64, memory) for memory in (0, one, 3 * one - 1, 3 * one)] == [
        1,
        1,
        2,
        3,
    ]
    assert automatic_processes(job, 2, 64 * one) == 2
    with pytest.raises(UserError, match="nowhere"):
        Job((Path("nowhere"),)).bytes_needed()
