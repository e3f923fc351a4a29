"""The command compare: tests differences between systems for significance."""

import functools
import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app
from seq2seq_cli.errors import UserError

RunDirs = Annotated[
    list[Path] | None, options.path_argument("RUN", "Run folders written by train.")
]
TranslationFiles = Annotated[
    list[Path] | None,
    options.path_option(
        "--hypotheses", help_text="File of translations of the text, one per line; may be repeated."
    ),
]
Test = Annotated[
    Literal["randomization", "bootstrap"],
    typer.Option(help="Paired approximate randomization or paired bootstrap resampling."),
]
Trials = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1_000_000,
        help="Number of trials of the test.",
        show_default="10,000 for randomization, 1,000 for bootstrap",
    ),
]
Tokenize = Annotated[
    Literal["13a", "intl", "zh", "char", "none"] | None,
    typer.Option(help="Tokenization for BLEU.", show_default="as in the first run, or 13a"),
]
Lowercase = Annotated[
    bool,
    typer.Option("--lowercase", help="Ignore case, even if the first run's config does not."),
]


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq compare runs/quickstart runs/deep --src test.de --ref test.en\n\n"
    "seq2seq compare runs/quickstart runs/deep --test-set wmt14 --langs de-en\n\n"
    "seq2seq compare --hypotheses a.en --hypotheses b.en --src test.de --ref test.en"
)
@options.options_of(options.text_to_score, "given")
def compare(
    given: options.TextToScore,
    run_dirs: RunDirs = None,
    hypotheses: TranslationFiles = None,
    tag: options.TagOfText = None,
    metrics: options.MetricNames = None,
    test: Test = "randomization",
    trials: Trials = None,
    tokenize: Tokenize = None,
    lowercase: Lowercase = False,
    as_json: options.AsJson = False,
    overrides: options.Overrides = None,
    device: options.Device = None,
    model: options.WhichModel = "best",
) -> None:
    """Score systems with 95% confidence intervals, and test whether they differ from the first one.

    A system is a run or a file of translations. The default text is the validation text of the
    first run. (seq2seq diff compares the options and weights of two runs.)
    """
    if len([*(run_dirs or ()), *(hypotheses or ())]) < 2:
        raise UserError("compare needs two systems or more: runs, or files as --hypotheses")
    for run in run_dirs or ():
        if run.is_file():
            raise UserError(f"{run} is a file: give translations as --hypotheses")
    from seq2seq_cli.decoding.translator import SCORING_OPTIONS

    others = [override for override in overrides or () if not override.startswith(SCORING_OPTIONS)]
    if not run_dirs and (others or tag or device or model != "best"):
        raise UserError("--set, --tag, --device and --model are for runs, but only files are given")
    options.check_model_of_runs(model, run_dirs or ())
    with given as (text, public):
        from seq2seq_cli.commands.compare import compare_systems, read_systems, scoring_of
        from seq2seq_cli.decoding.translator import Translator

        overrides = [*options.decoding_overrides(tag=tag), *(overrides or ())]
        load = functools.partial(Translator.load, which=model, exact=True)
        runs = [(str(run), load(run, device or "auto", overrides)) for run in run_dirs or ()]
        scoring = scoring_of(
            runs, overrides, tokenize, lowercase=lowercase, metrics=metrics, test_set=public
        )
        systems, read = read_systems(
            runs, hypotheses or (), text, tag=tag, merge=scoring.merge_references
        )
        comparison = compare_systems(systems, read, scoring, test, trials)
    typer.echo(json.dumps(comparison.report(), indent=2) if as_json else comparison.table())
