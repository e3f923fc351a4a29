"""The verbs that compare with references: eval, score."""

import json
from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli.app import (
    Device,
    Overrides,
    Pairs,
    References,
    RunDir,
    Sources,
    WhichModel,
    app,
    corpus_of,
    in_full,
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
    loss_only: Annotated[
        bool, typer.Option("--loss-only", help="Do not translate: no BLEU, chrF, TER, exact match.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    overrides: Overrides = None,
    device: Device = None,
    model: WhichModel = "best",
) -> None:
    """Score a trained model on parallel text: loss, accuracy, BLEU, chrF, exact match.

    TER too, with validation.ter.
    """
    with corpus_of(src, ref, pairs) as corpus:
        from seq2seq_cli.decoding.translator import Translator
        from seq2seq_cli.evaluation import evaluate_corpus

        translator = Translator.load(
            run_dir, device or "auto", overrides or (), which=model, exact=True
        )
        scores = evaluate_corpus(translator, corpus, decode=not loss_only)
    typer.echo(json.dumps(scores.report(), indent=2) if as_json else scores.table())


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq score runs/quickstart --src test.de --ref test.en\n\n"
    "seq2seq score runs/quickstart --src test.de --nbest test.nbest > rescore_nbest.nbest"
)
def score(
    run_dir: RunDir,
    src: Sources = None,
    ref: References = None,
    pairs: Pairs = None,
    nbest: Annotated[
        Path | None,
        typer.Option(
            help="Instead of --ref: a list of the form n ||| text ||| ...", callback=in_full
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines, with every token.")
    ] = False,
    overrides: Overrides = None,
    device: Device = None,
    model: WhichModel = "best",
) -> None:
    """Say how probable given translations are: log-probability, its mean per token, the text.

    With --nbest the list is printed again, each sentence's translations sorted by this model's mean
    log-probability, which becomes their score.
    """
    if nbest is not None and (ref or pairs or src is None):
        raise UserError("--nbest needs --src, and neither --ref nor --pairs")
    if nbest is not None and as_json:
        raise UserError("--nbest prints a list of its own form, not JSON")
    if not (src or ref or pairs):
        raise UserError("give --src and --ref, --pairs, or --src and --nbest")
    with corpus_of(src, nbest or ref, pairs) as corpus:
        from seq2seq_cli.decoding.rescoring import rescore_nbest, score_pairs
        from seq2seq_cli.decoding.translator import Translator

        translator = Translator.load(
            run_dir, device or "auto", overrides or (), which=model, exact=True
        )
        assert corpus is not None, "some text is given"
        lines = (
            rescore_nbest(translator, *corpus.files)
            if nbest is not None
            else score_pairs(translator, corpus, as_json=as_json)
        )
        for line in lines:
            typer.echo(line)
