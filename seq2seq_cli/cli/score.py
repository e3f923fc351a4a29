"""The command score: scores given translations with a model."""

from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app
from seq2seq_cli.errors import UserError


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq score runs/quickstart --src test.de --ref test.en\n\n"
    "seq2seq score runs/quickstart --src test.de --nbest test.nbest > rescored.nbest"
)
def score(
    run_dir: options.RunDir,
    src: options.Sources = None,
    ref: options.References = None,
    pairs: options.Pairs = None,
    fields: options.Fields = None,
    features: options.Features = None,
    tag: options.Tag = None,
    nbest: Annotated[
        Path | None,
        options.path_option(
            help_text="N-best list (n ||| text ||| ...) to rescore, instead of --ref."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines with the score of every token.")
    ] = False,
    overrides: options.Overrides = None,
    device: options.Device = None,
    model: options.WhichModel = "best",
) -> None:
    """Score given translations: print log-probability, mean log-probability per token, and text.

    With --nbest, rescore an n-best list: the translations of each sentence are sorted by this
    model's mean log-probability, which replaces their score.
    """
    if nbest is not None and (ref or pairs or src is None):
        raise UserError("--nbest requires --src, and excludes --ref and --pairs")
    if nbest is not None and as_json:
        raise UserError("--nbest prints an n-best list, which excludes --json")
    if not (src or ref or pairs):
        raise UserError("give --src and --ref, --pairs, or --src and --nbest")
    with options.corpus_from_options(src, nbest or ref, pairs, fields, features) as text:
        from seq2seq_cli.commands.score import rescore_nbest, score_pairs
        from seq2seq_cli.decoding.translator import Translator

        translator = Translator.load(
            run_dir,
            device or "auto",
            [*options.decoding_overrides(tag=tag), *(overrides or ())],
            which=model,
            exact=True,
        )
        assert text is not None, "some text is given"
        lines = (
            rescore_nbest(translator, text)
            if nbest is not None
            else score_pairs(translator, text, as_json=as_json)
        )
        for line in lines:
            typer.echo(line)
