"""The report of a distillation: quality, speed and size of teacher and student."""

import time
from collections.abc import Sequence
from typing import Any

from seq2seq_cli.commands.compare import System, compare_systems
from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.console import table
from seq2seq_cli.decoding.lines.stream import Job
from seq2seq_cli.decoding.translator import input_of
from seq2seq_cli.extras.distill.stages import Facts
from seq2seq_cli.metrics.metrics import Scoring
from seq2seq_cli.text.corpus import Pair, readable_pairs

_WARM_UP = 10  # lines, before speed is measured


def translated(name: str, job: Job, pairs: Sequence[Pair]) -> tuple[System, dict[str, Any]]:
    """Translate the sources of held-out pairs in this process; return how fast, and size, too."""
    translator = job.load()
    lines = [input_of(pair) for pair in pairs]
    translator.search(lines[:_WARM_UP], report=lambda issues: None)
    started = time.perf_counter()
    results = translator.search(lines, report=lambda issues: None)
    seconds = time.perf_counter() - started
    num_tokens = sum(len(best.tokens) + 1 for best, *_ in results)
    num_bytes = sum(member.weights(job.which).stat().st_size for member in job.members)
    size = {
        "system": name,
        "precision": translator.backend.precision,
        "sentences_per_second": len(lines) / seconds,
        "tokens_per_second": num_tokens / seconds,  # of its own vocabulary, EOS included
        "megabytes": num_bytes / 1e6,  # of the files of weights
    }
    references = [translator.tokenizers.tgt.normalize(pair.tgt) for pair in pairs]
    return System(name, [best.text for best, *_ in results], references), size


def make_report(
    source: Facts,
    translations: Facts,
    jobs: dict[str, Job],
    held_out: ParallelText,
    scoring: Scoring,
) -> Facts:
    """Return the output of `distill`, as text and as JSON; the first system is the teacher."""
    pairs = [pair for _, pair in readable_pairs(held_out, "skip")]
    measured = [translated(name, job, pairs) for name, job in jobs.items()]
    comparison = compare_systems([one for one, _ in measured], pairs, scoring, "bootstrap")
    rows = [["", "sentences/s", "tokens/s", "MB"]]
    for _, size in measured:
        numbers = ("sentences_per_second", "tokens_per_second", "megabytes")
        rows.append([size["system"], *(f"{size[name]:,.1f}" for name in numbers)])
    lines = [
        f"{'source':<16} {source['lines']:,}; dropped: {as_counts(source['dropped'])}",
        f"{'translations':<16} {source['kept']:,}; dropped: {as_counts(translations['dropped'])}",
        f"{'pairs':<16} {translations['pairs']:,}",
        f"{'held-out text':<16} {held_out.name}",
    ]
    report = {
        "source": source,
        "translations": {name: translations[name] for name in ("pairs", "dropped")},
        "held_out": held_out.name,
        "systems": [size for _, size in measured],
        **comparison.report(),
    }
    text = "\n".join(lines)
    return {"table": f"{text}\n\n{comparison.table()}\n\n{table(rows)}", "report": report}


def as_counts(dropped: dict[str, int]) -> str:
    """Return how many lines each rule dropped."""
    return ", ".join(f"{count:,} {rule}" for rule, count in dropped.items()) or "none"
