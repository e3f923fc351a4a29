"""The command clean: removes from a parallel text what harms training."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app
from seq2seq_cli.config.text import PAIRS_FORMATS, Corpus, ParallelText, format_of_pairs
from seq2seq_cli.console import counted, printable, table
from seq2seq_cli.errors import UserError

if TYPE_CHECKING:
    from seq2seq_cli.extras.clean.cleaner import Report, Settings

_COLUMNS = 60  # of a side of an example

Files = Annotated[
    list[Path],
    options.path_argument(
        "FILE", "Text to clean: two files of sentences, or files of pairs, as for train."
    ),
]
Output = Annotated[
    list[Path] | None,
    options.path_option(
        "--output",
        "-o",
        help_text="File to write, .tsv (possibly .gz, .bz2, .xz, .zst); give the option twice for "
        "source and target.",
    ),
]
Rejected = Annotated[
    Path | None,
    options.path_option(
        help_text="File for rejected pairs, each preceded by its rule and line number.",
        show_default="OUTPUT.rejected.tsv",
    ),
]
Against = Annotated[
    list[Path] | None,
    options.path_option(
        help_text="Held-out text, whose sources are removed: files of pairs, or two files of "
        "sentences; may be repeated."
    ),
]
Languages = Annotated[
    str | None,
    typer.Option(
        "--langs",
        metavar="SRC-TGT",
        help="Languages, such as de-en, whose scripts are expected.",
        show_default="main scripts of the text",
    ),
]
Identify = Annotated[
    bool, typer.Option(help="Also reject pairs in other languages, which takes minutes.")
]
Without = Annotated[
    list[str] | None, typer.Option(metavar="RULE", help="Rule to leave out; may be repeated.")
]
Processes = Annotated[
    int | None, typer.Option(min=1, help="Number of processes.", show_default="one per core")
]


def _settings(
    langs: Languages = None,
    identify_languages: Identify = False,
    without: Without = None,
    max_words: Annotated[int, typer.Option(min=1, help="Maximum words per side.")] = 150,
    max_word_length: Annotated[int, typer.Option(min=1, help="Maximum characters per word.")] = 40,
    min_letters: Annotated[
        float,
        typer.Option(min=0, max=1, help="Minimum share of letters among a side's characters."),
    ] = 0.5,
    min_script: Annotated[
        float, typer.Option(min=0, max=1, help="Minimum share of a side's letters in its scripts.")
    ] = 0.5,
    max_ratio: Annotated[
        float,
        typer.Option(min=1, help="Maximum factor between a pair's length ratio and the median."),
    ] = 3.0,
    max_similarity: Annotated[
        float,
        typer.Option(min=0, max=1, help="Similarity at which two sides count as copies."),
    ] = 0.9,
    max_repeats: Annotated[
        int, typer.Option(min=1, help="Maximum occurrences of the same words in a row.")
    ] = 3,
    min_numbers: Annotated[
        float,
        typer.Option(min=0, max=1, help="Minimum share of equal numbers among a pair's numbers."),
    ] = 0.5,
    examples: Annotated[int, typer.Option(min=0, help="Examples to print for each rule.")] = 2,
    processes: Processes = None,
) -> "Settings":
    """Return what these options say; raises UserError for rules and languages that do not exist."""
    from seq2seq_cli import plugins
    from seq2seq_cli.config.languages import languages_from_option
    from seq2seq_cli.extras.clean.cleaner import LANGUAGE, RULE_NAMES, Settings
    from seq2seq_cli.extras.clean.rules import Limits
    from seq2seq_cli.machine import num_cores

    left_out = frozenset(without or ()) | ({LANGUAGE} if not identify_languages else set())
    for name in without or ():
        if name not in RULE_NAMES:
            raise UserError(f"--without {name}: the rules are {', '.join(RULE_NAMES)}")
    languages = languages_from_option(langs) if langs else None
    if identify_languages:
        if LANGUAGE in left_out:
            raise UserError("--identify-languages and --without language exclude each other")
        if languages is None:
            raise UserError("--identify-languages needs --langs, such as --langs de-en")
        plugins.require("py3langid", "clean", "--identify-languages")
        plugins.load("clean", "languages").check_known(languages)
    limits = Limits(
        *(max_words, max_word_length, min_letters, min_script),
        *(max_ratio, max_similarity, max_repeats, min_numbers),
    )
    return Settings(limits, left_out, languages, examples, processes or num_cores())


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq clean train.de train.en --output clean.de --output clean.en\n\n"
    "seq2seq clean corpus.tmx --fields de en --langs de-en --output clean.tsv.gz\n\n"
    "seq2seq clean 'opus/*.tsv.gz' --against valid.tsv --against test.tsv --dry-run"
)
@options.options_of(_settings, "settings")
def clean(
    settings: "Settings",
    files: Files,
    output: Output = None,
    rejected: Rejected = None,
    force: options.Force = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report only; write nothing.")] = False,
    fields: options.Fields = None,
    features: options.Features = None,
    against: Against = None,
    as_json: options.AsJson = False,
) -> None:
    """Remove pairs that harm training from a parallel text, and say why.

    The pairs that are kept stay as they are, in their order. Rejected ones are written to a file of
    their own, with the rule that rejects them, so nothing is lost.
    """
    from seq2seq_cli.extras.clean.cleaner import clean as clean_text
    from seq2seq_cli.extras.clean.outputs import Outputs

    if bool(output) == dry_run:
        raise UserError("give --output, or --dry-run")
    if rejected and dry_run:
        raise UserError(
            "--rejected is a file to write, and --dry-run writes none: leave one of them out"
        )
    options.check_fields(fields, [*files, *(against or ())])
    text = _text_of(files, fields, features)
    held_out = _held_out_text(against, files, fields, features) if against else None
    inputs = (*text.files, *(held_out.files if held_out else ()))
    outputs = Outputs.of(output, rejected, inputs, may_replace=force) if output else None
    if outputs:
        outputs.check_empty()
    report = clean_text(text, held_out, outputs, settings)
    if as_json:
        typer.echo(json.dumps(asdict(report), ensure_ascii=False))
        return
    typer.echo(_as_text(report))
    for path in (*outputs.kept, outputs.rejected) if outputs else ():
        typer.echo(f"wrote {printable(str(path))}")


def _text_of(
    files: list[Path], fields: tuple[str, str] | None, features: str | None
) -> ParallelText:
    """Return two files of sentences, or one or more files of pairs, as a text."""
    from seq2seq_cli.commands.init.init import text_of

    if not all(map(format_of_pairs, files)):
        return text_of(files, features=features)
    corpora = [text_of([file], fields, features).corpora for file in files]
    return ParallelText(tuple(corpus for (corpus,) in corpora))


def _held_out_text(
    against: list[Path], files: list[Path], fields: tuple[str, str] | None, features: str | None
) -> ParallelText:
    """Return held-out text.

    The given fields are for held-out files in the format of the text to clean, and in formats
    without default fields. If that text is two files of sentences, all held-out files have these
    fields, unless some are in formats without default fields.
    """
    formats = [name for file in against if (name := format_of_pairs(file))]
    if len(formats) < len(against):
        return _text_of(against, fields, "2" if features else None)  # which follow a tab
    formats_to_clean = {format_of_pairs(file) for file in files}
    lacking = {name for name in formats if PAIRS_FORMATS[name] is None}
    for_all = bool(fields) and formats_to_clean == {None} and not lacking
    corpora: list[Corpus] = []
    for file, name in zip(against, formats, strict=True):
        is_alike = for_all or name in formats_to_clean
        given = fields if is_alike or name in lacking else None
        corpora += _text_of([file], given, features if is_alike else None).corpora
    return ParallelText(tuple(corpora))


def _as_text(report: "Report") -> str:
    """Return a table of the rules, with examples below it."""
    from seq2seq_cli.text.scripts import truncate_for_terminal

    rows = [(name, found.pairs, found.meaning) for name, found in report.findings.items()]
    rows.append(("kept", report.kept, ""))
    numbers = [(name, f"{pairs:,}", f"{pairs / report.pairs:.2%}") for name, pairs, _ in rows]
    columns = table([("rule", "pairs", "share"), *numbers]).split("\n")
    meanings = ["rejects pairs with", *(meaning for *_, meaning in rows)]
    lines = [f"{row}  {text}".rstrip() for row, text in zip(columns, meanings, strict=True)]
    for name, finding in report.findings.items():
        for line, *sides in finding.examples:
            shown = " → ".join(truncate_for_terminal(side, _COLUMNS) for side in sides)
            lines.append(f"{name}, line {line:,}: {shown}")
    rejected = report.pairs - report.kept
    lines.append(f"kept {report.kept:,} of {counted(report.pairs, 'pair')}, rejected {rejected:,}")
    return "\n".join(lines)
