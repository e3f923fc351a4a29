"""The report of `check`: aligned lines of text, or the same as JSON."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from seq2seq_cli import plugins
from seq2seq_cli.commands.check.audit import SHARED_RULES, Example, Finding, SideAudit, TextAudit
from seq2seq_cli.config.tokenizer import SUBWORDS
from seq2seq_cli.console import counted
from seq2seq_cli.text.leakage import Overlap, Repeats
from seq2seq_cli.text.scripts import truncate_for_terminal
from seq2seq_cli.tokenizers.training_text import LEAST_FREQUENCY
from seq2seq_cli.tokenizers.vocabulary import VocabularyAudit

# Fractions above which `check` warns.
_MANY_REPEATED = 0.1  # of a text's pairs
_MANY_UNKNOWN = 0.01  # of a side's tokens
_FEWEST_SENTENCES = 5_000  # pairs; words, which characters or symbols are read of, need fewer
_MANY_PREPROCESSED = 0.8  # of a text's pairs, or more
_MANY_RARE = 0.1  # of a vocabulary's entries
_SCRIPTS_SHOWN = 3

_PAIR_DEFECTS = {
    "unreadable": "that cannot be read",
    "empty": "with an empty side",
    "too_long": "over data.max_length, {max_length:,} tokens",
    "untagged": "without a tag, which all training pairs have",
}
_SIDE_DEFECTS = {
    "wrong_script": "without a letter of {scripts}",
    "control": "with control characters or inner byte-order marks",
    "replaced": "with U+FFFD, which replaces lost characters",
    "mojibake": "with UTF-8 that seems to be decoded as Latin-1",
    "not_nfc": "not in Unicode's composed form, NFC",
    "split": "split into subwords (@@ or ▁), which scores take for words; join them, as with sed "
    "'s/@@ //g': train learns subwords with tokenizer.kind bpe or unigram",
}
# Of sentences, if most lines have the defect.
_PREPROCESSED = {
    "tokenized": "with spaces before commas and periods, or as in can 't; use detokenized text, as "
    "users write it",
    "lower_case": "without capital letters; use text with capitals, as users write it",
}


Warned = tuple[str, list[Example]]  # a message, and lines that show the defect


@dataclass(frozen=True)
class BatchShape:
    """The shape of a batch; positions include padding."""

    pairs: int
    src_positions: int
    tgt_positions: int


@dataclass(frozen=True)
class LongestBatches:
    """The batch with the most positions, and the one with the most attention weights."""

    shapes: list[BatchShape]
    seconds: float  # of the slower update
    peak_memory_mb: float  # resident, of all processes; on GPUs allocated, of the fullest one
    growth_mb: float  # above the peak before, which on a CPU is the peak of reading the text


@dataclass(frozen=True)
class TimeEstimate:
    """The measured time of updates, and the estimated time of validations."""

    updates: int  # that were timed
    seconds_per_update: float
    seconds_per_epoch: float
    validations: int
    seconds_of_validations: float
    seconds_to_the_end: float  # validations included; at most `training.max_hours`


@dataclass(frozen=True)
class Report:
    """Summary and `max_length` of a run, and the output of `check --json`."""

    summary: str  # as printed by `train`
    max_length: int
    run: dict[str, Any]  # the numbers of the summary
    vocabularies: dict[str, VocabularyAudit]  # of subwords, learned from this text
    texts: dict[str, TextAudit]  # train, valid, general, test
    overlap: dict[str, Overlap]  # by "valid in train" and the like
    longest_batches: LongestBatches
    time: TimeEstimate
    exports: dict[str, str | None]  # why a format cannot represent the model; None if it can

    def report(self) -> dict[str, Any]:
        """Return the output of `check --json`."""
        report = asdict(self)
        del report["summary"], report["max_length"]
        return report | {"warnings": [text for text, _ in self.warnings()]}

    def as_text(self) -> str:
        """Return the output of `check`."""
        rows = [*self._rows()]
        warnings = [*self.warnings()]
        rows += [] if warnings else [("warnings", "none")]
        lines = [self.summary, *(f"{label:<16} {text}" for label, text in rows)]
        for text, examples in warnings:
            lines.append(f"{'WARNING':<16} {text}")
            lines += [f"{'':<18} line {one.line:,}: {one.text}" for one in examples]
        return "\n".join(lines)

    def _rows(self) -> Iterator[tuple[str, str]]:
        train, longest, pace = self.texts["train"], self.longest_batches, self.time
        ratio = train.length_ratio
        if test := self.texts.get("test"):
            unknown = test.src.unknown + test.tgt.unknown
            share = unknown / (test.src.tokens + test.tgt.tokens)
            yield "test text", f"{counted(test.pairs, 'pair')}; {share:.2%} unknown tokens"
        yield "encoding", self._encoding()
        yield "scripts", f"source {_scripts(train.src)}; target {_scripts(train.tgt)}"
        yield "repeated", _repeated(train)
        yield "clean", _rejected(train)
        if self.overlap:
            counts = (f"{o.sources.count:,} {name}" for name, o in self.overlap.items())
            yield "same sources", ", ".join(counts)
        yield (
            "length ratio",
            f"target/source tokens {ratio.median:.2f} in the median, {ratio.percentile_1:.2f} to "
            f"{ratio.percentile_99:.2f} in 98% of the pairs",
        )
        validations = counted(pace.validations, "validation")
        shapes = " and ".join(
            f"{shape.pairs:,} × ({shape.src_positions:,} + {shape.tgt_positions:,})"
            for shape in longest.shapes
        )
        yield (
            "longest batches",
            f"{shapes} positions; an update takes {longest.seconds:.2f} s at most; peak memory "
            f"{longest.peak_memory_mb:,.0f} MB, of which {longest.growth_mb:,.0f} MB for these "
            "batches",
        )
        yield (
            "time",
            f"{1000 * pace.seconds_per_update:,.1f} ms per update, "
            f"{_duration(pace.seconds_per_epoch)} per epoch, "
            f"{_duration(pace.seconds_to_the_end)} in total, of which about "
            f"{_duration(pace.seconds_of_validations)} for {validations}",
        )
        yield "exports", plugins.load("export", "limits").exports_text(self.exports)

    def warnings(self) -> Iterator[Warned]:
        train, kinds = self.texts["train"], self.run["vocabulary"]["kind"].values()
        if train.pairs < _FEWEST_SENTENCES and {*SUBWORDS} & {*kinds}:
            few = f"train: {counted(train.pairs, 'pair')}, very little text for sentences"
            yield f"{few}: expect nonsense for new sentences", []
        for name, audit in self.texts.items():
            yield from self._text_warnings(name, audit)
        for name, overlap in self.overlap.items():
            if overlap.sources.count:
                sources = counted(overlap.sources.count, "source")
                pairs = counted(overlap.pairs.count, "identical pair")
                examples = _examples(overlap.sources)
                yield f"{name}: {sources} and {pairs}, ignoring case{examples}", []
        for name, vocabulary in self.vocabularies.items():
            rare, entries = vocabulary.rare_characters, vocabulary.entries
            if rare > _MANY_RARE * entries:
                characters = ", ".join(truncate_for_terminal(c, 10) for c in vocabulary.examples)
                yield (
                    f"{name}: {rare:,} of {entries:,} entries ({rare / entries:.1%}) are single "
                    f"characters that occur fewer than {LEAST_FREQUENCY} times ({characters}, "
                    "...); raise tokenizer.min_character_frequency",
                    [],
                )

    def _text_warnings(self, name: str, text: TextAudit) -> Iterator[Warned]:
        def warn(where: str, finding: Finding, defect: str) -> Iterator[Warned]:
            if finding.count:
                lines = f"{counted(finding.count, 'line')} ({finding.count / text.lines:.2%})"
                yield f"{where}: {lines} {defect}", finding.examples

        for key, defect in _PAIR_DEFECTS.items():
            yield from warn(name, text.findings[key], defect.format(max_length=self.max_length))
        for rule in SHARED_RULES:
            meaning = plugins.load("clean", "rules").meaning_of(rule)
            yield from warn(name, text.findings[rule], f"with {meaning}")
        kinds = self.run["vocabulary"]["kind"]
        for where, side, kind in (
            (f"{name} source", text.src, kinds["src"]),
            (f"{name} target", text.tgt, kinds["tgt"]),
        ):
            for key, defect in _SIDE_DEFECTS.items():
                defect = defect.format(scripts=" or ".join(side.main_scripts))
                yield from warn(where, side.findings[key], defect)
            if kind in SUBWORDS:
                for key, defect in _PREPROCESSED.items():
                    if side.findings[key].count >= _MANY_PREPROCESSED * text.pairs:
                        yield from warn(where, Finding(side.findings[key].count), defect)
            if side.unknown > _MANY_UNKNOWN * side.tokens:
                defect = f"with unknown tokens, {side.unknown / side.tokens:.2%} of all tokens"
                yield from warn(where, side.findings["unknown"], defect)
        if text.repeated.pairs.count > _MANY_REPEATED * text.pairs:
            yield f"{name} has many duplicates: {_repeated(text)}", []

    def _encoding(self) -> str:
        notes = []
        for file in (file for text in self.texts.values() for file in text.files):
            if file.byte_order_mark:
                notes.append(f"{file.path} begins with a byte-order mark")
            if file.crlf:
                notes.append(f"{file.path}: CRLF at the end of {counted(file.crlf, 'line')}")
            if file.invalid_utf8:
                notes.append(f"{file.path}: {counted(file.invalid_utf8, 'line')} not UTF-8")
        return "; ".join(notes) or "UTF-8, no byte-order marks, lines end in LF"


def _scripts(side: SideAudit) -> str:
    shares = list(side.scripts.items())[:_SCRIPTS_SHOWN]
    return ", ".join(f"{name} {share:.1%}" for name, share in shares) or "no letters"


def _repeated(text: TextAudit) -> str:
    pairs, sources = text.repeated.pairs, text.repeated.sources
    return (
        f"{counted(pairs.count, 'identical pair')} ({pairs.count / text.pairs:.2%}) and "
        f"{counted(sources.count, 'source')}{_examples(pairs if pairs.count else sources)}"
    )


def _rejected(text: TextAudit) -> str:
    total = sum(text.rejected.values())
    counts = ", ".join(f"{name} {count:,}" for name, count in text.rejected.items())
    rejected = (
        f"seq2seq clean rejects {counted(total, 'pair')} ({total / text.pairs:.2%}), not counting "
        "empty and repeated ones"
    )
    return f"{rejected}: {counts}" if counts else rejected


def _examples(repeats: Repeats) -> str:
    examples = ", ".join(f"line {line:,} is line {first:,}" for line, first in repeats.examples)
    return f" ({examples})" if examples else ""


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7_200 else f"{seconds / 3600:,.1f} h"
