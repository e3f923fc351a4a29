"""The tour keeps its word: its code runs and prints what it says, in both languages."""

import re
from pathlib import Path
from typing import Any

import make_figures
import pytest
from code_blocks import chinese, link_inputs, run_blocks, tour
from commands import ROOT

DOCS = ROOT / "docs"
PAGES = tour(DOCS)
FIRST, *CHAPTERS = PAGES


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


def check(page: Path) -> None:
    names: dict[str, Any] = {}
    ran = run_blocks(page, names)
    assert ran
    for block in ran:
        assert block.printed == block.shown, block.code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the inputs of the pages, and the model that the first page trains."""
    folder = tmp_path_factory.mktemp("tour")
    link_inputs(ROOT, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        check(FIRST)
    return folder


@pytest.mark.parametrize("page", CHAPTERS, ids=name_of)
def test_code_prints_what_the_page_shows(page, folder, monkeypatch):
    monkeypatch.chdir(folder)
    check(page)


def test_the_first_page_links_to_every_page():
    assert sorted(CHAPTERS) == sorted(
        page for page in (DOCS / "tour").glob("*.md") if not page.name.endswith(".zh-CN.md")
    )


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_both_languages_have_the_same_blocks_links_and_formulas(page):
    def parts(path: Path) -> tuple[list[str], list[str], list[str]]:
        text = path.read_text(encoding="utf-8")
        blocks = re.findall(r"^```\w+\n.*?^```", text, re.DOTALL | re.MULTILINE)
        prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        links = [link.replace(".zh-CN", "") for link in re.findall(r"\]\(([^)#]+)", prose)]
        return blocks, sorted(links), sorted(re.findall(r"\$([^$]+)\$", prose))

    english, twin = parts(page), parts(chinese(page))
    assert twin[:2] == english[:2]
    assert set(twin[2]) == set(english[2])


@pytest.mark.parametrize("page", [*PAGES, *map(chinese, PAGES)], ids=name_of)
def test_formulas_in_sentences_stand_where_github_renders_them(page):
    """After white space, before anything but a letter or digit, and without escapes."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for formula in re.finditer(r"\$([^$]+)\$", text):
        before, after = text[formula.start() - 1], text[formula.end()]
        assert before.isspace() and not after.isalnum(), formula[0]
        assert not re.search(r"\\[^a-zA-Z]", formula[1]), formula[0]


def test_every_figure_is_drawn_and_shown_and_small():
    pattern = r"!\[[^\]]+\]\((?:\.\./)*figures/([^)]+)\)"
    pages = [page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")]
    shown = {name for page in pages for name in re.findall(pattern, page)}
    files = {path.name for path in (DOCS / "figures").iterdir()}
    assert files == shown
    for name in make_figures.FIGURES:
        assert (DOCS / "figures" / name).stat().st_size <= 60_000


def test_figures_have_the_same_bytes_each_time(tmp_path):
    drawn = []
    for name in ("schedules.svg", "positions.png"):
        for _ in range(2):
            make_figures.save(make_figures.FIGURES[name]({}), tmp_path / name)
            drawn.append((tmp_path / name).read_bytes())
    assert drawn[::2] == drawn[1::2]
