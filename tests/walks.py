"""Walks through the code: the calls that lead from a command to a function deep inside it."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from commands import ROOT

PACKAGE = ROOT / "seq2seq_cli"


def calls_until(
    run: Callable[[], object], file: str, function: str, through: str = ""
) -> list[str]:
    """Return the functions of the package that are being called when a function is first reached.

    The outermost comes first, each as "decoding/search/search.py: search". `file` is the end of
    the path of the function's file, which may be PyTorch's: ("optim/adam.py", "step"). `run` runs
    to its end; comprehensions and frames of other packages are left out. `through` is a function
    that must be among them.
    """
    chain: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == function and code.co_filename.endswith(file):
            callers = _callers(frame)
            if not through or through in callers:
                sys.setprofile(None)
                chain.extend(reversed(callers))

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    assert chain, f"{file}: {function} was not called"
    return chain


def documented_walk(heading: str) -> list[str]:
    """Return the lines of the first text block below a heading of docs/architecture.md."""
    document = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    return document.split(f"## {heading}")[1].split("```text\n")[1].split("```")[0].splitlines()


Named = tuple[str, str, str]  # file, class or "", function or class


def documented_functions(heading: str) -> list[Named]:
    """Return the functions, as `file.py: Class.function`, that a section of the document names."""
    document = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = document.split(f"## {heading}")[1].split("\n##")[0]
    return re.findall(r"`([\w/]+\.py): (?:(\w+)\.)?(\w+)`", section)


def calls_during(run: Callable[[], object]) -> set[tuple[str, str]]:
    """Return the file and the qualified name of every function of the package that `run` calls."""
    called: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            called.add((code.co_filename, code.co_qualname))

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return called


def is_called(named: Named, called: set[tuple[str, str]]) -> bool:
    """Return True if a function, or any method of a class, is among those called."""
    file, of_class, name = named
    wanted = f"{of_class}.{name}" if of_class else name
    return any(
        path.endswith(f"/{file}") and (qualified == wanted or qualified.startswith(f"{wanted}."))
        for path, qualified in called
    )


def _callers(frame: FrameType | None) -> list[str]:
    """Return the functions of the package on the stack, the innermost first."""
    names = []
    while frame is not None:
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_name
        if path.is_relative_to(PACKAGE) and not name.startswith("<"):
            names.append(f"{path.relative_to(PACKAGE)}: {name}")
        frame = frame.f_back
    return names
