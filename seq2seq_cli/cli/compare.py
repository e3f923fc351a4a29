"""The command compare: tests whether systems translate significantly better than another."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from seq2seq_cli.cli.app import (
    AsJson,
    Device,
    Languages,
    MetricNames,
    Overrides,
    Pairs,
    References,
    Sources,
    TestSetName,
    WhichModel,
    app,
    path_argument,
    path_option,
    test_text,
)
from seq2seq_cli.errors import UserError


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq compare runs/quickstart runs/deep --src test.de --ref test.en\n\n"
    "seq2seq compare runs/quickstart runs/deep --test-set wmt14 --langs de-en\n\n"
    "seq2seq compare --hypotheses a.en --hypotheses b.en --src test.de --ref test.en"
)
def compare(
    run_dirs: Annotated[
        list[Path] | None, path_argument("[RUN]...", "Run folders, as written by train.")
    ] = None,
    hypotheses: Annotated[
        list[Path] | None,
        path_option(
            "--hypotheses",
            help_text="File of translations of the text, one per line; may be repeated.",
        ),
    ] = None,
    src: Sources = None,
    ref: References = None,
    pairs: Pairs = None,
    test_set: TestSetName = None,
    langs: Languages = None,
    metrics: MetricNames = None,
    test: Annotated[
        Literal["randomization", "bootstrap"],
        typer.Option(help="Paired approximate randomization, or paired bootstrap resampling."),
    ] = "randomization",
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000_000,
            help="Number of trials of the test.",
            show_default="10,000 for randomization, 1,000 for bootstrap",
        ),
    ] = None,
    tokenize: Annotated[
        Literal["13a", "intl", "zh", "char", "none"] | None,
        typer.Option(help="Tokenization of BLEU.", show_default="that of the first run, or 13a"),
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case.")] = False,
    as_json: AsJson = False,
    overrides: Overrides = None,
    device: Device = None,
    model: WhichModel = "best",
) -> None:
    """Compare systems: score ± 95 % confidence interval, p-value of the difference from the first.

    A system is a run or a file of translations. Without files of text, the validation text of the
    first run is used. (seq2seq diff finds out in what two runs differ.)
    """
    if len([*(run_dirs or ()), *(hypotheses or ())]) < 2:
        raise UserError("compare needs two systems or more: runs, or files as --hypotheses")
    with test_text(src, ref, pairs, test_set, langs) as (corpus, public):
        from seq2seq_cli.config.validation import ValidationConfig
        from seq2seq_cli.decoding.translator import Translator
        from seq2seq_cli.text.metrics import Scoring
        from seq2seq_cli.text.significance import PAIRED_TESTS, RESAMPLES
        from seq2seq_cli.tools.system_comparison import compare_systems, read_systems

        translators = [
            (
                str(path),
                Translator.load(path, device or "auto", overrides or (), which=model, exact=True),
            )
            for path in run_dirs or ()
        ]
        options = translators[0][1].config.validation if translators else ValidationConfig()
        given = {"bleu_tokenize": tokenize, "lowercase": lowercase or None}
        options = options.model_copy(update={k: v for k, v in given.items() if v is not None})
        trials = trials or PAIRED_TESTS[test].trials
        resamples = trials if test == "bootstrap" else RESAMPLES
        scoring = Scoring.of(options, metrics, resamples=resamples, test_set=public)
        systems, text = read_systems(translators, hypotheses or (), corpus)
        comparison = compare_systems(systems, text, scoring, test, trials)
    typer.echo(json.dumps(comparison.report(), indent=2) if as_json else comparison.table())
