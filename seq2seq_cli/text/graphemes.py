"""Grapheme clusters: what readers take for one character, though it has several code points."""

from collections.abc import Iterable

import regex

from seq2seq_cli.config.text import is_symbol

_CLUSTER = regex.compile(r"\X")  # Unicode Standard Annex 29


def grapheme_clusters(lines: Iterable[str]) -> list[str]:
    """Return the different clusters of several code points, sorted.

    Those that no vocabulary can have as an entry, such as a mark on a space, are left out.
    """
    clusters = {cluster for line in lines for cluster in _CLUSTER.findall(line)}
    return sorted(x for x in clusters if len(x) > 1 and is_symbol(x))
