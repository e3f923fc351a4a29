"""The commands that read a config: train, verify-resume, vocab, check."""

import json
from pathlib import Path
from typing import Annotated

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
    path_option,
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
        path_option(help_text="Run folder to write.", show_default="runs/<name of the config>"),
    ] = None,
    source: Annotated[
        Path | None,
        path_option(
            "--from",
            help_text="Start from this run's best model (fine-tuning).",
            metavar="RUN",
        ),
    ] = None,
    allow_changed: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="Resume although this option has changed."),
    ] = None,
    overrides: Overrides = None,
    device: Device = None,
) -> None:
    """Train a model from a config; the same command resumes an interrupted run."""
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
    steps: Annotated[int, typer.Option(min=2, help="Number of updates of each run.")] = 24,
    interruptions: Annotated[
        int, typer.Option(min=1, help="Number of times that the second run is interrupted.")
    ] = 3,
    overrides: Overrides = None,
    device: Device = None,
) -> None:
    """Verify on this machine that an interrupted run gives the same result as an uninterrupted one.

    Trains twice in temporary folders, with and without interruptions, each part in a process of its
    own, and compares all results bit by bit. The exit status is 1 if something differs.
    """
    loaded = load_config_file(config, overrides, device)
    from seq2seq_cli.commands.verify_resume import verify_resume as verify

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
        path_option(
            help_text="Folder to write to.", show_default="runs/<name of the config>/vocab"
        ),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Learn the tokenizers only, to inspect them or to use them in several runs."""
    loaded = load_config_file(config, overrides)
    from seq2seq_cli.tokenizers.vocabulary import build_vocabulary

    report = build_vocabulary(loaded, output or Path("runs") / config.stem / "vocab")
    typer.echo("\n".join(report))


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq preprocess configs/quickstart.yaml\n\n"
    "seq2seq preprocess configs/quickstart.yaml --shard 3/20"
)
def preprocess(
    config: ConfigFile,
    shard: Annotated[
        str,
        typer.Option(metavar="K/N", help="Tokenize shard K of N of the files of the text."),
    ] = "1/1",
    overrides: Overrides = None,
) -> None:
    """Tokenize the training text ahead of training, on as many machines as share a cache.

    Training does the same where it is missing. Large text is in many files, which are divided
    among the shards.
    """
    loaded = load_config_file(config, overrides)
    from seq2seq_cli.decoding.lines.shards import Shard
    from seq2seq_cli.training.setup import preprocess as tokenize

    num_segments, num_missing = tokenize(loaded, *Shard.parse(shard))
    typer.echo(f"{num_segments:,} segments of text, {num_missing:,} of them tokenized now")


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

    --src and --ref, or --pairs, name a test set to check too. Nothing is kept, and warnings do not
    change the exit status.
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
