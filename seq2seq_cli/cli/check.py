"""The command check: checks config and text before training."""

import json

import typer

from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq check configs/quickstart.yaml\n\n"
    "seq2seq check configs/quickstart.yaml --src test.de --ref test.en --json"
)
@options.options_of(options.corpus_from_options, "given")
def check(
    config: options.ConfigFile,
    given: options.GivenText,
    source: options.From = None,
    as_json: options.AsJson = False,
    overrides: options.Overrides = None,
    device: options.Device = None,
) -> None:
    """Check config and text, run the longest batches, and estimate the training time.

    A test set given as --src and --ref, or --pairs, is checked as well. A config for fine-tuning
    needs --from, as in train. Writes only the token cache; warnings do not change the exit status.
    """
    with given as test:
        loaded = options.load_config_file(config, overrides, device)
        from seq2seq_cli.commands.check.check import check as check_run

        report = check_run(loaded, test, source)
    if report is not None:
        typer.echo(
            json.dumps(report.report(), indent=2, ensure_ascii=False)
            if as_json
            else report.as_text()
        )
