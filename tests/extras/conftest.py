"""A run and a server of it, started once for all tests of extras."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Command
from number_task import write_config
from served import Served, names_config, serving


@pytest.fixture(scope="session")
def names_run(tmp_path_factory: pytest.TempPathFactory, seq2seq: Command) -> Path:
    """A run that translates from names ("en") to digits ("de"), to be served."""
    folder = tmp_path_factory.mktemp("names")
    config = write_config(folder, names_config(folder, src="de", tgt="en"))
    seq2seq("train", config, "--run-dir", folder / "run").ok()
    return folder / "run"


@pytest.fixture(scope="session")
def server(names_run: Path) -> Iterator[Served]:
    """A server of that run."""
    hosts = ("--allow-host", "https://Proxy.example/x", "--allow-host", "2001:db8::1")
    with serving(names_run, "--processes", 2, *hosts) as served:
        yield served


TOKEN = "s3cret"
ALLOWED_ORIGIN = "https://Page.example:443/"  # browsers leave out the port, and capitals


@pytest.fixture(scope="session")
def guarded(names_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for other machines: with a token, an allowed origin, two pairs, texts in the log."""
    token = tmp_path_factory.mktemp("access") / "token"
    token.write_text(f"{TOKEN}\n")
    access = ("--host", "0.0.0.0", "--token-file", token, "--allow-origin", ALLOWED_ORIGIN)
    pairs = ("--langs", "en-de", "--langs", "de-en")
    with serving(names_run, names_run, *pairs, *access, "--log-text", "--processes", 1) as served:
        yield served
