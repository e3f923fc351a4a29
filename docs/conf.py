"""Sphinx builds the site from the Markdown of the repository as it is: make docs.

The README is the front page. A page that links to others, as the README and the tour do, lists
them in the sidebar, so that no list of pages is written twice.
"""

import re
import shutil
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxTranslator

CONTENTS = {"README", "README.zh-CN", "docs/tour", "docs/tour.zh-CN"}

project = "seq2seq-cli"
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/tour/*.md", "examples/*.md", "benchmarks/*.md"]
exclude_patterns = [".*", "docs/_build", "runs", "build"]
extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 3
suppress_warnings = ["toc.not_included"]  # a test says what the README links to
html_theme = "furo"
html_title = project
html_copy_source = html_show_sourcelink = html_show_copyright = False


def add_toctree(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append the pages that a page of contents links to, in the order of its links."""
    if docname not in CONTENTS:
        return
    folder = Path(docname).parent
    linked = [folder / link for link in re.findall(r"\]\(([^):#]+)\.md\)", source[0])]
    pages = [str(page) for page in dict.fromkeys(linked) if str(page) in app.env.found_docs]
    entries = [f"/{page}" for page in pages if is_listed(docname, page)]
    if docname == root_doc:
        entries.insert(0, f"中文 </{root_doc}.zh-CN>")
    source[0] += "\n```{toctree}\n:hidden:\n\n" + "\n".join(entries) + "\n```\n"


def is_listed(contents: str, page: str) -> bool:
    """The README lists pages in its language, and the tour those of the tour."""
    is_same_language = page.endswith(".zh-CN") == contents.endswith(".zh-CN")
    is_of_tour = page.startswith("docs/tour/")
    return is_same_language and is_of_tour == contents.startswith("docs/tour") and page != root_doc


def mathml(translator: SphinxTranslator, node: nodes.Element) -> None:
    """Write a formula as MathML, which browsers show without a script from elsewhere."""
    is_block = isinstance(node, nodes.math_block)
    formula = tex2mathml(node.astext(), as_block=is_block)
    translator.body.append(f'<div style="padding: 1em 0">{formula}</div>' if is_block else formula)
    raise nodes.SkipNode


def add_index(app: Sphinx, error: Exception | None) -> None:
    """Give the front page the name that servers look for too."""
    if error is None and app.builder.name == "html":
        shutil.copy(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_toctree)
    app.connect("build-finished", add_index)
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))


html_math_renderer = "mathml"
