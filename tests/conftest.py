"""Fixtures for all tests: one thread, a separate cache, commands in-process, a trained run."""

import gc
import os
import signal
from pathlib import Path

import pytest
from commands import Command, Result
from error_catalogue import is_documented
from hypothesis import HealthCheck, settings
from number_task import number_pairs, numbers_config, write_config, write_pairs

from seq2seq_cli.machine import num_cores

# One thread, also in processes that tests start: tiny tensors get slower with more. PyTorch reads
# it when it is imported, which this file leaves to the tests: pytest starts their processes later.
os.environ["OMP_NUM_THREADS"] = "1"
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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two processes more than cores: tests wait for other processes, browsers and servers."""
    return num_cores() + 2


def pytest_collection_finish() -> None:
    """Keep the garbage collector from searching what the imports of all tests have left."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEQ2SEQ_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("COLUMNS", "200")
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk():
    """A short training flushes a hundred files, some milliseconds each.

    Only a power failure shows what was not flushed. A wrong descriptor is still an error.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(scope="session", autouse=True)
def _logs_as_commands_do():
    """Whether a test is in a process with one of commands must not matter."""
    from seq2seq_cli.console import log_to_stderr

    log_to_stderr()


# What processes of tests import beside `TRAINING_IMPORTS`: to translate, later on, for shards.
IMPORTS = (
    "seq2seq_cli.decoding.lines.stream",
    "seq2seq_cli.tokenizers.sentencepiece_tokenizer",
    "sentencepiece.sentencepiece_model_pb2",
    "tensorboard.plugins.hparams.api",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
)


@pytest.fixture(scope="session")
def imports_shared(_own_cache: None) -> None:
    """Processes that tests start from here are forks of one that has made the imports of all.

    The first call of `process_context` decides about them: were it that of a translation, every
    process of a training would import PyTorch.
    """
    from seq2seq_cli.processes import process_context
    from seq2seq_cli.training.parallel.launcher import TRAINING_IMPORTS

    process_context(*TRAINING_IMPORTS, *IMPORTS)


@pytest.fixture(scope="session")
def seq2seq(request: pytest.FixtureRequest) -> Command:
    """Run a command in-process; a traceback or an undocumented error message fails the test."""
    from click.testing import CliRunner
    from typer.main import get_command

    from seq2seq_cli.cli import app

    command = get_command(app)

    def run(*arguments: object, stdin: str | bytes | None = None) -> Result:
        words = " ".join(map(str, arguments))
        if "processes" in words or "verify-resume" in words:
            request.getfixturevalue("imports_shared")
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
    seq2seq("train", numbers / "numbers.yaml", "--run-dir", run).ok()
    return run
