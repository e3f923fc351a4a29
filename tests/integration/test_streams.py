"""Text from pipes and standard input, wherever a command takes a text file."""

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
import zstandard
from commands import Command

Piped = Callable[[bytes], Path]


@pytest.fixture
def piped(tmp_path: Path) -> Piped:
    """Create named pipes with the given content, which can be read once."""
    count = 0

    def pipe(content: bytes) -> Path:
        nonlocal count
        count += 1
        path = tmp_path / f"pipe-{count}"
        os.mkfifo(path)
        threading.Thread(target=path.write_bytes, args=(content,), daemon=True).start()
        return path

    return pipe


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def sides(numbers: Path) -> tuple[bytes, bytes]:
    return (numbers / "test.src").read_bytes(), (numbers / "test.tgt").read_bytes()


def as_pairs(numbers: Path, form: str) -> bytes:
    lines = list(zip(*(side.decode().splitlines() for side in sides(numbers)), strict=True))
    if form == "tsv":
        return "".join(f"{src}\t{tgt}\n" for src, tgt in lines).encode()
    return "".join(json.dumps({"src": src, "tgt": tgt}) + "\n" for src, tgt in lines).encode()


@pytest.fixture(scope="module")
def expected(trained: Path, numbers: Path, seq2seq: Command) -> str:
    files = ("--src", numbers / "test.src", "--ref", numbers / "test.tgt")
    return seq2seq("eval", trained, *files, "--json").stdout


def test_eval_reads_pipes(trained, numbers, seq2seq, piped, expected, temporary):
    src, tgt = sides(numbers)
    result = seq2seq("eval", trained, "--src", piped(src), "--ref", piped(tgt), "--json")
    assert result.stdout == expected
    assert "pipe-1 is a stream and can be read only once; it is copied to " in result.stderr
    packed = ("--src", piped(gzip.compress(src)), "--ref", piped(gzip.compress(tgt)))
    assert seq2seq("eval", trained, *packed, "--json").stdout == expected
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("form", ["tsv", "jsonl"])
@pytest.mark.parametrize("packed", [False, True])
def test_format_of_piped_pairs_is_detected(
    form, packed, trained, numbers, seq2seq, piped, expected
):
    content = as_pairs(numbers, form)
    pipe = piped(gzip.compress(content) if packed else content)
    assert seq2seq("eval", trained, "--pairs", pipe, "--json").stdout == expected


def test_text_that_begins_like_xml_is_text(trained, seq2seq, piped):
    pipe = piped(b"<1> 2\tone two\n3\tthree\n")
    found = seq2seq("eval", trained, "--pairs", pipe, "--loss-only", "--json").ok()
    assert json.loads(found.stdout)["num_lines"] == 2


@pytest.mark.parametrize("form", ["zip", "tmx", "tmx.zst", "jsonl.bz2", "tsv.xz"])
def test_every_form_of_pairs_may_be_piped_and_has_its_fields(
    form, trained, numbers, seq2seq, piped, expected
):
    src, tgt = sides(numbers)
    lines = list(zip(src.decode().splitlines(), tgt.decode().splitlines(), strict=True))
    fields = ("--fields", "de", "en")
    if form == "zip":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("X.de-en.de", src)
            archive.writestr("X.de-en.en", tgt)
        content = buffer.getvalue()
    elif form.startswith("tmx"):
        tuv = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'.format
        units = (f"<tu>{tuv('de', a)}{tuv('en-US', b)}</tu>" for a, b in lines)
        content = f"\ufeff\n<tmx><body>{''.join(units)}</body></tmx>".encode()
        content = zstandard.compress(content) if form.endswith(".zst") else content
    elif form == "jsonl.bz2":
        rows = (json.dumps({"t": {"de": a, "en": b}}) + "\n" for a, b in lines)
        content = bz2.compress("".join(rows).encode())
        fields = ("--fields", "t.de", "t.en")
    else:
        content = lzma.compress("".join(f"{b}\tx\t{a}\n" for a, b in lines).encode())
        fields = ("--fields", "3", "1")
    piped_text = ("--pairs", piped(content), *fields)
    assert seq2seq("eval", trained, *piped_text, "--json").stdout == expected


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_eval_reads_standard_input(name, trained, numbers, seq2seq, expected):
    content = as_pairs(numbers, "tsv")
    assert seq2seq("eval", trained, "--pairs", name, "--json", stdin=content).stdout == expected
    mixed = ("--src", name, "--ref", numbers / "test.tgt", "--json")
    assert seq2seq("eval", trained, *mixed, stdin=sides(numbers)[0]).stdout == expected
    for command, other in (("eval", "--ref"), ("score", "--nbest")):
        twice = seq2seq(command, trained, "--src", name, other, "-", stdin=b"1\n").error()
        assert "standard input can be read only once" in twice


