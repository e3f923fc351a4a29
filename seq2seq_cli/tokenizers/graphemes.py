"""Grapheme clusters: what readers take for one character, though it has several code points."""

from collections import Counter
from collections.abc import Iterable

import regex

from seq2seq_cli.config.text import is_symbol

_CLUSTER = regex.compile(r"\X")  # Unicode Standard Annex 29


def grapheme_clusters(lines: Iterable[str], most: int) -> list[str]:
    """Return the most frequent clusters of several code points, sorted.

    Those that no vocabulary can have as an entry, such as a mark on a space, are left out.
    """
    counts = Counter(cluster for line in lines for cluster in _CLUSTER.findall(line))
    found = {x: count for x, count in counts.items() if len(x) > 1 and is_symbol(x)}
    return sorted(sorted(found, key=lambda x: (-found[x], x))[:most])
