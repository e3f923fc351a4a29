"""Rules for the code that can be checked automatically."""

import ast
import functools
import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from commands import ROOT

from seq2seq_cli.config.safe_yaml import parse_yaml
from seq2seq_cli.plugins import EXTRAS

PACKAGE = ROOT / "seq2seq_cli"
LAYERS = [
    "errors",
    "machine processes console plugins native",
    "paths files",
    "run_folder weight_file",
    "config",
    "text",
    "tokenizers",
    "metrics",
    "data model",
    "decoding",
    "evaluation",
    "training",
    "commands",
    "cli",
    "__main__ __init__",
    "extras",
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names.split()}
FILES = sorted(PACKAGE.rglob("*.py"))


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative import"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def test_imports_go_one_way():
    for path in FILES:
        for name in (name for node in nodes_of(path) for name in imported_names(node)):
            package, *rest = name.split(".")
            if package == "seq2seq_cli" and rest and rest[0] in RANK:
                is_right = rest[0] == room(path) or RANK[rest[0]] < RANK[room(path)]
                assert is_right, f"{path} imports {name}"


def test_only_the_table_of_extras_imports_by_name():
    """The core reaches an extra through `plugins.py`; RANK has the extras above all of the core."""
    users = [path for path in FILES if "import_module" in path.read_text(encoding="utf-8")]
    assert users == [PACKAGE / "plugins.py"]


def test_an_extra_is_a_pip_extra_with_a_folder():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folders = {
        path.name for path in (PACKAGE / "extras").iterdir() if (path / "__init__.py").exists()
    }
    assert folders == set(EXTRAS) <= set(project["optional-dependencies"])


def test_users_can_install_the_extras_and_nothing_else():
    """The README lists the extras; what developing needs is in groups, which are not published."""
    file = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = {"clean", "convert", "distill", "serve", "inspect", "export", "hub", "plot", "ray"}
    extras |= {"bench", "elastic", "remote", "shard", "subwords", "tune"}
    assert set(file["project"]["optional-dependencies"]) == extras
    assert set(file["dependency-groups"]) == {"test", "test-extras", "check", "wheels", "docs"}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", readme, re.MULTILINE)
    assert extras <= set(re.findall(r"\w+", " ".join(rows)))


def test_every_folder_has_a_layer():
    assert {room(path) for path in FILES} == set(RANK)


def test_functions_have_at_most_60_lines():
    for path in FILES:
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                start = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                is_short = (node.end_lineno or start) - start < 60
                assert is_short, f"{path}: {node.name} is too long"


def test_cli_and_text_import_without_torch():
    modules = "seq2seq_cli.cli, seq2seq_cli.tokenizers.vocabulary"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_help_does_not_import_heavy_modules():
    heavy = {"torch", "numpy", "sentencepiece", "sacrebleu", "tensorboard"}
    code = (
        "import sys\nfrom seq2seq_cli.cli import main\nsys.argv = ['seq2seq', 'train', '--help']\n"
        f"try:\n    main()\nexcept SystemExit:\n    sys.exit(bool({heavy!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert done.returncode == 0
    assert b"Examples" in done.stdout


def test_no_pickle_or_eval_of_read_data():
    """Nothing that executes what it reads is imported, called, or enabled by an option."""
    modules = {"pickle", "marshal", "shelve", "dill", "joblib", "runpy", "code", "imp"}
    builtins = {"eval", "exec", "compile", "__import__"}
    attributes = {"torch.load", "np.load", "numpy.load", "yaml.unsafe_load", "yaml.full_load"}
    attributes |= {"os.system", "os.popen", "importlib.import_module", "torch.jit.load"}
    options = {"allow_pickle", "trust_remote_code", "shell"}
    for path in FILES:
        for node in nodes_of(path):
            for name in imported_names(node):
                assert name.split(".")[0] not in modules, f"{path.name} imports {name}"
            if isinstance(node, ast.Call):
                called, given = ast.unparse(node.func), {k.arg for k in node.keywords}
                is_table = path == PACKAGE / "plugins.py" and called == "importlib.import_module"
                is_safe = called == "torch.load" and "weights_only=True" in ast.unparse(node)
                is_allowed = is_table or is_safe or called not in builtins | attributes
                assert is_allowed, f"{path.name}: {called}"
                assert not given & options, f"{path.name} calls {called} with {given & options}"


def test_yaml_is_read_with_the_safe_loader_only():
    with pytest.raises(yaml.YAMLError, match="could not determine a constructor"):
        parse_yaml("!!python/object/apply:os.getpid []")
    for path in FILES:
        nodes = nodes_of(path)
        uses = [name for node in nodes for name in imported_names(node) if name == "yaml"]
        assert not uses or path.name in ("loader.py", "safe_yaml.py"), path


def test_dependencies_have_no_upper_bounds():
    """Users keep their newer versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = itertools.chain.from_iterable(project["optional-dependencies"].values())
    for requirement in (project["requires-python"], *project["dependencies"], *extras):
        assert not re.search(r"<|==|~=|!=", requirement), requirement


def test_tests_patch_nothing_of_the_package():
    """They use its public arguments and hooks, so that its modules can be rearranged."""
    for path in (ROOT / "tests").rglob("*.py"):
        nodes = nodes_of(path)
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        ours = {
            alias.asname or alias.name
            for node in imports
            if (node.module or "").startswith("seq2seq_cli")
            for alias in node.names
        }
        for node in nodes:
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "setattr":
                target = ast.unparse(node.args[0]).strip("'\"").split(".")[0]
                assert target not in {*ours, "seq2seq_cli"}, f"{path.name} patches {target}"
