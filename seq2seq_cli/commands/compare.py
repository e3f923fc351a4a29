"""`seq2seq compare`: scores systems on one text, and tests whether they differ significantly."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq_cli.config.loader import validation_of
from seq2seq_cli.config.metrics import METRICS, Metric
from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.config.types import BleuTokenize
from seq2seq_cli.console import counted, table
from seq2seq_cli.decoding.lines.issues import Issues
from seq2seq_cli.decoding.translator import Translator, check_features
from seq2seq_cli.errors import UserError
from seq2seq_cli.evaluation import valid_text
from seq2seq_cli.metrics.metrics import Scoring, TextScore, statistics_of, text_score
from seq2seq_cli.metrics.references import (
    PublicTestSet,
    References,
    Texts,
    group_by_source,
    references_of,
)
from seq2seq_cli.metrics.significance import PAIRED_TESTS, RESAMPLES, TestName
from seq2seq_cli.text.corpus import Pair, readable_pairs
from seq2seq_cli.text.io import lines_to_translate
from seq2seq_cli.text.quoting import normalize_spaces

logger = logging.getLogger(__name__)


class System(NamedTuple):
    """A system's translations, and the references with its normalization."""

    name: str
    hypotheses: Texts
    references: Texts


Run = tuple[str, Translator]


def scoring_of(
    runs: Sequence[Run],
    overrides: Sequence[str],
    tokenize: BleuTokenize | None,
    *,
    lowercase: bool,
    metrics: str | None,
    test_set: PublicTestSet | None,
) -> Scoring:
    """Return the scoring of the first run, or the default with `overrides`, with other options."""
    if runs:
        scoring = Scoring.of_run(runs[0][1].config, metrics, test_set=test_set)
    else:
        scoring = Scoring.of(validation_of(overrides), metrics, test_set=test_set)
    return replace(
        scoring, tokenize=tokenize or scoring.tokenize, lowercase=lowercase or scoring.lowercase
    )


def read_systems(
    runs: Sequence[Run],
    files: Sequence[Path],
    text: ParallelText | None,
    *,
    tag: str | None,
    merge: bool,
) -> tuple[list[System], list[Pair]]:
    """Translate a text with runs and read other translations from files; also return its pairs.

    The default text is the validation text of the first run, of the `tag` if it is given. A source
    that occurs twice is sampled once only with `merge`. Raises UserError if there is no text, or if
    the number of translations in a file differs from the number of lines.
    """
    if text is None and not runs:
        raise UserError("give the text: --src and --ref, --pairs, or --test-set and --langs")
    if text is None:
        name, run = runs[0]  # whose own tag the other runs do not have
        text = valid_text(run.config.updated(decoding={"tag": tag}), Path(name), tag)
    # Skipping a line would shift the translations in files.
    on_bad_line = "error" if files else runs[0][1].config.data.on_bad_line
    pairs = [pair for _, pair in readable_pairs(text, on_bad_line)]
    if not pairs:
        raise UserError(f"there is no text in {text.name}")
    for _, run in runs:
        check_features(pairs, run.tokenizers, text.name)
    read = []
    for path in files:
        lines = list(lines_to_translate(path))
        if len(lines) != len(pairs):
            raise UserError(
                f"{path} has {len(lines):,} translations, but the text has {len(pairs):,} lines"
            )
        read.append(System(str(path), lines, [normalize_spaces(pair.tgt) for pair in pairs]))
    systems, issues = [], list[Issues]()
    for name, run in runs:
        groups = group_by_source(pairs, merge=merge or not run.config.decoding.sampling)
        hypotheses = [""] * len(pairs)
        translations = run.translate_pairs([pairs[first] for first, *_ in groups], issues.append)
        for group, hypothesis in zip(groups, translations, strict=True):
            for number in group:
                hypotheses[number] = hypothesis
        references = [run.tokenizers.tgt.normalize(pair.tgt) for pair in pairs]
        systems.append(System(name, hypotheses, references))
    for distinct in dict.fromkeys(issues):  # runs that cut the same lines warn once
        distinct.report()
    return [*systems, *read], pairs


class Result(NamedTuple):
    system: str
    score: TextScore
    p_value: float | None  # of the difference from the first system; None for that


@dataclass(frozen=True)
class Comparison:
    """The scores of all systems by each metric; the output of `compare`."""

    test: TestName
    trials: int
    num_lines: int
    num_sources: int  # fewer than lines if references were merged
    results: dict[Metric, list[Result]]

    def table(self) -> str:
        title = f"{PAIRED_TESTS[self.test].title}, {self.trials:,} trials"
        size = counted(self.num_lines, "line")
        if self.num_sources < self.num_lines:
            size += f" with {counted(self.num_sources, 'different source')}"
        parts = [f"{size}; p-value against the first system: {title}"]
        for name, results in self.results.items():
            rows = [[name, "score", "p-value"]]
            for system, score, p_value in results:
                rows.append([system, f"{score:.2f}", "" if p_value is None else f"{p_value:.4f}"])
            signature = results[0].score.signature
            parts.append(f"{table(rows)}\n{signature or METRICS[name].unit}")
        return "\n\n".join(parts)

    def report(self) -> dict[str, Any]:
        """Return the output of `compare --json`."""
        metrics = {
            str(name): {
                "signature": results[0].score.signature,
                "systems": [
                    {"system": one.system, **one.score.report("score"), "p_value": one.p_value}
                    for one in results
                ],
            }
            for name, results in self.results.items()
        }
        return {
            "num_lines": self.num_lines,
            "num_sources": self.num_sources,
            "test": self.test,
            "trials": self.trials,
            "metrics": metrics,
        }


def compare_systems(
    systems: Sequence[System],
    pairs: Sequence[Pair],
    scoring: Scoring,
    test: TestName,
    trials: int | None = None,
) -> Comparison:
    """Score systems on a text, and test the difference of each from the first.

    Confidence intervals use sacreBLEU's number of resamples, or the number of bootstrap trials.
    """
    groups = group_by_source(pairs, merge=scoring.merge_references)
    references: Sequence[References]
    if scoring.test_set:  # whose references are not normalized
        references = scoring.test_set.read_references()
    elif all(system.references == systems[0].references for system in systems):
        references = references_of(systems[0].references, groups)
    else:
        logger.warning(
            "the systems differ in tokenizer.normalization: they are scored on references without "
            "normalization"
        )
        references = references_of([pair.tgt for pair in pairs], groups)
    hypotheses = [[system.hypotheses[first] for first, *_ in groups] for system in systems]
    trials = trials or PAIRED_TESTS[test].trials
    is_bootstrap = test == "bootstrap"
    scoring = replace(scoring, resamples=trials if is_bootstrap else RESAMPLES)
    settings = {} if is_bootstrap else {"ar": trials}
    results = {}
    for name in scoring.names:
        statistics = [statistics_of(name, texts, references, scoring) for texts in hypotheses]
        results[name] = [
            Result(
                system.name,
                text_score(of_system, scoring, **settings),
                PAIRED_TESTS[test].p_value(statistics[0], of_system, trials) if number else None,
            )
            for number, (system, of_system) in enumerate(zip(systems, statistics, strict=True))
        ]
    return Comparison(test, trials, len(pairs), len(groups), results)
