"""Several references of a source: the targets of all lines that have it."""

from collections.abc import Sequence

from seq2seq_cli.text.corpus import Pair
from seq2seq_cli.text.significance import References

Lines = Sequence[int]  # numbers of lines, from 0


def lines_of_sources(pairs: Sequence[Pair], *, merges: bool) -> list[Lines]:
    """Return the lines of each source that is to be scored.

    With `merges`, lines of the same source, features and tag belong together, and the first of them
    determines the order; otherwise every line is by itself.
    """
    if not merges:
        return [[number] for number in range(len(pairs))]
    lines: dict[tuple[str, str | None], list[int]] = {}
    for number, pair in enumerate(pairs):
        lines.setdefault((pair.src, pair.tag), []).append(number)
    return list(lines.values())


def references_of_sources(targets: Sequence[str], lines: Sequence[Lines]) -> list[References]:
    """Return as many texts of references as a source has at most; None where it has fewer."""
    return [
        [targets[of_source[n]] if n < len(of_source) else None for of_source in lines]
        for n in range(max(map(len, lines), default=1))
    ]