@pytest.mark.slow
def test_score_and_check_read_pipes(trained, numbers, seq2seq, piped):
    src, tgt = sides(numbers)
    files = ("--src", numbers / "test.src", "--ref", numbers / "test.tgt")
    pipes = ("--src", piped(src), "--ref", piped(tgt))
    scored = seq2seq("score", trained, *files).stdout
    assert seq2seq("score", trained, *pipes).stdout == scored
    nbest = "".join(f"{n} ||| {line}\n" for n, line in enumerate(tgt.decode().splitlines()))
    listed = seq2seq("score", trained, "--src", piped(src), "--nbest", piped(nbest.encode()))
    assert len(listed.stdout.splitlines()) == len(scored.splitlines())
    pipes = ("--src", piped(src), "--ref", piped(tgt))
    found = (
        json.loads(seq2seq("check", numbers / "numbers.yaml", *text, "--json").stdout)
        for text in (files, pipes)
    )
    of_files, of_pipes = (one["texts"]["test"] for one in found)
    for one in (of_files, of_pipes):
        for file in one["files"]:
            del file["path"]
    assert of_pipes == of_files


def test_bad_line_of_a_pipe_is_named_by_its_number(trained, seq2seq, piped, temporary):
    message = seq2seq("eval", trained, "--pairs", piped(b"1\tone\nno tab\n")).error()
    assert "pipe-1.tsv, line 2: needs 2 columns" in message
    assert list(temporary.iterdir()) == []
    message = seq2seq("eval", trained, "--pairs", piped(gzip.compress(b"1\tone\n")[:-9])).error()
    assert "pipe-2.tsv.gz is not a complete gzip file" in message


def test_copy_that_finds_no_room_is_named(trained, seq2seq, piped, temporary):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, hard))
    try:
        message = seq2seq("eval", trained, "--pairs", piped(b"1\tone\n" * 9_000)).error()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert re.search(f"error: {temporary}/.*/pipe-1: File too large", message)
    assert list(temporary.iterdir()) == []


def test_sigterm_removes_the_copy_of_a_stream(trained, numbers, tmp_path):
    command = [sys.executable, "-m", "seq2seq_cli", "eval", str(trained), "--src", "-"]
    command += ["--ref", str(numbers / "test.tgt")]
    folder = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=folder) as process:
        while not [*tmp_path.glob("*/stdin")]:
            assert process.poll() is None
            os.sched_yield()
        while process.poll() is None:  # Python may miss one that comes just before it reads
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        assert process.returncode == 143
    assert not [*tmp_path.iterdir()]


def test_devices_and_folders_are_rejected_as_text(trained, seq2seq, tmp_path):
    for path, message in (
        ("/dev/zero", "/dev/zero is a device, not a text file"),
        (tmp_path, f"{tmp_path} is a folder, not a text file"),
        (tmp_path / "x", f"there is no file {tmp_path / 'x'}"),
    ):
        result = seq2seq("eval", trained, "--pairs", path)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"error: {message}\n" in result.stderr


def test_pipes_are_rejected_as_training_text(numbers, seq2seq, tmp_path):
    """Training reads its text several times."""
    os.mkfifo(tmp_path / "pipe")
    config = yaml.safe_load((numbers / "numbers.yaml").read_text())
    config["data"]["train"]["src"] = str(tmp_path / "pipe")
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(config))
    for verb in ("train", "check", "vocab"):
        message = seq2seq(verb, tmp_path / "x.yaml").error()
        assert "data.train.src: " in message
        assert "is a stream, which can be read only once" in message
    (tmp_path / "empty").mkdir()
    option = f"data.valid.tgt={tmp_path / 'empty'}"
    result = seq2seq("check", numbers / "numbers.yaml", "--set", option)
    assert f"the folder {tmp_path / 'empty'} has no files" in result.stderr


@pytest.mark.parametrize("name", ["pipe", "/dev/stdin", "/dev/zero"])
def test_eval_reads_no_stream_or_device_that_a_run_names(name, trained, seq2seq, tmp_path):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    if name == "pipe":
        os.mkfifo(tmp_path / name)
        name = str(tmp_path / name)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"]["valid"] = {"src": name, "tgt": name}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    message = seq2seq("eval", run).error()
    assert f"the run's validation text ({name}) was not found" in message
