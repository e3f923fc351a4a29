"""A large file that is translated in shards, and joined again."""

import fcntl
import json
import random
import resource
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zstandard
from commands import Command
from number_task import number_pairs

from seq2seq_cli.decoding.lines.shards import Shard, ShardTask, described, lines_of_shard
from seq2seq_cli.decoding.lines.stream import Job, translate_stream
from seq2seq_cli.errors import UserError
from seq2seq_cli.text.io import raw_lines

LINES = [src for src, _ in number_pairs(40, seed=8)]
HOSTILE = "\ufeff" + "\r\n".join([*LINES[:5], "", " ", "1\u20282", "\x1b[0m 3"]) + "\n\n" + LINES[9]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "big.src"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


def translate_shards(
    seq2seq: Command, run: Path, source: Path, count: int, *options: object
) -> list[Path]:
    outputs = [source.parent / f"part-{number}" for number in range(1, count + 1)]
    for number, output in enumerate(outputs, 1):
        shard = ("-i", source, "-o", output, "--shard", f"{number}/{count}")
        seq2seq("translate", run, *shard, *options).ok()
    return outputs


@pytest.mark.parametrize("content", [b"", b"\n", b"a", b"\n\nab\n", "ä\n".encode() * 9, None])
@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_every_line_is_in_one_shard(tmp_path, content, suffix):
    """Whatever their number is; the number of each line is known."""
    generator = random.Random(4)
    for _ in range(1 if content is not None else 20):
        words = [bytes(generator.choices(b"ab\r\n ", k=generator.randrange(40))) for _ in range(5)]
        text = b"\n".join(words) if content is None else content
        path = tmp_path / f"x{suffix}"
        path.write_bytes(zstandard.compress(text) if suffix else text)
        whole = list(raw_lines(path))
        for count in (1, 2, 3, len(text) + 1, 100):
            found = []
            for number in range(1, count + 1):
                place, lines = lines_of_shard(path, Shard(number, count), len(text))
                numbered = list(enumerate(lines, place.first_number))
                assert all(whole[place] == line for place, line in numbered)
                found += numbered
            assert [place for place, _ in found] == list(range(len(whole)))


@pytest.mark.parametrize("count", [1, 3, 15])
def test_joined_shards_are_the_translation_of_the_file(trained, seq2seq, tmp_path, count):
    path = tmp_path / "big.src"
    path.write_text(HOSTILE, encoding="utf-8", newline="")
    whole = seq2seq("translate", trained, "-i", path).stdout
    outputs = translate_shards(seq2seq, trained, path, count)
    assert seq2seq("join", *reversed(outputs), "-o", tmp_path / "joined").exit_code == 0
    assert (tmp_path / "joined").read_text(encoding="utf-8") == whole
    given = sorted(tmp_path.glob("part-*"))  # with the records, as the shell gives them
    assert len(given) == 2 * count
    assert seq2seq("join", *given).stdout == whole


def allow_small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def test_join_overwrites_none_of_its_parts(trained, seq2seq, source, tmp_path):
    outputs = translate_shards(seq2seq, trained, source, 2)
    contents = {path: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "link").symlink_to(outputs[1])
    for output in (outputs[0], tmp_path / "link", f"{outputs[0]}.shard.json"):
        message = seq2seq("join", *outputs, "-o", output, "--force").error()
        assert f"{output}, which would be written, is part of the input" in message
    compressed = seq2seq("join", *outputs, "-o", tmp_path / "joined.gz").error()
    assert "joined.gz would not be compressed: choose another suffix" in compressed
    with outputs[0].open("ab") as own:
        command = [sys.executable, "-m", "seq2seq_cli", "join", *outputs]
        given = {"stdout": own, "stderr": subprocess.PIPE, "text": True, "timeout": 60}
        appended = subprocess.run(command, preexec_fn=allow_small_files, **given)
    assert "error: standard output, which would be written, is part" in appended.stderr
    assert all(path.read_bytes() == content for path, content in contents.items())


def test_join_writes_its_output_alone(trained, seq2seq, source, tmp_path):
    outputs = translate_shards(seq2seq, trained, source, 2)
    (tmp_path / "joined.part").write_text("precious")
    before = {path.name for path in tmp_path.iterdir()}
    assert seq2seq("join", *outputs, "-o", tmp_path / "joined").exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {*before, "joined"}
    assert (tmp_path / "joined.part").read_text() == "precious"
    joined = (tmp_path / "joined").read_text()
    (tmp_path / "joined").write_text("precious")
    command = ("join", *outputs, "-o", tmp_path / "joined")
    assert "joined has content: give --force" in seq2seq(*command).error()
    assert (tmp_path / "joined").read_text() == "precious"
    assert seq2seq(*command, "--force").exit_code == 0
    assert (tmp_path / "joined").read_text() == joined


