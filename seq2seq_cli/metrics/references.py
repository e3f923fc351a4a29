"""Several references of a source: the targets of all lines that have it."""

from collections.abc import Sequence

from seq2seq_cli.metrics.significance import References
from seq2seq_cli.text.corpus import Pair

LineGroup = Sequence[int]  # numbers of lines with the same source, from 0


def group_by_source(pairs: Sequence[Pair], *, merge: bool) -> list[LineGroup]:
    """Return the lines of each source that is to be scored.

    With `merge`, lines of the same source, features and tag belong together, in the order of their
    first lines; otherwise every line is by itself.
    """
    if not merge:
        return [[number] for number in range(len(pairs))]
    groups: dict[tuple[str, str | None], list[int]] = {}
    for number, pair in enumerate(pairs):
        groups.setdefault((pair.source_line, pair.tag), []).append(number)
    return list(groups.values())


def references_of(targets: Sequence[str], groups: Sequence[LineGroup]) -> list[References]:
    """Return as many texts of references as a source has at most; None where it has fewer."""
    return [
        [targets[group[n]] if n < len(group) else None for group in groups]
        for n in range(max(map(len, groups), default=1))
    ]
