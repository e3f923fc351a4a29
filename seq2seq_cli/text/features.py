"""Features of a source: tokens before those of its text, such as V;PST of a lemma to inflect.

In a vocabulary each feature is a control symbol, which text cannot become.
"""

TAB = "\t"  # between text and features in a line of sources


def feature_symbols(features: str) -> list[str]:
    """Return the vocabulary entries of features.

    No piece of text is equal to one, as pieces have no spaces.
    """
    return [f"<feature {name}>" for name in feature_names(features)]


def feature_names(features: str) -> list[str]:
    """Return the single features, such as V, PST and 3 of `V;PST;3`.

    Commas separate outside of parentheses: NOM(2,PL) is one feature.
    """
    separated = []
    next_parenthesis = ""
    for character in reversed(features):
        if character in "()":
            next_parenthesis = character
        is_inner = character == "," and next_parenthesis == ")"
        separated.append(" " if character in ";|," and not is_inner else character)
    return "".join(reversed(separated)).split()
