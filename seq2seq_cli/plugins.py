"""The table of extras: folders of `seq2seq_cli/extras`, each named like its pip extra.

The core never imports them. It finds them here by name: `seq2seq --help` lists all of their
commands, and a command whose packages are not installed answers with the `pip install` line. The
extra `remote` has no folder, only lines in `paths.py`, as any path of text may be a URL. Training
loads `elastic`, `shard` and `subwords`, which have no commands. Imported models need `convert`.
"""

import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from seq2seq_cli.errors import UserError, how_to_install


class Extra(NamedTuple):
    commands: Mapping[str, str] = MappingProxyType({})  # and the modules that register them
    packages: tuple[str, ...] = ()  # what its pip extra installs and all of its commands need


EXTRAS = {
    "bench": Extra({"bench": "command"}),
    "clean": Extra({"clean": "command"}),
    "convert": Extra({"import": "import_command", "trim": "trim_command"}),
    "distill": Extra({"distill": "command", "diversify": "command"}),
    "elastic": Extra(),
    "export": Extra({"export": "command"}),
    "hub": Extra({"pull": "command", "push": "command"}, ("huggingface_hub",)),
    "inspect": Extra({"attend": "command", "inspect": "command"}),
    "plot": Extra({"find-lr": "command", "plot": "command"}),
    "ray": Extra({"translate-ray": "command"}, ("ray",)),
    "serve": Extra(
        {"serve": "command"},
        (
            *("starlette", "uvicorn", "httptools", "uvloop", "python_multipart"),
            *("prometheus_client", "babel", "py3langid", "markdown_it"),
        ),
    ),
    "shard": Extra(),
    "subwords": Extra(),
    "tune": Extra({"tune": "command"}, ("optuna",)),
}


COMMANDS = {  # of extras, and the modules that register them
    command: f"seq2seq_cli.extras.{name}.{module}"
    for name, extra in EXTRAS.items()
    for command, module in extra.commands.items()
}


def register_command(name: str) -> None:
    """Import the module of a command, which adds it to the Typer app."""
    importlib.import_module(COMMANDS.get(name) or f"seq2seq_cli.cli.{name.replace('-', '_')}")


def load(extra: str, module: str) -> Any:
    """Import a module of an extra. Raises UserError if packages of the extra are not installed."""
    for package in EXTRAS[extra].packages:
        require(package, extra, extra)
    return importlib.import_module(f"seq2seq_cli.extras.{extra}.{module}")


def require(package: str, extra: str, what: str) -> None:
    """Raise UserError with the command of pip if the package of an extra is not installed."""
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{what} needs the package {package}: {how_to_install(extra)}")


def implementation(name: str) -> Any:
    """Return a class or function that a table of the config names as `package.module.name`."""
    return pkgutil.resolve_name(f"seq2seq_cli.{name}")
