"""Text in a bucket, on a real S3 server of this machine: trained on, translated, evaluated."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Command
from number_task import number_pairs, numbers_config, write_config
from s3_server import bucket_with


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The URL of a bucket with training text in two compressed files, and validation text."""
    objects = {"input.txt": "".join(f"{src}\n" for src, _ in number_pairs(30, seed=4)).encode()}
    for key, number, seed in (("train/1", 400, 1), ("train/2", 400, 2), ("valid/valid", 40, 3)):
        rows = "".join(f"{src}\t{tgt}\n" for src, tgt in number_pairs(number, seed=seed))
        objects[f"{key}.tsv.gz"] = gzip.compress(rows.encode())
    with bucket_with(objects) as found:
        yield found.url


def test_a_run_reads_its_text_from_a_bucket(bucket: str, tmp_path: Path, seq2seq: Command):
    settings = numbers_config(tmp_path, max_steps=4, warmup_steps=2)
    settings["data"] = {
        "train": {"pairs": f"{bucket}/train/*.tsv.gz"},
        "valid": {"pairs": f"{bucket}/valid/valid.tsv.gz"},
    }
    config, run = write_config(tmp_path, settings), tmp_path / "run"
    assert "800" in seq2seq("train", config, "--run-dir", run).ok().stderr
    seq2seq("train", config, "--run-dir", run, "--set", "training.max_steps=6").ok()
    assert seq2seq("eval", run).exit_code == 0
    output = tmp_path / "output"
    seq2seq("translate", run, "-i", f"{bucket}/input.txt", "-o", output).ok()
    assert len(output.read_text().splitlines()) == 30
    shards = [tmp_path / f"part-{number}" for number in (1, 2)]
    for number, shard in enumerate(shards, 1):
        place = ("-i", f"{bucket}/input.txt", "--shard", f"{number}/2", "-o", shard)
        assert seq2seq("translate", run, *place).exit_code == 0
    assert seq2seq("join", *shards, "-o", tmp_path / "joined").exit_code == 0
    assert (tmp_path / "joined").read_bytes() == output.read_bytes()


def test_a_missing_object_is_reported(bucket: str, tmp_path: Path, seq2seq: Command):
    settings = numbers_config(tmp_path, max_steps=4, warmup_steps=2)
    settings["data"] = {"train": {"pairs": f"{bucket}/train/missing.tsv"}}
    message = seq2seq("check", write_config(tmp_path, settings)).error()
    assert f"there is no file {bucket}/train/missing.tsv" in message


def test_missing_credentials_are_reported(
    numbers: Path, trained: Path, tmp_path: Path, seq2seq: Command, monkeypatch: pytest.MonkeyPatch
):
    connections = pytest.importorskip("s3fs").S3FileSystem
    connections.clear_instance_cache()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    url, output = "s3://a-bucket-without-a-key/x", tmp_path / "output"
    for command in (
        ("translate", trained, "-i", url, "-o", output),
        ("translate", trained, "-i", url, "-o", output, "--shard", "1/2"),
        ("eval", trained, "--src", url, "--ref", numbers / "test.tgt"),
    ):
        message = seq2seq(*command).error()
        assert f"cannot read {url}: " in message
        assert "redentials" in message
    assert not output.exists()
    connections.clear_instance_cache()
