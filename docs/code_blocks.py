"""Runs the code blocks of a page, and compares or updates what the page says that they print.

A `text` block after a `python` or `bash` block shows what that prints on standard output; a line
`...` in it stands for lines that are left out. A `python` block without one prints nothing; a
`bash` block without one may print anything. The Python blocks of a page share a namespace. Of the
lines of a `bash` block, those that begin with `seq2seq` are run, in this process.
"""

import contextlib
import io
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from seq2seq_cli.cli import app

_RUN = re.compile(r"^```(python|bash)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.M)
_BLOCK = re.compile(r"^```\w+\n.*?^```\n", re.DOTALL | re.M)


class _Block(NamedTuple):
    """A block as the page has it."""

    language: str
    code: str
    shown: str


class Ran(NamedTuple):
    """A block that was run."""

    code: str
    shown: str  # what the page says that it prints
    printed: str


def tour(docs: Path) -> list[Path]:
    """Return the English pages of the tour, in the order in which they are read."""
    first = docs / "tour.md"
    linked = re.findall(r"\]\((tour/\w+\.md)\)", first.read_text(encoding="utf-8"))
    return [first, *(docs / name for name in dict.fromkeys(linked))]


def chinese(page: Path) -> Path:
    """Return the Chinese twin of a page."""
    return page.with_suffix(".zh-CN.md")


def link_inputs(root: Path, folder: Path) -> None:
    """Let code blocks that run in a folder read `data` and `configs`, and write elsewhere."""
    for name in ("data", "configs"):
        (folder / name).symlink_to(root / name, target_is_directory=True)


def run_blocks(page: Path, names: dict[str, Any]) -> list[Ran]:
    """Run the blocks of a page in the current folder; `names` are what they define."""
    return [_run(*block, page.name, names) for block in _blocks(page)]


def run_shown_commands(page: Path) -> list[Ran]:
    """Run those commands of a page, in the current folder, whose output it shows."""
    return [
        _run(*block, page.name, {}) if block.language == "bash" and block.shown else Ran("", "", "")
        for block in _blocks(page)
    ]


def update(page: Path, ran: Sequence[Ran]) -> None:
    """Write what the blocks print into the page, and all blocks of the page into its twin."""
    text = page.read_text(encoding="utf-8")
    outputs = iter(ran)

    def with_output(match: re.Match[str]) -> str:
        printed = next(outputs).printed
        shown = f"\n```text\n{printed}```\n" if printed else ""
        return f"```{match[1]}\n{match[2]}```\n{shown}"

    text = _RUN.sub(with_output, text)
    page.write_text(text, encoding="utf-8")
    twin, blocks = chinese(page), _BLOCK.findall(text)
    written = twin.read_text(encoding="utf-8")
    assert len(_BLOCK.findall(written)) == len(blocks), f"{twin} has another number of blocks"
    replaced = iter(blocks)
    twin.write_text(_BLOCK.sub(lambda _: next(replaced), written), encoding="utf-8")


def _blocks(page: Path) -> list[_Block]:
    return [_Block(*found) for found in _RUN.findall(page.read_text(encoding="utf-8"))]


def _run(language: str, code: str, shown: str, page: str, names: dict[str, Any]) -> Ran:
    if language == "bash":
        output_of_commands = "".join(map(_run_command, code.splitlines()))
        printed = output_of_commands if shown else ""
    else:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(code, page, "exec"), names)
        printed = output.getvalue()
    return Ran(code, shown, _leave_out(printed, shown) if "\n...\n" in shown else printed)


def _leave_out(printed: str, shown: str) -> str:
    """Leave out the lines whose first word is not shown, with `...` in their place."""
    first_words = {line.split()[0] for line in shown.splitlines() if line}
    lines: list[str] = []
    for line in printed.splitlines():
        is_shown = not line or line.split()[0] in first_words
        if is_shown or lines[-1] != "...":
            lines.append(line if is_shown else "...")
    return "\n".join([*lines, ""])


def _run_command(line: str) -> str:
    program, *arguments = shlex.split(line)
    if program != "seq2seq":
        return ""
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, f"{line}: {result.stderr}"
    return result.stdout
