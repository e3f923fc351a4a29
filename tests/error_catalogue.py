"""The error messages of the source and of `docs/errors.md`, with … for variable parts.

A message is what is given to UserError and its kin, for options and lines to ValueError, or what
the `mistake` of a section returns; where that is a variable or a call of the same file, what that
holds or returns.
"""

import ast
import errno
import functools
import os
import re
from collections.abc import Iterator

from commands import ROOT

CATALOGUE = ROOT / "docs" / "errors.md"
ERRORS = {
    "UserError",
    "NotFiniteError",
    "BadLineError",
    "ProcessDiedError",
    "DamagedFileError",
    "ReplacedFileError",
    "_refusal",
}
SECTIONS = (
    "schema",
    "text",
    "text_files",
    "tokenizer",
    "decoding",
    "validation",
    "regularization",
)
FILES_WITH_VALUE_ERRORS = {*(f"config/{name}.py" for name in SECTIONS), "text/corpus.py"}
WORDED_ELSEWHERE = {"config/loader.py": ["_describe", "_unknown_option"]}
VARIES = "…"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def raised() -> dict[str, str]:
    """Every message of the source, with the name of its file."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "seq2seq_cli").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        every = [node for node in ast.walk(tree) if isinstance(node, Function)]
        functions = {function.name: function for function in every}
        file = path.relative_to(ROOT / "seq2seq_cli").as_posix()
        names = ERRORS | ({"ValueError"} if file in FILES_WITH_VALUE_ERRORS else set())
        messages = [
            text
            for function in every
            for call in ast.walk(function)
            if isinstance(call, ast.Call) and ast.unparse(call.func) in names
            for text in texts_of(call.args[0], function, functions)
        ]
        for function in every:
            if function.name in ("mistake", *WORDED_ELSEWHERE.get(file, ())):
                messages += returned(function, functions)
        found |= {tidy(text): path.name for text in messages if is_worded(text)}
    return found


def texts_of(node: ast.expr, function: ast.AST, functions: dict[str, Function]) -> Iterator[str]:
    """The strings that an expression may evaluate to."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.Constant) else VARIES for p in node.values)
        yield "".join(map(str, parts))
    elif isinstance(node, ast.BinOp):
        for left in texts_of(node.left, function, functions):
            yield from (left + right for right in texts_of(node.right, function, functions))
    elif isinstance(node, ast.IfExp):
        yield from texts_of(node.body, function, functions)
        yield from texts_of(node.orelse, function, functions)
    elif isinstance(node, ast.Name):
        assigned = [n for n in ast.walk(function) if isinstance(n, ast.Assign)]
        values = [n.value for n in assigned if getattr(n.targets[0], "id", "") == node.id]
        for value in values or [ast.Constant(VARIES)]:
            yield from texts_of(value, function, functions)
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in functions:
        yield from returned(functions[node.func.id], functions)
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "join":
        (lines,) = node.args
        first = lines.elts[0] if isinstance(lines, ast.List) else ast.Constant(VARIES)
        yield from texts_of(first, function, functions)
    else:
        yield VARIES


def returned(function: ast.FunctionDef, functions: dict[str, Function]) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield from texts_of(node.value, function, functions)


def is_worded(text: str) -> bool:
    """True unless the text only adds a position to another message, as `line …: …` does."""
    return bool(re.search(r"\w+\W+\w", text.replace(VARIES, "")))


def tidy(text: str) -> str:
    return re.sub(f"{VARIES}+", VARIES, " ".join(text.split()))


def documented() -> dict[str, str]:
    """Every message of the catalogue, with its cause and remedy."""
    text = CATALOGUE.read_text(encoding="utf-8")
    entries = re.findall(r"^- `(.+)`\n((?:  .+\n)+)", text, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^- ", text, re.MULTILINE)), "an entry has another form"
    assert len(entries) == len(dict(entries)), "an entry is there twice"
    return dict(entries)


def is_documented(message: str) -> bool:
    """Whether a printed message is one of the catalogue's, or the system's own."""
    line = " ".join(message.split())
    is_ours = any(re.search(pattern, line) for pattern in patterns())
    return is_ours or any(f": {os.strerror(number)}" in line for number in errno.errorcode)


@functools.cache
def patterns() -> list[str]:
    return [".*".join(map(re.escape, entry.split(VARIES))) for entry in documented()]
