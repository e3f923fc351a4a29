"""The command check: checks config and text before training."""

import json

import typer

from seq2seq_cli.cli.app import (
    AsJson,
    ConfigFile,
    Device,
    Features,
    Fields,
    Overrides,
    Pairs,
    References,
    Sources,
    app,
    corpus_from_options,
    load_config_file,
)


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq check configs/quickstart.yaml\n\n"
    "seq2seq check configs/quickstart.yaml --src test.de --ref test.en --json"
)
def check(
    config: ConfigFile,
    src: Sources = None,
    ref: References = None,
    pairs: Pairs = None,
    fields: Fields = None,
    features: Features = None,
    as_json: AsJson = False,
    overrides: Overrides = None,
    device: Device = None,
) -> None:
    """Check config and text, try the longest batch, and estimate the training time.

    A test set given as --src and --ref, or --pairs, is checked as well. Nothing is written, and
    warnings do not change the exit status.
    """
    with corpus_from_options(src, ref, pairs, fields, features) as test:
        loaded = load_config_file(config, overrides, device)
        from seq2seq_cli.commands.check.check import check as check_run

        report = check_run(loaded, test)
    if report is not None:
        typer.echo(
            json.dumps(report.report(), indent=2, ensure_ascii=False)
            if as_json
            else report.as_text()
        )
