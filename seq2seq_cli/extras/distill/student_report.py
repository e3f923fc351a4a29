"""The report of a distillation: quality, speed and size of teacher and student."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seq2seq_cli.commands.compare import Comparison, System, compare_systems
from seq2seq_cli.console import table
from seq2seq_cli.decoding.lines.stream import Job
from seq2seq_cli.decoding.translator import input_of
from seq2seq_cli.metrics.metrics import Scoring
from seq2seq_cli.text.corpus import Pair

_WARM_UP = 10  # lines


@dataclass(frozen=True)
class Size:
    """How fast a system translates the held-out text in one process, and how large it is."""

    system: str
    precision: str
    sentences_per_second: float
    tokens_per_second: float  # target tokens of its own vocabulary, EOS included
    megabytes: float  # of the files of weights


def translated(name: str, job: Job, pairs: Sequence[Pair]) -> tuple[System, Size]:
    """Translate the sources of held-out pairs, and measure it, without loading the models."""
    translator = job.load()
    lines = [input_of(pair) for pair in pairs]
    translator.search(lines[:_WARM_UP], report=lambda cuts: None)
    started = time.perf_counter()
    results = translator.search(lines, report=lambda cuts: None)
    seconds = time.perf_counter() - started
    num_tokens = sum(len(best.tokens) + 1 for best, *_ in results)
    num_bytes = sum(member.weights(job.which).stat().st_size for member in job.members)
    size = Size(
        name,
        translator.config.decoding.precision,
        len(lines) / seconds,
        num_tokens / seconds,
        num_bytes / 1e6,
    )
    references = [translator.tokenizers.tgt.normalize(pair.tgt) for pair in pairs]
    return System(name, [best.text for best, *_ in results], references), size


@dataclass(frozen=True)
class Report:
    """Teacher and student on held-out text, and what became of the source."""

    source: dict[str, Any]
    translations: dict[str, Any]
    held_out: str
    sizes: Sequence[Size]
    comparison: Comparison

    @classmethod
    def of(
        cls,
        source: dict[str, Any],
        translations: dict[str, Any],
        jobs: dict[str, Job],
        held_out: str,
        pairs: Sequence[Pair],
        scoring: Scoring,
    ) -> "Report":
        """Translate held-out pairs with every system, the first of which is the teacher."""
        measured = [translated(name, job, pairs) for name, job in jobs.items()]
        systems = [system for system, _ in measured]
        comparison = compare_systems(systems, pairs, scoring, "bootstrap")
        return cls(source, translations, held_out, [size for _, size in measured], comparison)

    def table(self) -> str:
        rows = [["", "sentences/s", "tokens/s", "MB"]]
        for size in self.sizes:
            speeds = (size.sentences_per_second, size.tokens_per_second, size.megabytes)
            rows.append([size.system, *(f"{number:,.1f}" for number in speeds)])
        text = [
            ("source", self.source["lines"], self.source),
            ("translations", self.source["kept"], self.translations),
        ]
        lines = [
            f"{label:<16} {count:,}; dropped: {_counts(facts['dropped'])}"
            for label, count, facts in text
        ]
        lines.append(f"{'pairs':<16} {self.translations['pairs']:,}")
        lines.append(f"{'held-out text':<16} {self.held_out}")
        return "\n".join(lines) + f"\n\n{self.comparison.table()}\n\n{table(rows)}"

    def report(self) -> dict[str, Any]:
        """Return the output of `distill --json`."""
        return {
            "source": self.source,
            "translations": {name: self.translations[name] for name in ("pairs", "dropped")},
            "held_out": self.held_out,
            "systems": [dict(vars(size)) for size in self.sizes],
            **self.comparison.report(),
        }


def _counts(dropped: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {rule}" for rule, count in dropped.items()) or "none"
