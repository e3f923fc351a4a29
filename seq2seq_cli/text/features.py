"""Features of a source: tokens before those of its text, such as V;PST of a lemma to inflect.

In a vocabulary each feature is a control symbol, which text cannot become.
"""

TAB = "\t"  # between text and features in a line of sources


def feature_symbols(features: str) -> list[str]:
    """Return the vocabulary entries of features, such as those of V, PST and 3 for `V;PST;3`.

    Commas separate outside of parentheses: NOM(2,PL) is one feature. No piece of text is equal to
    an entry, as pieces have no spaces.
    """
    separated = []
    next_parenthesis = ""
    for character in reversed(features):
        if character in "()":
            next_parenthesis = character
        is_inner = character == "," and next_parenthesis == ")"
        separated.append(" " if character in ";|," and not is_inner else character)
    return [f"<feature {name}>" for name in "".join(reversed(separated)).split()]


def name_of_feature(symbol: str) -> str:
    """Return the feature that a vocabulary entry stands for."""
    return symbol[len("<feature ") : -1]
