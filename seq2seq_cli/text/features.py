"""Features of a source: tokens before those of its text, such as V;PST of a lemma to inflect.

A source with features is one line: text, tab, features. In a vocabulary each feature is a control
symbol, which text cannot become.
"""

import re

TAB = "\t"
_SEPARATOR = re.compile(r"(?:[;|\s]|,(?![^(]*\)))+")  # NOM(2,PL) is one feature


def with_features(text: str, features: str) -> str:
    """Return the line of a source with its features; an empty text has none."""
    return f"{text.replace(TAB, ' ')}{TAB}{features}" if text.strip() else ""


def split_features(line: str) -> tuple[str, list[str]]:
    """Return the text of a source and its features, such as V, PST and 3 of `V;PST;3`."""
    text, _, features = line.partition(TAB)
    return text, [name for name in _SEPARATOR.split(features) if name]


def symbol_of(feature: str) -> str:
    """Return the entry of a feature in a vocabulary; pieces of text have no spaces."""
    return f"<feature {feature}>"
