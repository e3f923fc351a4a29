"""What `check` found: a page of aligned lines, or the same as JSON."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from seq2seq_cli.text.sampling import LEAST_FREQUENCY
from seq2seq_cli.text.vocabulary import VocabularyAudit
from seq2seq_cli.tools.audit import (
    OUTLIER_FACTOR,
    Example,
    FileAudit,
    Finding,
    SideAudit,
    TextAudit,
)
from seq2seq_cli.tools.duplicates import Overlap, Repeats
from seq2seq_cli.tools.scripts import shown

_MANY_REPEATED = 0.1  # of a text's pairs
_MANY_UNKNOWN = 0.01  # of a side's tokens
_MANY_RARE = 0.1  # of a vocabulary's entries
_SCRIPTS_SHOWN = 3

_OF_PAIRS = {
    "unreadable": "that cannot be read",
    "empty": "with an empty side",
    "too_long": "over data.max_length, {max_length:,} tokens",
    "copied": "with the same text on both sides",
}
_OF_A_SIDE = {
    "wrong_script": "without a letter of {scripts}",
    "control": "with control characters, or with byte-order marks inside",
    "replaced": "with U+FFFD in place of characters that were lost",
    "mojibake": "with what seems to be UTF-8 read as Latin-1",
    "not_nfc": "not in Unicode's composed form, NFC",
}


@dataclass(frozen=True)
class Shape:
    """Of a batch; positions of every pair, padding included."""

    pairs: int
    src_positions: int
    tgt_positions: int


@dataclass(frozen=True)
class LongestBatches:
    """The batch of most positions and that of most work for attention, if they are two."""

    shapes: list[Shape]
    seconds: float  # of an update from one of them, at most
    peak_memory_mb: float  # resident, of all processes; on GPUs allocated, of the fullest
    growth_mb: float  # above the peak before: on a CPU that of reading the text


@dataclass(frozen=True)
class TimeEstimate:
    """Of updates alone: validating and saving are not counted."""

    updates: int  # that were timed
    seconds_per_update: float
    seconds_per_epoch: float
    seconds_to_the_end: float


class Warned(NamedTuple):
    text: str
    examples: list[Example]


@dataclass(frozen=True)
class Report:
    summary: str  # what `train` prints
    numbers: dict[str, Any]  # of the summary
    max_length: int
    vocabularies: dict[str, VocabularyAudit]  # of subwords that were learnt from this text
    texts: dict[str, TextAudit]  # train, valid, test
    overlaps: dict[str, Overlap]  # by "valid in train" and the like
    longest_batches: LongestBatches
    pace: TimeEstimate

    def report(self) -> dict[str, Any]:
        """What `check --json` prints."""
        return {
            "run": self.numbers,
            "vocabularies": {name: asdict(one) for name, one in self.vocabularies.items()},
            "texts": {name: asdict(text) for name, text in self.texts.items()},
            "overlap": {name: asdict(overlap) for name, overlap in self.overlaps.items()},
            "longest_batches": asdict(self.longest_batches),
            "time": asdict(self.pace),
            "warnings": [warning.text for warning in self.warnings()],
        }

    def page(self) -> str:
        """What `check` prints."""
        rows = [*self._of_the_texts(), *self._of_the_updates()]
        found = self.warnings()
        rows += [] if found else [("warnings", "none")]
        lines = [self.summary, *(f"{label:<16} {text}" for label, text in rows)]
        for warning in found:
            lines.append(f"{'WARNING':<16} {warning.text}")
            lines += [f"{'':<18} line {shown.line:,}: {shown.text}" for shown in warning.examples]
        return "\n".join(lines)

    def _of_the_texts(self) -> Iterator[tuple[str, str]]:
        train = self.texts["train"]
        ratio = train.length_ratio
        if "test" in self.texts:
            yield "test text", _held_out(self.texts["test"])
        yield "encoding", self._encoding()
        yield "scripts", f"source {_scripts(train.src)}; target {_scripts(train.tgt)}"
        yield "repeated", _repeated(train)
        if self.overlaps:
            shared = (f"{o.sources.count:,} {name}" for name, o in self.overlaps.items())
            yield "same sources", ", ".join(shared)
        yield (
            "length ratio",
            f"target/source tokens {ratio.median:.2f} in the median, {ratio.percentile_1:.2f} to "
            f"{ratio.percentile_99:.2f} in 98% of the pairs",
        )

    def _of_the_updates(self) -> Iterator[tuple[str, str]]:
        longest, pace = self.longest_batches, self.pace
        shapes = " and ".join(
            f"{shape.pairs:,} × ({shape.src_positions:,} + {shape.tgt_positions:,})"
            for shape in longest.shapes
        )
        yield (
            "longest batches",
            f"{shapes} positions; an update takes {longest.seconds:.2f} s at most; peak memory "
            f"{longest.peak_memory_mb:,.0f} MB, {longest.growth_mb:,.0f} MB of it for this",
        )
        yield (
            "time",
            f"{1000 * pace.seconds_per_update:,.1f} ms an update, "
            f"{_duration(pace.seconds_per_epoch)} an epoch, "
            f"{_duration(pace.seconds_to_the_end)} to the end, without validating and saving",
        )

    def warnings(self) -> list[Warned]:
        of_texts = [w for name, text in self.texts.items() for w in self._of_text(name, text)]
        of_overlaps = [
            Warned(f"{name}: {_overlap(overlap)}", [])
            for name, overlap in self.overlaps.items()
            if overlap.sources.count
        ]
        of_vocabularies = [
            Warned(f"{name}: {_rare(vocabulary)}", [])
            for name, vocabulary in self.vocabularies.items()
            if vocabulary.rare_characters > _MANY_RARE * vocabulary.entries
        ]
        return of_texts + of_overlaps + of_vocabularies

    def _of_text(self, name: str, text: TextAudit) -> Iterator[Warned]:
        def of_lines(where: str, finding: Finding, what: str) -> Iterator[Warned]:
            if finding.count:
                lines = f"{_counted(finding.count, 'line')} ({finding.count / text.lines:.2%})"
                yield Warned(f"{where}: {lines} {what}", finding.examples)

        for kind, what in _OF_PAIRS.items():
            what = what.format(max_length=self.max_length)
            yield from of_lines(name, text.findings[kind], what)
        what = f"with lengths {OUTLIER_FACTOR} times off the median ratio, or more"
        yield from of_lines(name, text.length_ratio.outliers, what)
        for where, side in ((f"{name} source", text.src), (f"{name} target", text.tgt)):
            for kind, what in _OF_A_SIDE.items():
                what = what.format(scripts=" or ".join(side.main_scripts))
                yield from of_lines(where, side.findings[kind], what)
            if side.unknown > _MANY_UNKNOWN * side.tokens:
                share = side.unknown / side.tokens
                what = f"with unknown tokens, {share:.2%} of all tokens"
                yield from of_lines(where, side.findings["unknown"], what)
        if text.repeated.pairs.count > _MANY_REPEATED * text.pairs:
            yield Warned(f"{name} repeats itself: {_repeated(text)}", [])

    def _encoding(self) -> str:
        notes = [
            note for text in self.texts.values() for file in text.files for note in _notes(file)
        ]
        return "; ".join(notes) or "UTF-8, no byte-order marks, lines end in LF"


def _notes(file: FileAudit) -> Iterator[str]:
    if file.byte_order_mark:
        yield f"{file.path} begins with a byte-order mark"
    if file.crlf:
        yield f"{file.path}: CRLF at the end of {_counted(file.crlf, 'line')}"
    if file.invalid_utf8:
        yield f"{file.path}: {_counted(file.invalid_utf8, 'line')} not UTF-8"


def _scripts(side: SideAudit) -> str:
    shares = list(side.scripts.items())[:_SCRIPTS_SHOWN]
    return ", ".join(f"{name} {share:.1%}" for name, share in shares) or "no letters"


def _repeated(text: TextAudit) -> str:
    pairs, sources = text.repeated.pairs, text.repeated.sources
    return (
        f"{_counted(pairs.count, 'whole pair')} ({pairs.count / text.pairs:.2%}) and "
        f"{_counted(sources.count, 'source')}{_examples(pairs if pairs.count else sources)}"
    )


def _rare(vocabulary: VocabularyAudit) -> str:
    rare, entries = vocabulary.rare_characters, vocabulary.entries
    characters = ", ".join(shown(character, 10) for character in vocabulary.examples)
    return (
        f"{rare:,} of {entries:,} entries ({rare / entries:.1%}) are single characters that occur "
        f"fewer than {LEAST_FREQUENCY} times ({characters}, ...); raise "
        "tokenizer.min_character_frequency"
    )


def _overlap(overlap: Overlap) -> str:
    return (
        f"{_counted(overlap.sources.count, 'source')} and "
        f"{_counted(overlap.pairs.count, 'whole pair')}, case aside{_examples(overlap.sources)}"
    )


def _examples(repeats: Repeats) -> str:
    shown = ", ".join(f"line {line:,} is line {first:,}" for line, first in repeats.examples)
    return f" ({shown})" if shown else ""


def _held_out(text: TextAudit) -> str:
    unknown, tokens = text.src.unknown + text.tgt.unknown, text.src.tokens + text.tgt.tokens
    return f"{text.pairs:,} pairs; {unknown / tokens:.2%} unknown tokens"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7_200 else f"{seconds / 3600:,.1f} h"
