"""References: several of a source, and the public test sets that sacreBLEU downloads."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.errors import UserError
from seq2seq_cli.text.corpus import Pair, read_pairs

Texts = Sequence[str]
References = Sequence[str | None]  # None for a line that has fewer references than others
LineGroup = Sequence[int]  # numbers of lines with the same source, from 0


def group_by_source(pairs: Sequence[Pair], *, merge: bool) -> list[LineGroup]:
    """Return the lines of each source that is to be scored: its only one or, with `merge`, all.

    Sources with other features or another tag differ.
    """
    groups: dict[object, list[int]] = {}
    for number, pair in enumerate(pairs):
        key = (pair.source_line, pair.tag) if merge else number
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def references_of(targets: Sequence[str], groups: Sequence[LineGroup]) -> list[References]:
    """Return as many texts of references as a source has at most; None where it has fewer."""
    return [
        [targets[group[n]] if n < len(group) else None for group in groups]
        for n in range(max(map(len, groups), default=1))
    ]


class PublicTestSet(NamedTuple):
    """A test set in sacreBLEU's folder."""

    name: str
    langs: str
    src: Path
    references: tuple[Path, ...]

    @property
    def text(self) -> ParallelText:
        """The source and the first reference."""
        return ParallelText.of(src=self.src, tgt=self.references[0])

    def read_references(self) -> list[list[str]]:
        """Return every reference translation of the whole text."""
        texts = (ParallelText.of(src=self.src, tgt=path) for path in self.references)
        return [[pair.tgt for pair in read_pairs(text) if pair] for text in texts]


def find_test_set(name: str, langs: str) -> PublicTestSet:
    """Return a test set of sacreBLEU, which downloads it into its folder if it is not there.

    Raises UserError for unknown names and languages, and if it cannot be downloaded.
    """
    from sacrebleu.dataset import DATASETS
    from sacrebleu.utils import get_reference_files, get_source_file

    if name not in DATASETS:
        near = ", ".join(difflib.get_close_matches(name, DATASETS)) or "see sacrebleu --list"
        raise UserError(f"sacreBLEU has no test set {name} (similar names: {near})")
    dataset = DATASETS[name]
    if langs not in dataset.langpairs:
        raise UserError(
            f"the test set {name} has no languages {langs} (valid: {', '.join(dataset.langpairs)})"
        )
    try:
        src, references = get_source_file(name, langs), get_reference_files(name, langs)
    except (Exception, SystemExit) as error:  # a damaged archive can raise anything
        raise UserError(
            f"sacreBLEU cannot provide {name} {langs} ({error}). Without a network, copy the "
            f"folder {dataset._outdir} from another machine; after an interrupted download, remove "
            "it"
        ) from None
    return PublicTestSet(name, langs, Path(src), tuple(map(Path, references)))
