"""Walks through the code: the calls that lead from a command to a function deep inside it."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from commands import ROOT

PACKAGE = ROOT / "seq2seq_cli"


def calls_until(run: Callable[[], object], file: str, function: str) -> list[str]:
    """Return the functions of the package that are being called when a function is first reached.

    The outermost comes first, each as "decoding/search.py: search". `file` is the end of the path
    of the function's file, which may be PyTorch's: ("optim/adam.py", "step"). `run` runs to its
    end; comprehensions and frames of other packages are left out.
    """
    chain: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == function and code.co_filename.endswith(file):
            sys.setprofile(None)
            chain.extend(reversed(_callers(frame)))

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


def _callers(frame: FrameType | None) -> list[str]:
    """Return the functions of the package on the stack, the innermost first."""
    names = []
    while frame is not None:
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_name
        if path.is_relative_to(PACKAGE) and not name.startswith("<"):
            names.append(f"{path.relative_to(PACKAGE)}: {name}")
        frame = frame.f_back
    return names
