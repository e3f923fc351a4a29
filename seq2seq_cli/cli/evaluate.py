"""The commands eval and score: compare a model with reference translations."""

import json
from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli.app import (
    AsJson,
    Device,
    Fields,
    Overrides,
    Pairs,
    References,
    RunDir,
    Sources,
    Tag,
    WhichModel,
    app,
    corpus_from_options,
    decoding_overrides,
    path_option,
)
from seq2seq_cli.errors import UserError


@app.command(
    "eval",
    epilog="**Examples**\n\n"
    "seq2seq eval runs/quickstart --src test.de --ref test.en\n\n"
    "seq2seq eval runs/quickstart --json      (on the run's own validation text)",
)
def evaluate(
    run_dir: RunDir,
    src: Sources = None,
    ref: References = None,
    pairs: Pairs = None,
    fields: Fields = None,
    tag: Tag = None,
    loss_only: Annotated[
        bool,
        typer.Option(
            "--loss-only", help="Skip translating, and with it BLEU, chrF, TER and exact match."
        ),
    ] = False,
    as_json: AsJson = False,
    overrides: Overrides = None,
    device: Device = None,
    model: WhichModel = "best",
) -> None:
    """Score a trained model on parallel text: loss, perplexity, accuracy, BLEU, chrF, exact match.

    With --set validation.ter=true it computes TER too.
    """
    with corpus_from_options(src, ref, pairs, fields) as text:
        from seq2seq_cli.decoding.translator import Translator
        from seq2seq_cli.evaluation import evaluate_corpus

        translator = Translator.load(
            run_dir,
            device or "auto",
            [*decoding_overrides(tag=tag), *(overrides or ())],
            which=model,
            exact=True,
        )
        scores = evaluate_corpus(translator, text, decode=not loss_only)
    typer.echo(json.dumps(scores.report(), indent=2) if as_json else scores.table())


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq score runs/quickstart --src test.de --ref test.en\n\n"
    "seq2seq score runs/quickstart --src test.de --nbest test.nbest > rescored.nbest"
)
def score(
    run_dir: RunDir,
    src: Sources = None,
    ref: References = None,
    pairs: Pairs = None,
    fields: Fields = None,
    tag: Tag = None,
    nbest: Annotated[
        Path | None,
        path_option(help_text="An n-best list (n ||| text ||| ...) to rescore, instead of --ref."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines with the score of every token.")
    ] = False,
    overrides: Overrides = None,
    device: Device = None,
    model: WhichModel = "best",
) -> None:
    """Score given translations: print log-probability, mean log-probability per token, and text.

    With --nbest, rescore an n-best list: print it with the translations of each sentence sorted by
    this model's mean log-probability, which becomes their score.
    """
    if nbest is not None and (ref or pairs or src is None):
        raise UserError("--nbest requires --src, and excludes --ref and --pairs")
    if nbest is not None and as_json:
        raise UserError("--nbest prints an n-best list, which excludes --json")
    if not (src or ref or pairs):
        raise UserError("give --src and --ref, --pairs, or --src and --nbest")
    with corpus_from_options(src, nbest or ref, pairs, fields) as text:
        from seq2seq_cli.decoding.rescoring import rescore_nbest, score_pairs
        from seq2seq_cli.decoding.translator import Translator

        translator = Translator.load(
            run_dir,
            device or "auto",
            [*decoding_overrides(tag=tag), *(overrides or ())],
            which=model,
            exact=True,
        )
        assert text is not None, "some text is given"
        lines = (
            rescore_nbest(translator, *text.files)
            if nbest is not None
            else score_pairs(translator, text, as_json=as_json)
        )
        for line in lines:
            typer.echo(line)
