"""American spelling and plain words in code, messages, help texts and English documents."""

import re
from pathlib import Path

from commands import ROOT

FILES = sorted(
    path
    for path in (ROOT / "seq2seq_cli").rglob("*")
    if path.suffix in {".py", ".c", ".js", ".html", ".css"}
)
FILES += sorted((ROOT / "configs").glob("*.yaml"))
FILES += sorted(
    page
    for folder in (".", "docs", "docs/tour", "examples", "benchmarks", "runs")
    for page in (ROOT / folder).glob("*.md")
    if not page.name.endswith(".zh-CN.md")
)
INSTEAD = {
    r"(un)?learnt": "learned",
    r"colour\w*": "color",
    r"behaviour\w*": "behavior",
    r"neighbour\w*": "neighbor",
    r"favour\w*": "favor",
    r"(initial|normal|token|optim|summar|general|visual|real|regular)is(e|ed|es|ing|ation)": "-ize",
    r"analys(e|ed|es|ing)": "analyze",
    r"cancelled(?!\()": "canceled",  # but Future.cancelled()
    r"centre\w*": "center",
    r"grey": "gray",
    r"those of": "the noun again, or a shorter sentence",
    r"that of": "the noun again, or a shorter sentence",
    r"beside": "next to, with, in addition to, compared with",
    r"nobody": "a passive, or who does not",
    r"whoever": "users who, or a passive",
    r"modelling": "modeling",
    r"judgement": "judgment",
    r"anew": "again",
    r"from which on": "at which, beyond which",
    r"bear high": "tolerate high",
}
PATTERN = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b", re.IGNORECASE)


def test_words_are_american_and_plain():
    advice = {str(path.relative_to(ROOT)): instead_of_words_in(path) for path in FILES}
    assert {path: instead for path, instead in advice.items() if instead} == {}


def instead_of_words_in(path: Path) -> dict[str, str]:
    """Return what to write instead of words of a file."""
    text = " ".join(path.read_text(encoding="utf-8").split())  # phrases may span lines
    if path.suffix == ".md":
        text = re.sub(r"```.*?```|`[^`]*`", "", text)  # code and output: `nobody` is a label
    found = {match[0] for match in PATTERN.finditer(text)}
    return {
        word: advice
        for word in found
        for pattern, advice in INSTEAD.items()
        if re.fullmatch(pattern, word, re.IGNORECASE)
    }
