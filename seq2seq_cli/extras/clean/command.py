"""The command clean: removes from a parallel text what harms training."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app
from seq2seq_cli.errors import UserError

if TYPE_CHECKING:
    from seq2seq_cli.config.text import ParallelText
    from seq2seq_cli.extras.clean.cleaner import Report

_COLUMNS = 60  # of a side of an example


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq clean train.de train.en --output clean.de --output clean.en\n\n"
    "seq2seq clean corpus.tmx --fields de en --langs de-en --output clean.tsv.gz\n\n"
    "seq2seq clean 'opus/*.tsv.gz' --against valid.tsv --against test.tsv --dry-run"
)
def clean(
    files: Annotated[
        list[Path],
        options.path_argument(
            "FILE", "Text to clean: two files of sentences, or files of pairs, as for train."
        ),
    ],
    output: Annotated[
        list[Path] | None,
        options.path_option(
            "--output",
            "-o",
            help_text="File to write, .tsv (possibly .gz, .bz2, .xz, .zst); give the option twice "
            "for source and target.",
        ),
    ] = None,
    rejected: Annotated[
        Path | None,
        options.path_option(
            help_text="File for rejected pairs, each after its rule and line.",
            show_default="OUTPUT.rejected.tsv",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report only; write no files.")] = False,
    fields: options.Fields = None,
    features: options.Features = None,
    against: Annotated[
        list[Path] | None,
        options.path_option(
            help_text="Held-out text, whose sources are removed: a file of pairs, or two files of "
            "sentences; may be repeated."
        ),
    ] = None,
    langs: Annotated[
        str | None,
        typer.Option(
            "--langs",
            metavar="SRC-TGT",
            help="Languages, such as de-en, whose scripts are expected.",
            show_default="main scripts of the text",
        ),
    ] = None,
    identify_languages: Annotated[
        bool,
        typer.Option("--identify-languages", help="Also reject pairs in other languages (slow)."),
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="Rule to leave out; may be repeated."),
    ] = None,
    max_words: Annotated[int, typer.Option(min=1, help="Words of a side.")] = 150,
    max_word_length: Annotated[int, typer.Option(min=1, help="Characters of a word.")] = 40,
    min_letters: Annotated[
        float, typer.Option(min=0, max=1, help="Share of letters in a side's characters.")
    ] = 0.5,
    min_script: Annotated[
        float, typer.Option(min=0, max=1, help="Share of a side's letters in its scripts.")
    ] = 0.5,
    max_ratio: Annotated[
        float, typer.Option(min=1, help="Factor between a pair's length ratio and the median.")
    ] = 3.0,
    max_similarity: Annotated[
        float, typer.Option(min=0, max=1, help="Similarity of the sides of a pair.")
    ] = 0.9,
    max_repeats: Annotated[
        int, typer.Option(min=1, help="Occurrences of the same words in a row.")
    ] = 3,
    min_numbers: Annotated[
        float, typer.Option(min=0, max=1, help="Share of equal numbers in a pair's numbers.")
    ] = 0.5,
    examples: Annotated[int, typer.Option(min=0, help="Examples to print for each rule.")] = 2,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes.", show_default="one per core")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Remove from a parallel text the pairs that harm training, and say why.

    The pairs that are kept stay as they are, in their order. Rejected ones are written to a file of
    their own, with the rule that rejects them, so nothing is lost.
    """
    from seq2seq_cli import plugins
    from seq2seq_cli.extras.clean.cleaner import RULE_NAMES, Settings
    from seq2seq_cli.extras.clean.cleaner import clean as clean_text
    from seq2seq_cli.extras.clean.outputs import Outputs
    from seq2seq_cli.machine import num_cores
    from seq2seq_cli.text.rules import Limits

    if bool(output) == dry_run:
        raise UserError("give --output, or --dry-run")
    for name in without or ():
        if name not in RULE_NAMES:
            raise UserError(f"--without {name}: the rules are {', '.join(RULE_NAMES)}")
    if identify_languages and langs is None:
        raise UserError("--identify-languages needs --langs, such as --langs de-en")
    if identify_languages:
        plugins.require("py3langid", "clean", "--identify-languages")
    text, held_out = _text_of(files, fields, features), None
    if against:
        held_out = _text_of(against, fields, features)
    inputs = (*text.files, *(held_out.files if held_out else ()))
    limits = Limits(
        *(max_words, max_word_length, min_letters, min_script),
        *(max_ratio, max_similarity, max_repeats, min_numbers),
    )
    settings = Settings(
        limits,
        frozenset(without or ()),
        _languages(langs) if langs else None,
        identify_languages,
        examples,
        processes or num_cores(),
    )
    outputs = Outputs.of(output, rejected, inputs) if output else None
    report = clean_text(text, held_out, outputs, settings)
    typer.echo(json.dumps(asdict(report), ensure_ascii=False) if as_json else _as_text(report))
    if outputs and not as_json:
        for path in (*outputs.kept, outputs.rejected):
            typer.echo(f"wrote {path}")


def _text_of(
    files: list[Path], fields: tuple[str, str] | None, features: str | None
) -> "ParallelText":
    """Return two files of sentences, or one or more files of pairs, as a text."""
    from seq2seq_cli.commands.init.init import text_of
    from seq2seq_cli.config.text import PAIRS_FORMATS, ParallelText, without_compression

    are_pairs = [Path(without_compression(file.name)).suffix in PAIRS_FORMATS for file in files]
    if not all(are_pairs):
        return text_of(files, fields if len(files) == 1 else None, features)
    corpora = [text_of([file], fields, features).corpora for file in files]
    return ParallelText(tuple(corpus for (corpus,) in corpora))


def _languages(langs: str) -> tuple[str, str]:
    from seq2seq_cli.config.text import is_language

    src, _, tgt = langs.partition("-")
    if not (is_language(src) and is_language(tgt)):
        raise UserError(f"--langs {langs}: give two language codes, such as de-en")
    return src, tgt


def _as_text(report: "Report") -> str:
    """Return a table of the rules, with examples below it."""
    from seq2seq_cli.console import counted, table
    from seq2seq_cli.text.scripts import truncate_for_terminal

    def share(count: int) -> str:
        return f"{count / report.pairs:.2%}"

    rows = [("rule", "pairs", "share", "")]
    for name, finding in report.findings.items():
        rows.append((name, f"{finding.pairs:,}", share(finding.pairs), finding.meaning))
    rows.append(("kept", f"{report.kept:,}", share(report.kept), ""))
    width = max(len(row[3]) for row in rows)
    lines = [table([(*row[:3], row[3].ljust(width)) for row in rows])]
    for name, finding in report.findings.items():
        for line, *sides in finding.examples:
            shown = " → ".join(truncate_for_terminal(side, _COLUMNS) for side in sides)
            lines.append(f"{name}, line {line:,}: {shown}")
    rejected = report.pairs - report.kept
    lines.append(f"kept {report.kept:,} of {counted(report.pairs, 'pair')}, rejected {rejected:,}")
    return "\n".join(lines)
