"""Features of a source: tokens before those of its text, such as V;PST of a lemma to inflect.

In a vocabulary each feature is a control symbol, which text cannot become.
"""

import re

TAB = "\t"  # between text and features in a line of sources
_SEPARATOR = re.compile(r"(?:[;|\s]|,(?![^(]*\)))+")  # NOM(2,PL) is one feature


def feature_symbols(features: str) -> list[str]:
    """Return the vocabulary entries of features, such as those of V, PST and 3 for `V;PST;3`.

    No piece of text is equal to one of them, as pieces have no spaces.
    """
    return [f"<feature {name}>" for name in _SEPARATOR.split(features) if name]
