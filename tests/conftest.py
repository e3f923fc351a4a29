"""Fixtures for all tests: one thread, a separate cache, commands in-process, a trained run."""

import os
import signal
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from commands import Command, Result
from error_catalogue import is_documented
from hypothesis import HealthCheck, settings
from number_task import number_pairs, numbers_config, write_config, write_pairs
from typer.main import get_command

from seq2seq_cli.cli import app

torch.set_num_threads(1)  # tiny tensors get slower with more
os.environ["OMP_NUM_THREADS"] = "1"  # the same in processes that tests start
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

settings.register_profile(
    "short",
    max_examples=50,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
settings.register_profile(
    "long", settings.get_profile("short"), derandomize=False, max_examples=5_000
)
settings.load_profile("short")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEQ2SEQ_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("COLUMNS", "200")
        yield


@pytest.fixture(scope="session")
def seq2seq() -> Command:
    """Run a command in-process; a traceback or an undocumented error message fails the test."""
    command = get_command(app)

    def run(*arguments: object, stdin: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(command, [str(a) for a in arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        _, is_error, message = result.stderr.partition("error: ")
        assert not is_error or is_documented(message), f"not in docs/errors.md: {message}"
        return Result(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture(scope="session")
def numbers(tmp_path_factory) -> Path:
    """A folder with the texts `train`, `valid`, `test` and the config `numbers.yaml`."""
    folder = tmp_path_factory.mktemp("numbers")
    write_config(folder, numbers_config(folder, 3_000))
    write_pairs(folder, "test", number_pairs(100, seed=3))
    return folder


@pytest.fixture(scope="session")
def trained(numbers: Path, seq2seq: Command) -> Path:
    """The folder of a finished run."""
    run = numbers / "run"
    result = seq2seq("train", numbers / "numbers.yaml", "--run-dir", run)
    assert result.exit_code == 0, result.stderr
    return run
