"""Separates the pairs of a text that training needs from the ones that harm it.

Other processes apply the rules for single pairs to batches. This one reads, finds held-out
sentences and duplicates, and writes. So neither the order of the pairs nor any result depends on
the number of processes. Memory grows by the hashes of the pairs that are kept.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from seq2seq_cli import plugins
from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.console import is_stderr_watched
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.clean.language_scripts import scripts_of
from seq2seq_cli.extras.clean.outputs import Outputs, opened_outputs
from seq2seq_cli.extras.clean.rules import (
    RULES,
    Batch,
    Characters,
    Limits,
    Profile,
    Rule,
    Side,
    judge,
    profile_of,
)
from seq2seq_cli.extras.clean.seen_hashes import Hashes, SeenHashes, hashes_of
from seq2seq_cli.processes import ordered_pool
from seq2seq_cli.text.corpus import BadLineError, Pair, read_entries, readable_pairs

UNREADABLE, LANGUAGE = "unreadable", "language"
HELD_OUT, DUPLICATE, NEAR_DUPLICATE = "held_out", "duplicate", "near_duplicate"
# What only this process knows, in the order in which it is checked.
STATEFUL = {
    HELD_OUT: "a source of the held-out text",
    DUPLICATE: "the same text as an earlier pair",
    NEAR_DUPLICATE: "the same letters and digits as an earlier pair, ignoring case",
}
RULE_NAMES = (*RULES, LANGUAGE, *STATEFUL)  # --without

_LINES_AT_ONCE = 5_000
_CHARACTERS_AT_ONCE = 1 << 22
_PROFILED_BATCHES = 4  # at the start of the text

Numbered = tuple[int, Pair | BadLineError]


class Job(NamedTuple):
    """What a process needs to judge pairs by themselves."""

    rules: tuple[str, ...]
    limits: Limits
    profile: Profile
    languages: tuple[str, str] | None = None  # to identify

    def table(self) -> dict[str, Rule]:
        table = {name: rule for name, rule in RULES.items() if name in self.rules}
        if self.languages and LANGUAGE in self.rules:
            languages = plugins.load("clean", "languages")
            table[LANGUAGE] = languages.language_rule(*self.languages)
        return table


class Judged(NamedTuple):
    """The verdicts of `judge` about a batch, and the hashes of its pairs."""

    verdicts_N: "np.typing.NDArray[np.uint8]"
    exact_N: Hashes
    near_N: Hashes
    sources_N: Hashes


@dataclass
class Finding:
    """Pairs that a rule rejects."""

    meaning: str
    pairs: int = 0
    examples: list[tuple[int, str, str]] = field(default_factory=list)  # line, source, target


@dataclass
class Report:
    pairs: int
    kept: int
    findings: dict[str, Finding]


@dataclass(frozen=True)
class Settings:
    limits: Limits
    without: frozenset[str]  # rules
    languages: tuple[str, str] | None
    identifies_languages: bool
    num_examples: int
    num_processes: int


def clean(
    text: ParallelText, against: ParallelText | None, outputs: Outputs | None, settings: Settings
) -> Report:
    """Read a text, write its pairs to `outputs` if given, and return what was rejected.

    Raises UserError if the text or the held-out one cannot be read.
    """
    batches = batches_of(enumerate(read_entries(text), 1))
    head = list(itertools.islice(batches, _PROFILED_BATCHES))
    characters = Characters()
    profile = profile_of([pair for batch in head for pair in _pairs(batch)], characters)
    if settings.languages:
        named = [scripts_of(language) for language in settings.languages]
        src, tgt = (own or found for own, found in zip(named, profile.scripts, strict=True))
        profile = Profile(profile.ratio, (src, tgt))
    left_out = settings.without if against is not None else settings.without | {HELD_OUT}
    rules = tuple(name for name in RULE_NAMES if name not in left_out)
    identified = settings.languages if settings.identifies_languages else None
    job = Job(rules, settings.limits, profile, identified)
    table = job.table()
    meanings = {UNREADABLE: "a line that cannot be read"}
    meanings |= {
        name: rule.meaning.format_map(job.limits._asdict()) for name, rule in table.items()
    }
    meanings |= {name: meaning for name, meaning in STATEFUL.items() if name in rules}
    findings = {name: Finding(meaning) for name, meaning in meanings.items()}
    report = Report(0, 0, findings)
    sorter = _Sorter(report, list(table), settings.num_examples, _hashes_of_sources(against))
    with ExitStack() as stack:
        write = stack.enter_context(opened_outputs(outputs, has_features=text.has_features))
        bar = stack.enter_context(
            tqdm(unit=" pairs", unit_scale=True, disable=not is_stderr_watched())
        )
        batches = itertools.chain(head, batches)
        for batch, verdict in stack.enter_context(judged(batches, job, settings.num_processes)):
            for rule, line, entry in sorter.sort(batch, verdict):
                write(rule, line, entry)
            bar.update(len(batch))
        if not report.pairs:
            raise UserError(f"{text.name} has no lines")
    return report


@dataclass
class _Sorter:
    """Finds what depends on earlier pairs, and counts."""

    report: Report
    names: Sequence[str]  # of the rules whose numbers are verdicts, from 1
    num_examples: int
    held_out: SeenHashes
    exact: SeenHashes = field(default_factory=SeenHashes)
    near: SeenHashes = field(default_factory=SeenHashes)

    def sort(
        self, batch: list[Numbered], judged: Judged
    ) -> Iterator[tuple[str, int, Pair | BadLineError]]:
        """Yield the rule that rejects each pair, or "", with its line."""
        findings = self.report.findings
        left = np.flatnonzero(judged.verdicts_N == 0)
        stateful = np.full(len(judged.verdicts_N), "", object)
        for name, hashes, find in (
            (HELD_OUT, judged.sources_N, self.held_out.contain),
            (DUPLICATE, judged.exact_N, self.exact.add),
            (NEAR_DUPLICATE, judged.near_N, self.near.add),
        ):
            if name in findings:
                is_found = find(hashes[left])
                stateful[left[is_found]] = name
                left = left[~is_found]
        reasons = iter(zip(judged.verdicts_N.tolist(), stateful.tolist(), strict=True))
        for line, entry in batch:
            if isinstance(entry, BadLineError):
                rule = UNREADABLE
            else:
                verdict, late = next(reasons)
                rule = self.names[verdict - 1] if verdict else late
            self._count(rule, line, entry)
            yield rule, line, entry

    def _count(self, rule: str, line: int, entry: Pair | BadLineError) -> None:
        self.report.pairs += 1
        if not rule:
            self.report.kept += 1
            return
        finding = self.report.findings[rule]
        finding.pairs += 1
        if len(finding.examples) < self.num_examples:
            sides = (str(entry), "") if isinstance(entry, BadLineError) else entry[:2]
            finding.examples.append((line, *sides))


def _hashes_of_sources(text: ParallelText | None) -> SeenHashes:
    """Return hashes of the sources of a held-out text.

    Raises UserError if no line of one of its corpora can be read.
    """
    seen = SeenHashes()
    for corpus in text.corpora if text is not None else ():
        part, batch = ParallelText((corpus,)), None
        for batch in batches_of(readable_pairs(part, "skip")):
            seen.add(hashes_of(Side([pair.src for pair in _pairs(batch)], Characters()).keys))
        if batch is None:
            reason = next(read_entries(part), "it has no lines")
            raise UserError(f"--against {part.name}: no line can be read: {reason}")
    return seen


def batches_of(entries: Iterable[Numbered]) -> Iterator[list[Numbered]]:
    """Split numbered pairs into batches, bounded in lines and characters."""
    batch: list[Numbered] = []
    size = 0
    for number, entry in entries:
        batch.append((number, entry))
        size += 0 if isinstance(entry, BadLineError) else len(entry.src) + len(entry.tgt)
        if len(batch) == _LINES_AT_ONCE or size > _CHARACTERS_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@contextmanager
def judged(
    batches: Iterable[list[Numbered]], job: Job, num_processes: int
) -> Iterator[Iterator[tuple[list[Numbered], Judged]]]:
    """Yield all batches with their verdicts, which other processes find until the block ends."""
    taken: deque[list[Numbered]] = deque()  # `itertools.tee` would keep up to 57 batches

    def pairs() -> Iterator[list[Pair]]:
        for batch in batches:
            taken.append(batch)
            yield _pairs(batch)

    with ExitStack() as stack:
        if num_processes == 1:
            verdicts: Iterator[Judged] = map(_judge_of(job), pairs())
        else:
            verdicts = stack.enter_context(ordered_pool(num_processes, _judge_of, job))(pairs())
        yield ((taken.popleft(), verdict) for verdict in verdicts)


def _pairs(batch: Sequence[Numbered]) -> list[Pair]:
    return [entry for _, entry in batch if not isinstance(entry, BadLineError)]


def _judge_of(job: Job) -> Callable[[list[Pair]], Judged]:
    """Return a function that applies the rules of a job to pairs."""
    rules, characters = list(job.table().values()), Characters()

    def judge_pairs(pairs: list[Pair]) -> Judged:
        batch = Batch(pairs, characters, job.limits, job.profile)
        exact = [f"{pair.src}\t{pair.tgt}\t{pair.features}" for pair in pairs]
        near = [
            f"{src}\t{tgt}\t{pair.features}"
            for src, tgt, pair in zip(batch.src.keys, batch.tgt.keys, pairs, strict=True)
        ]
        return Judged(
            judge(batch, rules), hashes_of(exact), hashes_of(near), hashes_of(batch.src.keys)
        )

    return judge_pairs
