"""The documents keep their word: commands parse, names exist, links resolve, languages agree."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import ROOT, all_commands
from option_reads import sections_of

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.errors import UserError

README, CHINESE_README = ROOT / "README.md", ROOT / "README.zh-CN.md"
ENGLISH_ONLY = {"architecture.md", "errors.md", "reliability.md"}  # for those who read the code
FOLDERS = (".", "docs", "docs/tour", "examples", "runs", "benchmarks", "data")
DOCUMENTS = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.md"))]
TASKS = [
    p
    for folder in ("docs", "docs/tour")
    for p in sorted((ROOT / folder).glob("*.md"))
    if p.name not in ENGLISH_ONLY and not p.name.endswith(".zh-CN.md")
]
EXAMPLES = ROOT / "examples/README.md"
PAGES = {README: CHINESE_README, **{p: p.with_suffix(".zh-CN.md") for p in (*TASKS, EXAMPLES)}}
MADE_BY_THE_READER = ("mine", "new.", "all.", "data/multi30k")

# The terms of the literature, and the option or command that each belongs to. A reader searches
# for the one and needs the other: both stand in one paragraph, in both languages.
TERMS = {
    "batch size": ("批大小", "training.tokens_per_batch"),
    "beam search": ("束搜索", "--beam-size"),
    "causal mask": ("因果掩码", ""),
    "checkpoint averaging": ("检查点平均", "training.average_checkpoints"),
    "constrained decoding": ("约束解码", "--require"),
    "data-parallel": ("数据并行", "training.processes"),
    "deterministic": ("确定性", "verify-resume"),
    "early stopping": ("早停", "validation.patience"),
    "ensemble": ("模型集成", "--ensemble"),
    "exponential moving average": ("指数移动平均", "training.ema_decay"),
    "fine-tun": ("微调", "--from"),
    "gradient accumulation": ("梯度累积", "training.gradient_accumulation"),
    "gradient clipping": ("梯度裁剪", "training.max_grad_norm"),
    "greedy search": ("贪心搜索", "decoding"),
    "KV cache": ("KV 缓存", "decoding.engine"),
    "label smoothing": ("标签平滑", "training.label_smoothing"),
    "leakage": ("数据泄漏", ""),
    "length penalty": ("长度惩罚", "decoding.length_penalty"),
    "mixed precision": ("混合精度", "training.precision"),
    "n-best": ("n-best", "--n-best"),
    "nucleus sampling": ("核采样", "decoding.top_p"),
    "out of memory": ("显存不足", "training.tokens_per_batch"),
    "out-of-vocabulary": ("未登录词", "--replace-unk"),
    "padding mask": ("填充掩码", ""),
    "quantization": ("量化", "decoding.precision"),
    "teacher forcing": ("教师强制", ""),
    "warm-up": ("预热", "training.warmup_steps"),
    "weight tying": ("权重共享", "model.tie_embeddings"),
}


def blocks(path: Path, language: str) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def prose(path: Path) -> str:
    """The text without its code blocks, and without the options of others in the first columns."""
    text = path.read_text(encoding="utf-8")
    if path.name.startswith("coming_from."):
        text = re.sub(r"^\|[^|]*\|", "|", text, flags=re.MULTILINE)
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def commands(path: Path) -> list[str]:
    """The lines of the bash blocks, comments left out."""
    text = "\n".join(blocks(path, "bash"))
    lines = [line.split(" #")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def seq2seq_commands() -> Iterator[str]:
    """The command lines of this program in all pages, also those that torchrun starts."""
    for page in PAGES:
        for line in commands(page):
            _, separator, arguments = line.partition("-m seq2seq_cli ")
            if separator:
                yield f"seq2seq {arguments}"
            elif line.startswith("seq2seq "):
                yield line


SEQ2SEQ = sorted(set(seq2seq_commands()))


def test_both_languages_have_the_same_pages():
    assert len(PAGES) >= 10
    chinese = {page for folder in FOLDERS for page in (ROOT / folder).glob("*.zh-CN.md")}
    assert chinese == set(PAGES.values())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_chinese_page_has_the_same_commands(page):
    assert commands(PAGES[page]) == commands(page)
    configs = [[yaml.safe_load(text) for text in blocks(p, "yaml")] for p in (page, PAGES[page])]
    assert configs[0] == configs[1]
    assert blocks(page, "python") == blocks(PAGES[page], "python")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_chinese_page_has_the_same_sections_and_names_the_same_options(page):
    def headings(path: Path) -> list[int]:
        return [len(marks) for marks in re.findall(r"^(#+) ", prose(path), re.MULTILINE)]

    def table_rows(path: Path) -> int:
        return len(re.findall(r"^\|", prose(path), re.MULTILINE))

    chinese = PAGES[page]
    assert headings(chinese) == headings(page)
    assert table_rows(chinese) == table_rows(page)
    missing = options_in(prose(page)) ^ options_in(prose(chinese))
    # The Chinese README names what Chinese text needs.
    assert missing <= {"validation", "bleu_tokenize"} if page == README else not missing


def test_readme_has_commands():
    assert commands(README)[:3] == ["make demo", "make test", "make test-extras"]
    assert len(SEQ2SEQ) >= 40
    named = {line.split()[1] for line in SEQ2SEQ}
    assert named == set(all_commands())


@pytest.mark.parametrize("line", SEQ2SEQ)
def test_readme_commands_parse_and_their_files_exist(line):
    if "://" in line:
        pytest.importorskip("upath")
    words = shlex.split(line)[1:]
    name, *arguments = words
    command = all_commands()[name]
    if name == "bench":
        name, *arguments = arguments
        command = command.commands[name]
    context = command.make_context(name, arguments, resilient_parsing=False)
    for word in words[1:]:
        if word.startswith(("configs/", "data/")) and not word.startswith(MADE_BY_THE_READER):
            assert (ROOT / word).exists(), word
    for override in context.params.get("overrides") or ():
        assert is_option(override.split("=")[0]), override
    for option in context.params.get("allow_changed") or ():
        assert is_option(option), option


def is_option(name: str) -> bool:
    """Whether `training.lr` is an option of a config, or `training` a section."""
    annotation: Any = Config
    for part in name.split("."):
        if part.isdigit():  # of a corpus in a list
            continue
        fields = annotation.model_fields if hasattr(annotation, "model_fields") else {}
        if part not in fields:
            return False
        annotation = fields[part].annotation
        annotation = next(sections_of(annotation), annotation)
    return True


def options_in(text: str) -> set[str]:
    """What stands in `code` and has the form of a config option or an option of a command."""
    code = " ".join(re.findall(r"`([^`\n]+)`", text))
    sections = "|".join(Config.model_fields)
    dotted = re.findall(rf"(?<![\w./-])((?:{sections})(?:\.[a-z][\w]*)+)(?![\w/])", code)
    files = {"tokenizer.model", "model.safetensors", "model.bin", "model.npz"}
    return {*dotted, *re.findall(r"(?<![\w-])(--[a-z][\w-]+)", code)} - files


def command_options() -> set[str]:
    groups = list(all_commands().values())
    groups += [one for group in groups for one in getattr(group, "commands", {}).values()]
    parameters = [parameter for group in groups for parameter in group.params]
    options = {name for p in parameters for name in (*p.opts, *p.secondary_opts)}
    return options | {"--help", "--version", "--install-completion", "--logdir"}


def commands_of_schedulers(page: Path) -> list[str]:
    """The commands of other programs that a page shows: sbatch, parallel, kubectl and the like."""
    lines = "\n".join(blocks(page, "bash")).splitlines()
    return [line for line in lines if not re.search(r"\b(seq2seq|python|make) ", line)]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_options_named_in_documents_exist(path):
    if path.name == "CHANGELOG.md":
        return
    known = command_options()
    scripts = "".join(p.read_text() for p in (ROOT / "benchmarks").glob("*.py"))
    scripts += "".join(p.read_text() for p in (ROOT / "tests/faults").glob("*.py"))
    scripts += "".join(p.read_text() for p in (ROOT / "examples").glob("*.py"))
    jobs = "".join(p.read_text() for p in (ROOT / "examples/cluster").iterdir())
    known |= set(re.findall(r"--[a-z][\w-]+", jobs + " ".join(commands_of_schedulers(path))))
    for name in options_in(prose(path)):
        if name.startswith("--"):
            assert name in known or f'"{name}"' in scripts, name
        elif not (ROOT / name).exists():
            assert is_option(name), name


@pytest.mark.parametrize("page", [*PAGES, *PAGES.values()], ids=name_of)
def test_readme_configs_are_valid(page):
    for text in blocks(page, "yaml"):
        block = yaml.safe_load(text)
        if "training" in block:  # YAML 1.1 reads 1e-3 as text
            block["training"]["lr"] = float(block["training"]["lr"])
        Config.model_validate(block)
    assert page not in (README, CHINESE_README) or blocks(page, "yaml")
    for text in blocks(page, "python"):
        compile(text, page.name, "exec")


def anchors(path: Path) -> set[str]:
    """The fragments that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_document_links_and_anchors_have_targets(path):
    for link in re.findall(r"\]\(([^)]+)\)", prose(path).replace("\n", " ")):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_readme_links_to_every_page():
    """To those of the tour, its first page does."""
    for page in (README, CHINESE_README):
        links = set(re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")))
        tasks = PAGES.values() if page == CHINESE_README else PAGES
        names = {name_of(task) for task in tasks if task.parent.name != "tour"}
        assert names - {page.name} <= links
        assert {f"docs/{name}" for name in ENGLISH_ONLY} <= links


@pytest.mark.parametrize("term", TERMS)
def test_terms_of_the_literature_stand_beside_their_options(term):
    in_chinese, option = TERMS[term]
    for pages, word in ((PAGES.keys(), term), (PAGES.values(), in_chinese)):
        passages = [
            " ".join(passage.split())
            for page in pages
            for passage in re.split(r"\n\s*\n|\n(?=[|*] ?)", prose(page))
        ]
        having = [passage for passage in passages if word.lower() in passage.lower()]
        assert having, f"nothing speaks of {word}"
        assert any(option in passage for passage in having), f"{option} is not beside {word}"


def options_on_resume(policy: str) -> set[str]:
    """The options that configs/reference.yaml marks with this policy."""
    path: list[tuple[int, str]] = []
    options = set()
    for line in (ROOT / "configs/reference.yaml").read_text(encoding="utf-8").splitlines():
        if match := re.match(r"( *)(\w+):", line):
            indent = len(match[1])
            path = [*(part for part in path if part[0] < indent), (indent, match[2])]
            if line.endswith(f"# on resume: {policy}"):
                options.add(".".join(name for _, name in path))
    return options


def test_resuming_lists_the_options_that_may_change():
    free = options_on_resume("free")
    for page in (ROOT / "docs/resuming.md", ROOT / "docs/resuming.zh-CN.md"):
        lists = re.findall(r"(?:^[* ] .*\n)+", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert options_in(lists[0]) == free


@pytest.mark.parametrize("name", ["docs/training.md", "docs/training.zh-CN.md"])
def test_the_example_of_config_errors_is_what_is_printed(name, tmp_path, monkeypatch):
    (config,) = blocks(README, "yaml")
    mistakes = {"heads:": "head:", "lr: 1e-3": "lr: fast", "metric: bleu": "metric: belu"}
    for right, wrong in mistakes.items():
        assert config.count(right) == 1
        config = config.replace(right, wrong)
    (tmp_path / "mine").mkdir()
    for side in ("train.src", "train.tgt", "valid.src", "valid.tgt"):
        (tmp_path / "mine" / side).write_text("a b\n")
    (tmp_path / "mine.yaml").write_text(config)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as raised:
        load_config(Path("mine.yaml"))
    assert f"error: {raised.value}\n" in blocks(ROOT / name, "text")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_examples_of_output_have_the_labels_of_the_code(page):
    """The rows of summary and audit, and the numbers of `eval`."""
    files = (
        *("training/logging/summary.py", "commands/check/report.py", "config/metrics.py"),
        *("commands/init/init.py", "cli/init.py", "metrics/breakdowns.py"),
    )
    source = "".join((ROOT / "seq2seq_cli" / f).read_text(encoding="utf-8") for f in files)
    source += "".join(f'"{name} text"' for name in ("training", "validation", "test"))
    for text in blocks(page, "text"):
        if re.search(r"^(length ratio|training text|perplexity) ", text, re.MULTILINE):
            for label in re.findall(r"^([a-z_]+(?: [a-z]+)?) {2,}\S", text, re.MULTILINE):
                assert f'"{label}"' in source, label


def test_architecture_lists_every_folder():
    document = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    tree = document.split("```text\nseq2seq_cli/\n")[1].split("```")[0]
    folders, named = [ROOT / "seq2seq_cli"], set()
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip("│├─ "))) // 4
        folders[depth:] = [folders[depth - 1] / line.lstrip("│├─ ").split()[0]]
        named.add(folders[-1])
    files = (ROOT / "seq2seq_cli").rglob("*.py")
    assert named == {path.parent for path in files} - {ROOT / "seq2seq_cli"}


