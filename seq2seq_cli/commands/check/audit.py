"""Audits a text for `check`: counts, suspicious lines, and the first examples of each defect.

Memory grows by 20 bytes per line (hashes and length ratios).
"""

import codecs
import itertools
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from seq2seq_cli import plugins
from seq2seq_cli.config.text import DataConfig, ParallelText
from seq2seq_cli.data.tokenization import ids_of_pairs
from seq2seq_cli.text.corpus import BadLineError, Pair, files_of_lines, read_entries
from seq2seq_cli.text.leakage import LineHashes, Overlap
from seq2seq_cli.text.scripts import (
    CONTROL,
    REPLACEMENT,
    lacks_capitals,
    looks_like_mojibake,
    looks_split,
    looks_tokenized,
    main_scripts,
    script_of,
    truncate_for_terminal,
)
from seq2seq_cli.tokenizers.tokenizer import UNK_ID, Tokenizers

SHARED_RULES = ("copy", "ratio")  # of `clean`, which are also findings

_EXAMPLES = 3
_COLUMNS = 72  # of an example
_COLUMNS_OF_A_REASON = 500  # with the path of the file

_DEFECTS: dict[str, Callable[[str], bool]] = {  # of a side
    "mojibake": looks_like_mojibake,
    "not_nfc": lambda text: not unicodedata.is_normalized("NFC", text),
    "split": looks_split,
    "tokenized": looks_tokenized,
    "lower_case": lacks_capitals,
}


@dataclass(frozen=True, order=True)
class Example:
    line: int  # counted from 1
    text: str  # truncated to a line on the terminal


@dataclass
class Finding:
    """Lines with the same defect."""

    count: int = 0
    examples: list[Example] = field(default_factory=list)  # the first lines

    def add(self, line: int, *sides: str, columns: int = _COLUMNS) -> None:
        self.count += 1
        if len(self.examples) < _EXAMPLES:
            columns //= len(sides)
            text = " → ".join(truncate_for_terminal(side, columns) for side in sides)
            self.examples.append(Example(line, text))


@dataclass(frozen=True)
class SideAudit:
    """One side of all pairs that are readable and have no empty side."""

    tokens: int  # tags, features and EOS included, as in batches
    unknown: int
    scripts: dict[str, float]  # fractions of the letters, counting a letter once per line
    main_scripts: list[str]
    findings: dict[str, Finding]


@dataclass(frozen=True)
class LengthRatio:
    """The ratio of target tokens to source tokens; tags, features and EOS are counted."""

    median: float
    percentile_1: float
    percentile_99: float


@dataclass
class FileAudit:
    path: str
    lines: int = 0
    byte_order_mark: bool = False
    crlf: int = 0  # lines that end in CRLF
    invalid_utf8: int = 0


@dataclass(frozen=True)
class TextAudit:
    files: list[FileAudit]
    lines: int
    pairs: int  # readable and without an empty side
    findings: dict[str, Finding]
    src: SideAudit
    tgt: SideAudit
    length_ratio: LengthRatio
    repeated: Overlap  # lines that repeat an earlier one
    rejected: dict[str, int]  # pairs that `seq2seq clean` rejects, by its rules


