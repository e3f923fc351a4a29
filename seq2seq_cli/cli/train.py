"""The verbs that read a config: train, vocab, check."""

import json
from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli.app import (
    ConfigFile,
    Device,
    Overrides,
    Pairs,
    References,
    Sources,
    app,
    corpus_of,
    in_full,
    load_config_file,
)


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq train configs/quickstart.yaml\n\n"
    "seq2seq train configs/quickstart.yaml --run-dir runs/deep --set model.layers=4\n\n"
    "tensorboard --logdir runs"
)
def train(
    config: ConfigFile,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            help="Where the run goes.", show_default="runs/<name of the config>", callback=in_full
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Start from this run's best model (fine-tuning).",
            callback=in_full,
        ),
    ] = None,
    allow_changed: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="Continue although this option changed."),
    ] = None,
    overrides: Overrides = None,
    device: Device = None,
) -> None:
    """Train a model from a config; the same command continues an interrupted run."""
    loaded = load_config_file(config, overrides, device)
    from seq2seq_cli.training.loop import train as train_model

    train_model(
        loaded,
        run_dir or Path("runs") / config.stem,
        source=source,
        allow_changed=allow_changed or (),
    )


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq verify-resume configs/quickstart.yaml\n\n"
    "seq2seq verify-resume configs/quickstart.yaml --steps 200 --interruptions 5"
)
def verify_resume(
    config: ConfigFile,
    steps: Annotated[int, typer.Option(min=2, help="Updates of either run.")] = 24,
    interruptions: Annotated[int, typer.Option(min=1, help="Of the second run.")] = 3,
    overrides: Overrides = None,
    device: Device = None,
) -> None:
    """Prove that an interrupted run ends as one that was not, here and on this text.

    Trains twice in temporary folders, once without and once with interruptions, each part in a
    process of its own, and compares everything bit by bit. Exit status 1 if something differs.
    """
    loaded = load_config_file(config, overrides, device)
    from seq2seq_cli.tools.verify_resume import verify_resume as verify

    verdict = verify(loaded, steps, interruptions)
    typer.echo(verdict.table())
    raise typer.Exit(0 if verdict.is_exact else 1)


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq vocab configs/quickstart.yaml\n\n"
    "seq2seq vocab configs/quickstart.yaml --set tokenizer.kind=char --output runs/vocabulary"
)
def vocab(
    config: ConfigFile,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write to.",
            show_default="runs/<name of the config>/vocab",
            callback=in_full,
        ),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Build the tokenizer(s) alone, to look at them or to use them elsewhere."""
    loaded = load_config_file(config, overrides)
    from seq2seq_cli.text.vocabulary import build_vocabulary

    report = build_vocabulary(loaded, output or Path("runs") / config.stem / "vocab")
    typer.echo("\n".join(report))


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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    overrides: Overrides = None,
    device: Device = None,
) -> None:
    """Audit config and text, try the longest batch, estimate the time; nothing is kept.

    --src and --ref, or --pairs, name a test text to audit too. Warnings do not change the exit
    status.
    """
    with corpus_of(src, ref, pairs) as test:
        loaded = load_config_file(config, overrides, device)
        from seq2seq_cli.tools.preflight import check as check_run

        report = check_run(loaded, test)
    if report is not None:
        typer.echo(
            json.dumps(report.report(), indent=2, ensure_ascii=False) if as_json else report.page()
        )
