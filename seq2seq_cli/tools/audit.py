"""What `check` says of a text: counts, suspicions, and the first lines of each kind.

Memory grows with the text by 24 bytes a line (hashes that find repeated lines, and ratios of
lengths), for a moment by some 100.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seq2seq_cli.config.text import Corpus, DataConfig
from seq2seq_cli.errors import UserError
from seq2seq_cli.text.corpus import Pair, read_pairs
from seq2seq_cli.text.io import bounded_lines, open_bytes
from seq2seq_cli.text.tokenizer import UNK_ID, Tokenizers
from seq2seq_cli.tools.duplicates import LineHashes, Overlap
from seq2seq_cli.tools.scripts import (
    CONTROL,
    REPLACEMENT,
    is_nfc,
    kind,
    looks_like_mojibake,
    shown,
)

OUTLIER_FACTOR = 3  # between a pair's ratio of lengths and the median
OUTLIER_TOKENS = 10  # of the longer side at least: ratios of short sentences say little

_MAIN_SHARE = 0.2  # of a side's letters: then a line should have some of that script
_EXAMPLES = 3
_COLUMNS = 72  # of an example
_LINES_AT_ONCE = 10_000

Ratios = npt.NDArray[np.float32]


@dataclass(frozen=True, order=True)
class Example:
    line: int  # counted from 1
    text: str  # as much as fits on a line of a screen


@dataclass
class Finding:
    """Lines that have something in common."""

    count: int = 0
    examples: list[Example] = field(default_factory=list)  # the first ones, if not said otherwise

    def add(self, line: int, *sides: str) -> None:
        self.count += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(_example(line, *sides))


@dataclass(frozen=True)
class SideAudit:
    """One side of all pairs that can be read and have no empty side."""

    tokens: int  # EOS included, as in batches
    unknown: int
    scripts: dict[str, float]  # shares of the letters, counting a letter once a line
    main_scripts: list[str]
    findings: dict[str, Finding]


@dataclass(frozen=True)
class LengthRatio:
    """Target tokens for each source token, EOS included."""

    median: float
    percentile_1: float
    percentile_99: float
    outliers: Finding  # OUTLIER_FACTOR away from the median; the farthest as examples


@dataclass(frozen=True)
class FileAudit:
    path: str
    lines: int
    byte_order_mark: bool
    crlf: int  # lines that end in it
    invalid_utf8: int


@dataclass(frozen=True)
class TextAudit:
    files: list[FileAudit]
    lines: int
    pairs: int  # that can be read and have no empty side
    findings: dict[str, Finding]
    src: SideAudit
    tgt: SideAudit
    length_ratio: LengthRatio
    repeated: Overlap  # lines that repeat an earlier one


def audit_text(
    corpus: Corpus, tokenizers: Tokenizers, data: DataConfig, like: TextAudit | None = None
) -> tuple[TextAudit, LineHashes]:
    """Read a text; its scripts should be those of `like`, or else its own.

    Raises UserError when it cannot be read or holds no pair.
    """
    findings = {name: Finding() for name in ("unreadable", "empty", "too_long", "copied")}
    src, tgt, ratios, fingerprints = _Side(), _Side(), _Ratios(), LineHashes()
    numbered = enumerate(read_pairs(corpus, data.on_bad_line), start=1)
    num_lines = num_pairs = 0
    while chunk := list(itertools.islice(numbered, _LINES_AT_ONCE)):
        num_lines += len(chunk)
        pairs: list[tuple[int, Pair]] = []
        for line, pair in chunk:
            if pair is None:
                findings["unreadable"].add(line, "")
            elif pair.is_empty:
                findings["empty"].add(line, *pair)
            else:
                pairs.append((line, pair))
            fingerprints.add(None if pair is None or pair.is_empty else pair)
        num_pairs += len(pairs)
        src_ids = tokenizers.src.to_ids_batch([pair.src for _, pair in pairs])
        tgt_ids = tokenizers.tgt.to_ids_batch([pair.tgt for _, pair in pairs])
        for (line, pair), *both in zip(pairs, src_ids, tgt_ids, strict=True):
            src.add(line, pair.src, both[0])
            tgt.add(line, pair.tgt, both[1])
            if max(map(len, both)) > data.max_length:
                findings["too_long"].add(line, *pair)
            if pair.src == pair.tgt and any(map(str.isalpha, pair.src)):
                findings["copied"].add(line, pair.src)
        ratios.add(pairs, src_ids, tgt_ids)
    if not num_pairs:
        reason = "there is no line that can be read"
        raise UserError(f"no pairs in {' and '.join(map(str, corpus.files))}: {reason}")
    audit = TextAudit(
        files=[_audit_file(path) for path in corpus.files],
        lines=num_lines,
        pairs=num_pairs,
        findings=findings,
        src=src.audit(like.src.main_scripts if like else None),
        tgt=tgt.audit(like.tgt.main_scripts if like else None),
        length_ratio=ratios.audit(),
        repeated=fingerprints.repeated(),
    )
    return audit, fingerprints


def _audit_file(path: Path) -> FileAudit:
    num_lines = crlf = invalid = 0
    with open_bytes(path) as file:
        begins_with_mark = file.read(3) == b"\xef\xbb\xbf"
    with open_bytes(path) as file:
        for raw in bounded_lines(file):
            num_lines += 1
            crlf += raw.endswith(b"\r\n")
            invalid += not _is_utf8(raw)
    return FileAudit(str(path), num_lines, begins_with_mark, crlf, invalid)


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _example(line: int, *sides: str) -> Example:
    return Example(line, " → ".join(shown(side, _COLUMNS // len(sides)) for side in sides))


class _Side:
    """Collects a SideAudit."""

    def __init__(self) -> None:
        self._tokens = self._unknown = 0
        self._letters: Counter[str] = Counter()
        self._by_kinds: dict[frozenset[str], Finding] = {}
        self._findings = {name: Finding() for name in ("mojibake", "not_nfc", "unknown")}

    def add(self, line: int, text: str, ids: list[int]) -> None:
        kinds = Counter(filter(None, map(kind, set(text))))
        self._letters.update(kinds)
        self._by_kinds.setdefault(frozenset(kinds), Finding()).add(line, text)
        unknown = ids.count(UNK_ID)
        self._tokens += len(ids) + 1
        self._unknown += unknown
        suspicions = {
            "mojibake": looks_like_mojibake(text),
            "not_nfc": not is_nfc(text),
            "unknown": unknown > 0,
        }
        for name, suspected in suspicions.items():
            if suspected:
                self._findings[name].add(line, text)

    def audit(self, main_scripts: list[str] | None) -> SideAudit:
        """`main_scripts`: of which every line should have letters; None: those found here."""
        letters = Counter(dict(self._letters))
        for sign in (CONTROL, REPLACEMENT):
            del letters[sign]
        scripts = {name: n / letters.total() for name, n in letters.most_common()}
        if main_scripts is None:
            main_scripts = [name for name, share in scripts.items() if share >= _MAIN_SHARE]
        found = {
            "wrong_script": [
                finding
                for kinds, finding in self._by_kinds.items()
                if kinds & scripts.keys() and main_scripts and kinds.isdisjoint(main_scripts)
            ],
            "control": [f for kinds, f in self._by_kinds.items() if CONTROL in kinds],
            "replaced": [f for kinds, f in self._by_kinds.items() if REPLACEMENT in kinds],
        }
        findings = {name: _joined(parts) for name, parts in found.items()} | self._findings
        return SideAudit(self._tokens, self._unknown, scripts, main_scripts, findings)


def _joined(findings: Sequence[Finding]) -> Finding:
    examples = sorted(itertools.chain.from_iterable(finding.examples for finding in findings))
    return Finding(sum(finding.count for finding in findings), examples[:_EXAMPLES])


class _Ratios:
    """Collects a LengthRatio."""

    def __init__(self) -> None:
        self._all: list[Ratios] = []
        self._of_long_pairs: list[Ratios] = []
        self._extremes: list[tuple[float, Example]] = []

    def add(
        self, pairs: list[tuple[int, Pair]], src_ids: list[list[int]], tgt_ids: list[list[int]]
    ) -> None:
        src, tgt = (np.array([len(i) + 1 for i in ids], np.float32) for ids in (src_ids, tgt_ids))
        ratios: Ratios = tgt / src
        self._all.append(ratios)
        is_long = np.maximum(src, tgt) >= OUTLIER_TOKENS
        self._of_long_pairs.append(ratios[is_long])
        order = [i for i in np.argsort(ratios, kind="stable") if is_long[i]]
        for i in {*order[:_EXAMPLES], *order[-_EXAMPLES:]}:
            line, pair = pairs[i]
            self._extremes.append((float(ratios[i]), _example(line, *pair)))
        self._extremes.sort()
        del self._extremes[_EXAMPLES:-_EXAMPLES]

    def audit(self) -> LengthRatio:
        ratios = np.concatenate(self._all)
        low, median, high = (float(x) for x in np.percentile(ratios, (1, 50, 99)))

        def distance(ratio: float) -> float:
            return abs(math.log(ratio / median))

        far = math.log(OUTLIER_FACTOR)
        count = int((np.abs(np.log(np.concatenate(self._of_long_pairs) / median)) > far).sum())
        extremes = sorted(self._extremes, key=lambda extreme: -distance(extreme[0]))
        examples = [example for ratio, example in extremes if distance(ratio) > far]
        return LengthRatio(median, low, high, Finding(count, examples[:_EXAMPLES]))