@pytest.mark.parametrize(
    "options",
    [("--sampling",), ("--beam-size", 2, "--n-best", 2, "--format", "nbest"), ("--format", "tsv")],
    ids=str,
)
def test_shards_know_the_numbers_of_their_lines(trained, seq2seq, source, options):
    whole = seq2seq("translate", trained, "-i", source, *options).stdout
    outputs = translate_shards(seq2seq, trained, source, 4, *options)
    assert seq2seq("join", *outputs).stdout == whole


def test_finished_shard_is_not_made_again(trained, seq2seq, source, tmp_path):
    (output,) = translate_shards(seq2seq, trained, source, 1)
    expected = output.read_bytes()
    shard = ("translate", trained, "-i", source, "-o", output, "--shard", "1/1")
    before = output.stat().st_mtime_ns, output.stat().st_ino
    moved = shutil.copytree(trained, tmp_path / "moved")  # on another machine, for example
    for command in (shard, (*shard[:1], moved, *shard[2:])):
        again = seq2seq(*command)
        assert "has the translations of shard 1/1 already" in again.stderr
        assert (output.stat().st_mtime_ns, output.stat().st_ino) == before
    output.write_bytes(expected[:-1])  # cut short
    assert "already" not in seq2seq(*shard).stderr
    assert output.read_bytes() == expected
    other = ("--prefix", "nine")
    assert "already" not in seq2seq(*shard, *other).stderr
    assert output.read_bytes() != expected
    source.write_text(source.read_text().replace(LINES[0], "1", 1))
    assert "already" not in seq2seq(*shard, *other).stderr
    assert "already" in seq2seq(*shard, *other).stderr
    Path(f"{output}.shard.json").write_text("{")
    assert "already" not in seq2seq(*shard, *other).stderr


def test_shard_replaces_no_other_file_without_force(trained, seq2seq, source, tmp_path):
    references = tmp_path / "references"
    references.write_text("one\n")
    shard = ("translate", trained, "-i", source, "-o", references, "--shard", "1/1")
    assert "has content: give --force" in seq2seq(*shard).error()
    assert references.read_text() == "one\n"
    assert seq2seq(*shard, "--force").exit_code == 0


def test_shard_that_fails_leaves_no_output(trained, seq2seq, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"src": "1 2"}\n{"src": 3}\n')
    shard = ("-i", path, "-o", tmp_path / "part", "--shard", "1/1", "--input-format", "jsonl")
    assert "line 2" in seq2seq("translate", trained, *shard).error()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["part.part", "x.jsonl"]
    assert "is its shard complete?" in seq2seq("join", tmp_path / "part").stderr
    path.write_text('{"src": "1 2"}\n{"src": "3"}\n')
    assert seq2seq("translate", trained, *shard).exit_code == 0
    assert (tmp_path / "part").read_text() == "one two\nthree\n"


def test_text_that_changes_meanwhile_gets_no_record(trained, source, tmp_path):
    task = ShardTask(Job((trained,), "cpu"), Shard(1, 1), source, tmp_path / "part")
    with pytest.raises(UserError, match=r"big\.src changed while being read"), task.opened():
        source.write_text("1\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.src", "part.part"]


@pytest.mark.slow
def test_two_processes_do_not_write_the_same_shard(trained, seq2seq, source, tmp_path):
    with (tmp_path / "part.part").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        shard = ("-i", source, "-o", tmp_path / "part", "--shard", "1/2")
        refused = seq2seq("translate", trained, *shard)
    assert "another process is writing" in refused.error()


def test_a_shard_of_another_process_can_be_waited_for(trained, source, tmp_path, caplog):
    caplog.set_level("INFO", "seq2seq_cli")
    given = Job((trained,), "cpu"), Shard(1, 1), source, tmp_path / "part"
    mine, other = ShardTask(*given), ShardTask(*given)
    mine.wait_for_others()
    assert not caplog.text
    with ThreadPoolExecutor(1) as pool:
        with other.opened():
            waiting = pool.submit(mine.wait_for_others)
            end = time.monotonic() + 60
            while "waiting for another process, which translates shard 1/1" not in caplog.text:
                assert not waiting.done() and time.monotonic() < end
            assert not mine.is_done()
        waiting.result()
        assert mine.is_done()


@pytest.mark.parametrize("processes", [1, 2])
def test_one_stream_has_one_model(trained, source, processes):
    """A training may replace it after a shard was described, or before a process has loaded it."""
    job = Job((trained,), "cpu")
    models = described(job)
    given = (job, LINES, source, processes)
    lines = list(translate_stream(*given, expected=models))
    assert lines == list(translate_stream(*given))
    with pytest.raises(UserError, match="a model was replaced"):
        list(translate_stream(*given, expected=models | {"runs": ["of another model"]}))


