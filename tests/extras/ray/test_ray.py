"""Translating and training with Ray, on a cluster of several nodes on this machine.

Each test that needs a cluster starts its own; none joins one that it finds.
"""

import fcntl
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import ROOT, logged_points
from number_task import number_pairs, numbers_config, write_config
from s3_server import bucket_with
from safetensors.torch import load_file

from seq2seq_cli.decoding.lines.shards import Shard, ShardTask, described
from seq2seq_cli.decoding.lines.stream import Job
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.ray.translate import cut

Program = subprocess.Popen[str]

started: list[Program] = []


@pytest.fixture(autouse=True)
def _no_program_is_left() -> Iterator[None]:
    yield
    while started:
        program = started.pop()
        if program.poll() is None:
            program.kill()
            program.communicate()


@contextmanager
def started_cluster(num_nodes: int) -> Iterator[Any]:
    """A cluster whose first node has no place for actors, and others that have a CPU each."""
    pytest.importorskip("ray.data")
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        for _ in range(num_nodes):
            cluster.add_node(num_cpus=1)
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        with started_cluster(2) as cluster:
            yield cluster.address


def start(address: str, *given: object, **variables: str) -> Program:
    environment = {**os.environ, "RAY_ADDRESS": address, "RAY_USAGE_STATS_ENABLED": "0"} | variables
    program = subprocess.Popen(
        [sys.executable, *map(str, given)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    started.append(program)
    return program


def end(program: Program) -> str:
    """Return what the program has printed; it must have succeeded."""
    output, _ = program.communicate(timeout=240)
    assert program.returncode == 0, output
    return output


def translate(address: str, *given: object) -> Program:
    return start(address, "-m", "seq2seq_cli", "translate-ray", *given)


def long_text(count: int, seed: int) -> str:
    """Digits, with many empty lines."""
    chance = random.Random(seed)
    lines = [chance.choice([src, src, ""]) for src, _ in number_pairs(count, seed)]
    return "\n".join(lines)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "long.txt").write_text(long_text(9_000, seed=5))  # no line end at its end
    (folder / "hostile.txt").write_bytes(b"\xef\xbb\xbf1 2\r\n\r\n3\xe2\x80\xa84\n\xff\n \n\n")
    (folder / "empty.txt").write_bytes(b"")
    (folder / "packed.txt.gz").write_bytes(gzip.compress(long_text(4_000, seed=6).encode()))
    return folder


def expected(seq2seq, run: Path, texts: Path, *options: object) -> dict[str, bytes]:
    """What one process writes for each text."""
    found = {}
    for path in texts.iterdir():
        output = texts.parent / "whole"
        given = ("-i", path, "-o", output, "--force", *options)
        assert seq2seq("translate", run, *given).exit_code == 0
        found[path.name.removesuffix(".gz")] = output.read_bytes()
    return found


def written(folder: Path) -> dict[str, bytes]:
    """The translations in a folder, each of which has a record beside it, and nothing else."""
    records = {path.name.removesuffix(".shard.json") for path in folder.glob("*.shard.json")}
    names = {path.name for path in folder.iterdir()}
    assert names == {".lock", *records, *(f"{name}.shard.json" for name in records)}
    return {name: (folder / name).read_bytes() for name in records}


def test_translations_are_those_of_one_process(trained, seq2seq, address, texts, tmp_path):
    """A repeated command does what is missing only, whatever the number of actors."""
    given = (trained, "-i", texts / "*.txt*", "-o", tmp_path / "out", "--num-cpus", 0.5)
    output = end(translate(address, *given, "--concurrency", "1:4"))
    assert f"translated 4 files into {tmp_path / 'out'}\n" in output
    assert written(tmp_path / "out") == expected(seq2seq, trained, texts)
    assert seq2seq("join", tmp_path / "out" / "long.txt").exit_code == 0  # a shard of one
    (texts / "hostile.txt").write_text("1 2 3")
    before = (tmp_path / "out" / "long.txt").stat().st_mtime_ns
    output = end(translate(address, *given, "--concurrency", 1))
    assert "translated 1 files into" in output
    assert "; 3 existed" in output
    assert written(tmp_path / "out")["hostile.txt"] == b"one two three\n"
    assert (tmp_path / "out" / "long.txt").stat().st_mtime_ns == before


@pytest.mark.slow
def test_text_may_be_in_a_bucket(trained, seq2seq, texts, tmp_path):
    pytest.importorskip("ray.data")
    objects = {f"texts/{path.name}": path.read_bytes() for path in texts.iterdir()}
    with bucket_with(objects) as bucket:
        given = ("-i", f"{bucket.url}/texts/*.txt*", "-o", tmp_path / "out", "--concurrency", 1)
        command = ("-m", "seq2seq_cli", "translate-ray", trained, *given)
        end(start("local", *command, **bucket.environment))
    assert written(tmp_path / "out") == expected(seq2seq, trained, texts)


def test_pieces_know_the_numbers_of_their_lines(trained, seq2seq, address, texts, tmp_path):
    """Sampling depends on them, and n-best lists name them; scores are equal within rounding."""
    given = ("-i", texts / "*.txt*", "-o", tmp_path / "out")
    sampling = ("--sampling", "--format", "nbest")
    end(translate(address, trained, *given, *sampling))
    found, whole = written(tmp_path / "out"), expected(seq2seq, trained, texts, *sampling)
    assert found.keys() == whole.keys()
    for name, content in found.items():
        lines, others = (text.decode().splitlines() for text in (content, whole[name]))
        for line, other in zip(lines, others, strict=True):
            *same, score = line.rsplit("=", 1)
            *other_same, other_score = other.rsplit("=", 1)
            assert same == other_same
            assert [*map(float, score.split("|||"))] == pytest.approx(
                [*map(float, other_score.split("|||"))], abs=1e-3
            )


def test_error_of_an_actor_names_file_and_line(trained, address, tmp_path):
    (tmp_path / "x.jsonl").write_text('{"src": "1 2"}\n{"src": 3}\n')
    given = (trained, "-i", tmp_path / "x.jsonl", "-o", tmp_path / "out")
    program = translate(address, *given, "--input-format", "jsonl")
    output, _ = program.communicate(timeout=240)
    assert program.returncode == 2
    assert "error: line 2:" in output
    assert not (tmp_path / "out" / "x.jsonl").exists()


def test_killed_nodes_and_a_killed_driver_lose_no_line(trained, seq2seq, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "long.txt").write_text(long_text(40_000, seed=7))
    beam = ("--beam-size", 4)
    given = (trained, "-i", texts / "*.txt", "-o", tmp_path / "out", "--concurrency", "2", *beam)
    with started_cluster(3) as cluster:
        program = translate(cluster.address, *given)
        finished = wait_for_pieces(tmp_path / "out", 1)
        for _ in range(2):
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            cluster.add_node(num_cpus=1)
        finished = wait_for_pieces(tmp_path / "out", finished + 1)
        assert program.poll() is None, "it was killed while it translated"
        program.kill()
        program.communicate()
        program = translate(cluster.address, *given)
        wait_for_pieces(tmp_path / "out", finished + 1)
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        end(program)
    assert written(tmp_path / "out") == expected(seq2seq, trained, texts, *beam)


def wait_for_pieces(folder: Path, count: int) -> int:
    """Wait until that many pieces are translated; return how many there are."""
    return wait_for(lambda: len([*folder.glob("*.pieces/*")]), count)


def wait_for(number: Callable[[], int], least: int) -> int:
    deadline = time.monotonic() + 120
    while (found := number()) < least:
        assert time.monotonic() < deadline, f"{found} of {least}"
        time.sleep(0.05)
    return found


@pytest.mark.filterwarnings("ignore")  # those of Ray's import
def test_what_ray_cannot_translate_is_refused(trained, seq2seq, tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("x.txt", "a/x.txt"):
        (tmp_path / name).write_text("1\n")
    into = ("-o", tmp_path / "out")
    one = ("-i", tmp_path / "x.txt", *into)
    pytest.importorskip("ray.data")
    (tmp_path / "long.txt").write_text("1" * (1 << 23))
    for given, message in (
        ((*one, "--concurrency", "8:1"), "give a number of actors, or two as in 1:8"),
        ((*one, "--concurrency", "0"), "give a number of actors, or two as in 1:8"),
        ((*one, "--concurrency", ":"), "give a number of actors, or two as in 1:8"),
        (("-i", tmp_path / "*.src", *into), "there is no file"),
        ((*one, "--align"), "--align needs --format tsv or jsonl"),
        (("-i", tmp_path / "**/x.txt", *into), "have the same name"),
        (("-i", tmp_path / "x.txt", "-o", tmp_path), "is the input file"),
        (("-i", tmp_path / "long.txt", *into), "a line is longer than 4,194,304 bytes"),
    ):
        refused = seq2seq("translate-ray", trained, *given)
        assert refused.exit_code == 2, given
        assert message in refused.stderr
    (tmp_path / "out").mkdir(exist_ok=True)  # an empty one is removed after an error
    (tmp_path / "out" / "x.txt").write_text("a reference\n")
    refused = seq2seq("translate-ray", trained, *one).error()
    assert "x.txt has content, and translate-ray has not written it" in refused
    (tmp_path / "out" / "x.txt").unlink()
    with (tmp_path / "out" / ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused = seq2seq("translate-ray", trained, *one)
    assert "another process runs this command in" in refused.stderr
    assert (tmp_path / "x.txt").read_text() == "1\n"


def test_inputs_that_change_while_ray_translates_are_not_taken_for_the_old_ones(trained, tmp_path):
    run, source = shutil.copytree(trained, tmp_path / "run"), tmp_path / "x.txt"
    source.write_text("1\n")
    job = Job((run,), device="cpu")
    text = cut(ShardTask(job, Shard(1, 1), source, tmp_path / "out.txt"), 100)
    text.outputs[0].parent.mkdir()
    text.outputs[0].write_text("one\n")
    models = text.task.models
    with (run / "config.yaml").open("a") as file:
        file.write("# another file\n")
    assert text.task.models == models != described(job)
    with pytest.raises(UserError, match="a model was replaced"):
        job.load(models)
    source.write_text("2\n")
    with pytest.raises(UserError, match=r"x\.txt changed"):
        text.join()


def test_translate_ray_says_what_to_install(trained, tmp_path):
    (tmp_path / "x.txt").write_text("1\n")
    code = "import sys; sys.modules['ray'] = None\nfrom seq2seq_cli.cli import main\nmain()"
    given = ["translate-ray", trained, "-i", "x.txt", "-o", "out"]
    result = subprocess.run(
        [sys.executable, "-c", code, *given], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.stderr.startswith("error: translate-ray needs the package ray: pip install ")
    assert result.returncode == 2


@pytest.mark.slow
def test_recipe_for_ray_train_survives_a_killed_worker(seq2seq, tmp_path):
    """It ends with the weights of one process, within rounding."""
    settings = numbers_config(
        tmp_path, max_steps=400, save_every=10, device="cpu", precision="fp32", lr=2e-3,
        adam_epsilon=1e-3,
    )  # fmt: skip
    settings["model"]["activation"] = "gelu"  # at the bend of relu, rounding decides
    config = write_config(tmp_path, settings)
    whole, run = tmp_path / "whole", tmp_path / "run"
    single = ("--set", "training.processes=1")
    assert seq2seq("train", config, "--run-dir", whole, *single).exit_code == 0
    recipe = ROOT / "examples" / "cluster" / "train_ray.py"
    with started_cluster(2) as cluster:
        program = start(cluster.address, recipe, config, run, "--workers", 2)
        wait_for(lambda: len([*run.glob("checkpoints/step-*")]), 2)
        process = holder_of_lock(run / "lock")
        os.kill(process, signal.SIGKILL)
        output = end(program)
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["num_continuations"] == 1, output
    points = logged_points(run)
    steps = [point["step"] for point in points if "train/loss" in point]
    assert steps == [*range(20, 401, 20)]
    name = "checkpoints/step-00000400/weights.safetensors"
    weights, others = load_file(whole / name), load_file(run / name)
    for key, weight in weights.items():
        torch.testing.assert_close(others[key], weight, rtol=1e-5, atol=1e-5)


def holder_of_lock(path: Path) -> int:
    """The process that trains in a run folder."""
    inode = path.stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if "FLOCK" in fields and fields[-3].endswith(f":{inode}"):
            return int(fields[4])
    raise AssertionError(f"nobody has locked {path}")
