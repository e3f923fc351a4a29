"""Features of a source, such as V;PST of a lemma to inflect: control symbols before its text."""

import itertools

TAB = "\t"  # between text and features in a line of sources


def feature_symbols(features: str) -> list[str]:
    """Return the vocabulary entries of features, which no text equals: pieces have no spaces."""
    return [f"<feature {name}>" for name in feature_names(features)]


def feature_names(features: str) -> list[str]:
    """Return the features of `V;PST;3`, split outside of parentheses: ARGAC(1;SG) is one."""
    changes_of_depth, opened = [0] * len(features), []
    for place, character in enumerate(features):
        if character == "(":
            opened.append(place)
        elif character == ")" and opened:
            changes_of_depth[opened.pop()] += 1
            changes_of_depth[place] -= 1
    depths = itertools.accumulate(changes_of_depth)
    separated = (
        " " if character in ";|," and not depth else character
        for character, depth in zip(features, depths, strict=True)
    )
    return "".join(separated).split()