def test_what_does_not_fit_together_is_not_joined(trained, seq2seq, source, tmp_path):
    parts = translate_shards(seq2seq, trained, source, 3)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def refused(*given: Path) -> str:
        message = seq2seq("join", *given, "-o", elsewhere / "out").error()
        assert not list(elsewhere.glob("out*"))
        return message

    def shard_of(which: Path, name: str, *options: object, number: str = "2/3") -> Path:
        output = elsewhere / name
        given = ("-i", which, "-o", output, "--shard", number, *options)
        assert seq2seq("translate", trained, *given).exit_code == 0
        return output

    assert "of 3 shards these are missing: 2\n" in refused(parts[0], parts[2])
    twin = shard_of(source, "twin")
    assert "are the same shard, 2/3" in refused(*parts, twin)
    other = shard_of(source, "other", "--prefix", "nine")
    assert "have different models or options" in refused(parts[0], other, parts[2])
    fourths = shard_of(source, "fourths", number="2/4")
    assert "is shard 2/4" in refused(parts[0], fourths, parts[2])
    (elsewhere / "big.src").write_text(source.read_text().replace(LINES[0], "1", 1))
    foreign = shard_of(elsewhere / "big.src", "foreign")
    assert "are translations of different texts" in refused(parts[0], foreign, parts[2])
    record = parts[1].with_name(f"{parts[1].name}.shard.json")
    for damage, message in (("{}", "not the record of a shard"), ("{", "is not JSON")):
        whole = record.read_text()
        record.write_text(damage)
        assert message in refused(*parts)
        record.write_text(whole)
    record.write_text(json.dumps(json.loads(whole) | {"format": 2}))
    assert "another version" in refused(*parts)
    record.write_text(whole)
    parts[1].write_bytes(parts[1].read_bytes()[:-1])
    assert "it was changed or cut short" in refused(*parts)
    parts[1].unlink()
    assert f"there is no file {parts[1]}" in refused(*parts)
    assert "give the outputs of all shards" in refused(record)


def test_failed_attempt_leaves_a_finished_shard_as_it_is(trained, seq2seq, source):
    (output,) = translate_shards(seq2seq, trained, source, 1)
    shard = ("-i", source, "-o", output, "--shard", "1/1")
    for mistake in (("--model", "77"), ("--set", "decoding.beam=3"), ("--require", "twelve")):
        assert seq2seq("translate", trained, *shard, *mistake).exit_code == 2
        assert seq2seq("join", output).exit_code == 0


def test_what_is_no_file_is_neither_read_nor_replaced(trained, seq2seq, source, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "x.tmx").write_text("<tmx/>")
    shard = ("--shard", "1/1")
    for given, message in (
        (("-i", source, "-o", tmp_path / "folder"), "folder is not a file"),
        (("-i", source, "-o", "/dev/null"), "the output /dev/null is not a file"),
        (("-i", source, "-o", "."), "the output . is not a file"),
        (("-i", tmp_path / "folder", "-o", tmp_path / "o"), "folder is not a file"),
        (("-i", tmp_path / "x.tmx", "-o", tmp_path / "o"), "is not text with a sentence"),
        (("-i", tmp_path / "none", "-o", tmp_path / "o"), "none: No such file"),
    ):
        assert message in seq2seq("translate", trained, *given, *shard).error()
    shutil.copy(source, tmp_path / "part.part")
    into = ("-i", tmp_path / "part.part", "-o", tmp_path / "part")
    assert "is part of the input" in seq2seq("translate", trained, *into, *shard).stderr
    assert (tmp_path / "part.part").read_text() == source.read_text()
    assert "is its shard complete?" in seq2seq("join", ".").stderr
    (output,) = translate_shards(seq2seq, trained, source, 1)
    assert "the output /dev/null is not a file" in seq2seq("join", output, "-o", "/dev/null").stderr


def test_shards_need_files(trained, seq2seq, source):
    for given in (["1"], ["-i", source], ["-i", "-", "-o", "out"], ["-i", source, "-o", "-"]):
        refused = seq2seq("translate", trained, *given, "--shard", "1/2", stdin="1\n")
        assert "--shard needs --input and --output, which are files" in refused.stderr
    for number in ("0/2", "3/2", "1", "1/2/3", "-1/2", "²/3"):
        options = ("-i", source, "-o", source.parent / "part", "--shard", number)
        refused = seq2seq("translate", trained, *options)
        assert "give its number and their count, such as 3/20" in refused.stderr
