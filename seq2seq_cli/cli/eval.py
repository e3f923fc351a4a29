"""The command eval: scores a model on parallel text."""

import json
from typing import Annotated, Any

import typer

from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app
from seq2seq_cli.errors import UserError

BreakDown = Annotated[
    bool,
    typer.Option(
        "--breakdown", help="Also score by source length and word frequency in the training text."
    ),
]
NumWorst = Annotated[
    int,
    typer.Option(
        "--worst",
        metavar="N",
        min=0,
        help="Also print the N worst translations, by validation.metric, chrF or an error rate.",
    ),
]
ShowErrors = Annotated[
    bool,
    typer.Option(
        "--errors",
        help="Also count insertions, deletions and substitutions, and correct lines by feature.",
    ),
]
LossOnly = Annotated[
    bool,
    typer.Option("--loss-only", help="Compute only loss, perplexity and accuracy."),
]


@app.command(
    "eval",
    epilog="**Examples**\n\n"
    "seq2seq eval runs/quickstart --src test.de --ref test.en\n\n"
    "seq2seq eval runs/quickstart --json      (on the run's own validation text)\n\n"
    "seq2seq eval runs/quickstart --set decoding.beam_size=5\n\n"
    "seq2seq eval runs/quickstart --test-set wmt14 --langs de-en --metrics bleu,chrf++\n\n"
    "seq2seq eval runs/quickstart --breakdown --errors --worst 10",
)
@options.options_of(options.text_to_score, "given")
def evaluate(
    run_dir: options.RunDir,
    given: options.TextToScore,
    tag: options.TagOfText = None,
    metrics: options.MetricNames = None,
    bootstrap: options.Resamples = 1_000,
    breakdown: BreakDown = False,
    worst: NumWorst = 0,
    errors: ShowErrors = False,
    loss_only: LossOnly = False,
    as_json: options.AsJson = False,
    overrides: options.Overrides = None,
    device: options.Device = None,
    model: options.WhichModel = "best",
) -> None:
    """Score a model on parallel text: loss, perplexity, accuracy, BLEU, chrF, exact match.

    If tokens are characters or words, and the best model is chosen by exact match or an error rate,
    the scores are exact match and an error rate, not BLEU and chrF. Scores of translations have 95%
    confidence intervals.
    """
    if loss_only and (metrics or breakdown or worst or errors):
        raise UserError("--loss-only excludes --metrics, --breakdown, --worst and --errors")
    with given as (text, public):
        from seq2seq_cli.decoding.translator import Translator
        from seq2seq_cli.evaluation import evaluate_corpus, training_targets, valid_text
        from seq2seq_cli.metrics.breakdowns import break_down, worst_lines
        from seq2seq_cli.metrics.edits import find_errors
        from seq2seq_cli.metrics.metrics import Scoring

        overrides = [*options.decoding_overrides(tag=tag), *(overrides or ())]
        run = Translator.load(
            run_dir, device or "auto", overrides, which=model, exact=True, with_pytorch=True
        )
        scoring = Scoring.of_run(run.config, metrics, resamples=bootstrap, test_set=public)
        text = text or valid_text(run.config, run_dir, tag)
        scores = evaluate_corpus(run, text, decode=not loss_only, scoring=scoring)
        parts: list[Any] = [scores]
        if breakdown:
            parts.append(break_down(scores.translated, training_targets(run, run_dir), scoring))
        if errors:
            parts.append(find_errors(scores.translated, scoring))
        if worst:
            parts.append(worst_lines(scores.translated, worst, scoring))
    if as_json:
        report = {name: value for part in parts for name, value in part.report().items()}
        typer.echo(json.dumps(report, indent=2))
    else:
        typer.echo("\n\n".join(part.table() for part in parts))
