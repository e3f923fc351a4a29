"""The verbs that measure: bench train, bench translate."""

import json
from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli.app import (
    ConfigFile,
    Device,
    Overrides,
    RunDir,
    app,
    in_full,
    load_config_file,
)

bench_app = typer.Typer(no_args_is_help=True)
app.add_typer(bench_app, name="bench", help="Measure speed and memory on this machine.")


@bench_app.command(
    "train",
    epilog="**Examples**\n\n"
    "seq2seq bench train configs/quickstart.yaml\n\n"
    "seq2seq bench train configs/quickstart.yaml --set training.precision=fp32 --json",
)
def bench_train(
    config: ConfigFile,
    updates: Annotated[int, typer.Option(min=1, help="Updates to measure.")] = 30,
    warmup: Annotated[int, typer.Option(min=0, help="Updates before them.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    overrides: Overrides = None,
    device: Device = None,
) -> None:
    """Measure training: tokens per second, where the time goes, memory, share of the ceiling.

    The ceiling is the speed of large matrix products here and now.
    """
    loaded = load_config_file(config, overrides, device)
    from seq2seq_cli.tools.bench_training import measure_training

    if (speed := measure_training(loaded, warmup, updates)) is not None:
        typer.echo(json.dumps(speed.report(), indent=2) if as_json else speed.table())


@bench_app.command(
    "translate",
    epilog="**Examples**\n\n"
    "seq2seq bench translate runs/quickstart\n\n"
    "seq2seq bench translate runs/quickstart --precision int8 --set decoding.beam_size=5 --json",
)
def bench_translate(
    run_dir: RunDir,
    precisions: Annotated[
        list[str] | None,
        typer.Option(
            "--precision", help="fp32, bf16 or int8; may be repeated.", show_default="all three"
        ),
    ] = None,
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            "-i",
            help="Lines to translate.",
            show_default="validation text",
            callback=in_full,
        ),
    ] = None,
    num_lines: Annotated[int, typer.Option("--lines", min=1, help="As many at most.")] = 1_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    overrides: Overrides = None,
    device: Device = None,
) -> None:
    """Measure translating: sentences and tokens per second, latency, memory, by precision.

    In one process; p50 and p95 are of one sentence at a time.
    """
    from seq2seq_cli.tools.bench_decoding import measure_decoding, report, table

    speeds = measure_decoding(
        run_dir,
        precisions,
        overrides or (),
        device or "auto",
        input_file,
        num_lines,
    )
    typer.echo(json.dumps(report(speeds), indent=2) if as_json else table(speeds))