def audit_text(
    text: ParallelText, tokenizers: Tokenizers, data: DataConfig, like: TextAudit | None = None
) -> tuple[TextAudit, LineHashes]:
    """Audit a text; its main scripts should be the main scripts of `like`, if given.

    The text has pairs. Raises UserError if it cannot be read.
    """
    names = ("unreadable", "empty", "too_long", "untagged", *SHARED_RULES)
    findings = {name: Finding() for name in names}
    is_tagged = ParallelText(data.train).is_tagged
    src, tgt, hashes = _SideCounter(), _SideCounter(), LineHashes()
    ratios: list[npt.NDArray[np.float32]] = []
    entries = enumerate(read_entries(text.once()), start=1)
    first_pairs, batches = plugins.load("clean", "cleaner").first_pairs_and_batches(entries)
    rejected = plugins.load("clean", "rules").RejectionCounter(first_pairs)
    for chunk in batches:
        pairs: list[tuple[int, Pair]] = []
        for line, entry in chunk:
            if isinstance(entry, BadLineError):
                if data.on_bad_line == "error":
                    raise entry
                findings["unreadable"].add(line, str(entry), columns=_COLUMNS_OF_A_REASON)
            elif entry.is_empty:
                findings["empty"].add(line, entry.src, entry.tgt)
            else:
                pairs.append((line, entry))
            hashes.add(None if isinstance(entry, BadLineError) or entry.is_empty else entry)
        all_ids = _ids_of([pair for _, pair in pairs], tokenizers)
        for (line, pair), (src_ids, tgt_ids) in zip(pairs, all_ids, strict=True):
            src.add(line, pair.src, src_ids, pair.features)
            tgt.add(line, pair.tgt, tgt_ids)
            if max(len(src_ids), len(tgt_ids)) > data.max_length:
                findings["too_long"].add(line, pair.src, pair.tgt)
            if is_tagged and not (pair.tag or tokenizers.src.begins_with_tag(pair.src)):
                findings["untagged"].add(line, pair.src)
        ratios.append(
            np.array([(len(tgt) + 1) / (len(src) + 1) for src, tgt in all_ids], np.float32)
        )
        rules = rejected.add([pair for _, pair in pairs])
        for (line, pair), rule in zip(pairs, rules, strict=True):
            if rule in SHARED_RULES:
                findings[rule].add(line, pair.src, pair.tgt)
    all_ratios = np.concatenate(ratios)
    parts = [part for corpus in text.corpora for part in corpus.parts()]
    audit = TextAudit(
        files=[_audit_file(*file) for part in parts for file in dict(files_of_lines(part)).items()],
        lines=len(hashes.sources),
        pairs=len(all_ratios),
        findings=findings,
        src=src.audit(like.src.main_scripts if like else None),
        tgt=tgt.audit(like.tgt.main_scripts if like else None),
        length_ratio=LengthRatio(*np.percentile(all_ratios, (50, 1, 99)).tolist()),
        repeated=hashes.repeated(),
        rejected=rejected.by_rule(),
    )
    return audit, hashes


def _ids_of(pairs: Sequence[Pair], tokenizers: Tokenizers) -> list[tuple[list[int], list[int]]]:
    """Return the ids of both sides, as in training.

    A vocabulary without features leaves out the features of other text, which `eval` would refuse.
    """
    if not tokenizers.src.features:
        pairs = [pair._replace(features="") for pair in pairs]
    return ids_of_pairs(pairs, tokenizers)


def _audit_file(name: str, lines: Iterator[bytes]) -> FileAudit:
    audit = FileAudit(name)
    for raw in lines:
        audit.byte_order_mark |= audit.lines == 0 and raw.startswith(codecs.BOM_UTF8)
        audit.lines += 1
        audit.crlf += raw.endswith(b"\r\n")
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError:
            audit.invalid_utf8 += 1
    return audit


class _SideCounter:
    """Collects a SideAudit line by line."""

    def __init__(self) -> None:
        self._tokens = self._unknown = 0
        self._letters: Counter[str] = Counter()
        self._by_scripts: dict[frozenset[str], Finding] = {}
        self._findings = {name: Finding() for name in (*_DEFECTS, "unknown")}

    def add(self, line: int, text: str, ids: list[int], features: str = "") -> None:
        scripts = Counter(filter(None, map(script_of, set(text))))
        self._letters.update(scripts)
        self._by_scripts.setdefault(frozenset(scripts), Finding()).add(line, text)
        num_unknown = ids.count(UNK_ID)
        self._tokens += len(ids) + 1
        self._unknown += num_unknown
        for name, has_defect in _DEFECTS.items():
            if has_defect(text):
                self._findings[name].add(line, text)
        if num_unknown:
            self._findings["unknown"].add(line, f"{features} {text}".lstrip())

    def audit(self, wanted: list[str] | None) -> SideAudit:
        """Return the audit; every line should have letters of the wanted scripts, or of its own."""
        letters = self._letters.copy()
        del letters[CONTROL], letters[REPLACEMENT]
        scripts = {name: n / letters.total() for name, n in letters.most_common()}
        wanted = main_scripts(letters) if wanted is None else wanted

        def lines_with(is_defect: Callable[[frozenset[str]], bool]) -> Finding:
            findings = [f for scripts, f in self._by_scripts.items() if is_defect(scripts)]
            examples = sorted(itertools.chain.from_iterable(f.examples for f in findings))
            return Finding(sum(finding.count for finding in findings), examples[:_EXAMPLES])

        findings = {
            "wrong_script": lines_with(
                lambda s: bool(s & scripts.keys() and wanted) and s.isdisjoint(wanted)
            ),
            "control": lines_with(lambda s: CONTROL in s),
            "replaced": lines_with(lambda s: REPLACEMENT in s),
        }
        return SideAudit(self._tokens, self._unknown, scripts, wanted, findings | self._findings)
