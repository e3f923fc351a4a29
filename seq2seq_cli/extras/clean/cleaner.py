"""Separates the pairs of a text that training needs from the ones that harm it.

Other processes apply the rules for single pairs to batches. This one reads, finds held-out
sentences and duplicates, and writes. So neither the order of the pairs nor any result depends on
the number of processes. Memory grows by the hashes of the pairs that are kept.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from seq2seq_cli import plugins
from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.console import is_stderr_watched
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.clean import rules
from seq2seq_cli.extras.clean.language_scripts import scripts_of
from seq2seq_cli.extras.clean.outputs import Outputs, opened_outputs
from seq2seq_cli.extras.clean.seen_hashes import Hashes, Mask, SeenHashes, hashes_of
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
RULE_NAMES = (*rules.RULES, LANGUAGE, *STATEFUL)  # --without

_LINES_AT_ONCE = 5_000
_CHARACTERS_AT_ONCE = 1 << 22
_PROFILED_BATCHES = 4  # at the start of the text


Entry = Pair | BadLineError
Numbered = tuple[int, Entry]


class Job(NamedTuple):
    """What a process needs to judge pairs by themselves."""

    names: Sequence[str]  # of rules
    limits: rules.Limits
    profile: rules.Profile
    languages: tuple[str, str] | None = None

    def table(self) -> dict[str, rules.Rule]:
        table = {name: rule for name, rule in rules.RULES.items() if name in self.names}
        if LANGUAGE in self.names and self.languages:
            languages = plugins.load("clean", "languages")
            table[LANGUAGE] = languages.language_rule(*self.languages)
        return table


class Judged(NamedTuple):
    """The verdicts of `judge` about a batch, and the hashes of its pairs by rule of `STATEFUL`."""

    verdicts_N: "np.typing.NDArray[np.uint8]"
    hashes_N: dict[str, Hashes]


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

    def count(self, rule: str, line: int, entry: Entry, num_examples: int) -> None:
        """Count a pair with the rule that rejects it, or ""."""
        self.pairs += 1
        if not rule:
            self.kept += 1
            return
        finding = self.findings[rule]
        finding.pairs += 1
        if len(finding.examples) < num_examples:
            sides = (str(entry), "") if isinstance(entry, BadLineError) else entry[:2]
            finding.examples.append((line, *sides))


@dataclass(frozen=True)
class Settings:
    limits: rules.Limits
    without: frozenset[str]  # rules
    languages: tuple[str, str] | None
    num_examples: int
    num_processes: int


def clean(
    text: ParallelText, against: ParallelText | None, outputs: Outputs | None, settings: Settings
) -> Report:
    """Read a text, write its pairs to `outputs` if given, and return what was rejected.

    Raises UserError if the text or the held-out one cannot be read.
    """
    first_pairs, batches = first_pairs_and_batches(enumerate(read_entries(text), 1))
    profile = rules.profile_of(first_pairs, rules.Characters())
    if settings.languages:
        named = [scripts_of(language) for language in settings.languages]
        src, tgt = (own or found for own, found in zip(named, profile.scripts, strict=True))
        profile = rules.Profile(profile.ratio, (src, tgt))
    left_out = settings.without | ({HELD_OUT} if against is None else set())
    names = [name for name in RULE_NAMES if name not in left_out]
    job = Job(names, settings.limits, profile, settings.languages)
    finders = {
        HELD_OUT: _hashes_of_sources(against).contain,
        DUPLICATE: SeenHashes().add,
        NEAR_DUPLICATE: SeenHashes().add,
    }
    finders = {name: find for name, find in finders.items() if name in names}
    limits, table = job.limits._asdict(), job.table()
    meanings = {UNREADABLE: "a line that cannot be read"}
    meanings |= {name: rule.meaning.format_map(limits) for name, rule in table.items()}
    meanings |= {name: STATEFUL[name] for name in finders}
    report = Report(0, 0, {name: Finding(meaning) for name, meaning in meanings.items()})
    with (
        opened_outputs(outputs, has_features=text.has_features) as write,
        tqdm(unit=" pairs", unit_scale=True, disable=not is_stderr_watched()) as bar,
        judged(batches, job, settings.num_processes) as verdicts,
    ):
        for batch, found in verdicts:
            reasons = iter(_reasons(found, [*table], finders))
            for line, entry in batch:
                rule = UNREADABLE if isinstance(entry, BadLineError) else next(reasons)
                report.count(rule, line, entry, settings.num_examples)
                write(rule, line, entry)
            bar.update(len(batch))
        if not report.pairs:
            raise UserError(f"{text.name} has no lines")
    return report


def _reasons(
    judged: Judged, names: Sequence[str], finders: Mapping[str, Callable[[Hashes], Mask]]
) -> list[str]:
    """Return the rule that rejects each pair, or ""; `finders` know the earlier pairs."""
    reasons_N = np.array(["", *names], object)[judged.verdicts_N]
    left = np.flatnonzero(judged.verdicts_N == 0)
    for name, find in finders.items():
        is_found = find(judged.hashes_N[name][left])
        reasons_N[left[is_found]] = name
        left = left[~is_found]
    return list(reasons_N)


def _hashes_of_sources(text: ParallelText | None) -> SeenHashes:
    """Return hashes of the sources of held-out text; UserError for a corpus that has none."""
    seen = SeenHashes()
    for corpus in text.corpora if text is not None else ():
        part, batch = ParallelText((corpus,)), None
        for batch in batches_of(readable_pairs(part, "skip")):
            side = rules.Side([pair.src for pair in _pairs(batch)], rules.Characters())
            seen.add(hashes_of(side.keys))
        if batch is None:
            reason = next(read_entries(part), "it has no lines")
            raise UserError(f"--against {part.name}: no line can be read: {reason}")
    return seen


def first_pairs_and_batches(
    entries: Iterable[Numbered],
) -> tuple[list[Pair], Iterator[list[Numbered]]]:
    """Return the first pairs, which say what is usual in a text, and all batches."""
    batches = batches_of(entries)
    head = list(itertools.islice(batches, _PROFILED_BATCHES))
    return [pair for batch in head for pair in _pairs(batch)], itertools.chain(head, batches)


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

    pool = ordered_pool(num_processes, _judge_of, job)
    with pool if num_processes > 1 else nullcontext(partial(map, _judge_of(job))) as apply:
        yield ((taken.popleft(), verdict) for verdict in apply(pairs()))


def _pairs(batch: Sequence[Numbered]) -> list[Pair]:
    return [entry for _, entry in batch if not isinstance(entry, BadLineError)]


def _judge_of(job: Job) -> Callable[[list[Pair]], Judged]:
    """Return a function that applies the rules of a job to pairs."""
    table, characters = list(job.table().values()), rules.Characters()

    def judge_pairs(pairs: list[Pair]) -> Judged:
        batch = rules.Batch(pairs, characters, job.limits, job.profile)
        exact = [f"{pair.src}\t{pair.tgt}\t{pair.features}" for pair in pairs]
        near = [
            f"{src}\t{tgt}\t{pair.features}"
            for src, tgt, pair in zip(batch.src.keys, batch.tgt.keys, pairs, strict=True)
        ]
        keys = {HELD_OUT: batch.src.keys, DUPLICATE: exact, NEAR_DUPLICATE: near}
        hashes = {name: hashes_of(texts) for name, texts in keys.items()}
        return Judged(rules.judge(batch, table), hashes)

    return judge_pairs