@pytest.mark.parametrize("page", [README, CHINESE_README], ids=name_of)
def test_readme_layout_names_what_is_there(page):
    tree = next(text for text in blocks(page, "text") if text.startswith("seq2seq_cli/"))
    rooms = set()
    for line in tree.splitlines():
        name = line.lstrip("│├└─ ").split()[0].rstrip("/")
        is_room = line.startswith(("├", "└"))
        assert (ROOT / "seq2seq_cli" / name if is_room else ROOT / name).exists(), name
        if is_room:
            rooms.add(name)
    folders = {p.name for p in (ROOT / "seq2seq_cli").iterdir() if p.is_dir()} - {"__pycache__"}
    assert folders <= rooms


@pytest.mark.parametrize("page", ["docs/architecture.md", "examples/README.md"])
def test_functions_named_in_documents_exist(page):
    named = re.findall(r"`([\w/]+\.py): (?:(\w+)\.)?(\w+)`", (ROOT / page).read_text("utf-8"))
    assert len(named) >= 20
    for file, of_class, name in named:
        in_package = [] if (ROOT / file).exists() else (ROOT / "seq2seq_cli").rglob(file)
        (path,) = in_package or [ROOT / file]
        source = path.read_text(encoding="utf-8")
        assert not of_class or f"class {of_class}" in source, f"{file}: {of_class}"
        pattern = rf"^ *(?:async )?(def|class) {name}\b|^{name}\b.* = "
        assert re.search(pattern, source, re.MULTILINE), f"{file}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_and_names_in_tables_exist(page):
    """`model/layers.py` exists, and the files of a cell hold the names that the cell gives."""
    for cell in re.findall(r"[^|\n]+", prose(page)):
        source = ""
        for file in re.findall(r"`((?:\w+/)+\w+\.py)`", cell):
            (path,) = [p for p in (ROOT / file, ROOT / "seq2seq_cli" / file) if p.exists()]
            if path.is_relative_to(ROOT / "seq2seq_cli"):
                source += path.read_text(encoding="utf-8")
        for name in re.findall(r"`([A-Z]\w+)`", cell) if source else ():
            assert re.search(rf"\b{name}\b", source), name


def test_documents_have_no_todo():
    for path in DOCUMENTS:
        assert "TODO" not in path.read_text(encoding="utf-8"), path.name


@pytest.mark.parametrize("page", ["docs/reliability.md", "examples/README.md"])
def test_tests_named_in_documents_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", text)
    assert len(named) >= 19
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), name
