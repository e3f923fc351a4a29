"""Texts that a parser once took more time for than in proportion to their length."""

import pytest
from faults.superlinear import LENGTH, PARSERS, Part, growth

ATTACKS: list[tuple[str, list[Part]]] = [
    ("html", [("<sup>a", True), ("<", True)]),
    ("html", [("<sup>", True), ("1", False), ("</sup>", True)]),
    ("html", [("<b>", True), ("a</i>", True)]),
    ("html", [("<b>a. B", True), ("</b>", True)]),
    ("html", [("<b title='", False), ("x", True), ("'>a", False), (". B", True), ("</b>", False)]),
    ("html", [("<i>", True), ("<b>", True), ("a</i>", True)]),
    ("html", [("<a b='", True), ('<a b="', True)]),
    ("html", [("<code>a</code> b. ", True)]),
    ("html", [("<!--", True)]),
    ("html", [("<div>", True), ("<p>", True), ("<li>", True), ("</p>", True)]),
    ("html", [("<td translate=no>a", True), ("</ul><tr>", True)]),
    ("xml", [("<!--", True), ("<![CDATA[", True), ("<!A[", True)]),
    ("xml", [("<a>", True), ("</b>", True), ("<b>", True)]),
    ("markdown", [("[", True), ("a](", True)]),
    ("markdown", [(" *a", True), (" **a", True)]),
    ("markdown", [("***a* ", True)]),
    ("markdown", [("*a **b ", True), ("c*** ", True)]),
    ("markdown", [("[^a", True)]),
    ("markdown", [('[a](b "', True), ("[a](b '", True)]),
    ("markdown", [("[a](b", True), ("[a](<b", True)]),
    ("markdown", [("a <!--", True), ("https://", True), (".", True)]),
    ("markdown", [(" ", True), ("a", False)]),
    ("markdown", [("a", False), (" ", True), ("b", False)]),
    ("markdown", [("`", False), ("*a **b", True)]),
    ("WebVTT", [("</i>", True), ("a", False)]),
    ("WebVTT", [("<v ", True)]),
    ("SubRip", [("{\\", True)]),
    ("SubRip", [("<a b", True), ("<font ", True), ("<a ", False), (" ", True)]),
    ("sentences", [('."', True)]),
    ("glossary", [("a ", True)]),
    ("text", [("a ", True)]),
]


@pytest.mark.parametrize(("name", "parts"), ATTACKS)
def test_time_grows_with_the_text(name: str, parts: list[Part]):
    """Sixteen times the text would take 256 times the time if that were quadratic."""
    assert growth(PARSERS[name], parts, LENGTH // 4, 16) < 80
