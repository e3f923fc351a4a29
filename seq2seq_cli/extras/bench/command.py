"""The commands bench train and bench translate: measure speed and memory."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app

bench_app = typer.Typer(no_args_is_help=True)
app.add_typer(bench_app, name="bench", help="Measure speed and memory on this machine.")


@bench_app.command(
    "train",
    epilog="**Examples**\n\n"
    "seq2seq bench train configs/quickstart.yaml\n\n"
    "seq2seq bench train configs/quickstart.yaml --set training.precision=fp32 --json",
)
def bench_train(
    config: options.ConfigFile,
    updates: Annotated[int, typer.Option(min=1, help="Number of updates to measure.")] = 30,
    warmup: Annotated[int, typer.Option(min=0, help="Number of updates before measuring.")] = 10,
    as_json: options.AsJson = False,
    overrides: options.Overrides = None,
    device: options.Device = None,
) -> None:
    """Measure training: tokens per second, time per phase, memory, and hardware utilization.

    Utilization is relative to the speed of large matrix products, measured in the same run.
    """
    loaded = options.load_config_file(config, overrides, device)
    from seq2seq_cli.extras.bench.measure import measure_training

    if (speed := measure_training(loaded, warmup, updates)) is not None:
        typer.echo(json.dumps(asdict(speed), indent=2) if as_json else speed.table())


@bench_app.command(
    "translate",
    epilog="**Examples**\n\n"
    "seq2seq bench translate runs/quickstart\n\n"
    "seq2seq bench translate runs/quickstart --precision int8 --set decoding.beam_size=5 --json",
)
def bench_translate(
    run_dir: options.RunDir,
    precisions: Annotated[
        list[str] | None,
        typer.Option(
            "--precision",
            help="Precision to measure: fp32, bf16 or int8; may be repeated.",
            show_default="all that the device supports",
        ),
    ] = None,
    input_file: Annotated[
        Path | None,
        options.path_option(
            "--input", "-i", help_text="File to translate.", show_default="validation text"
        ),
    ] = None,
    num_lines: Annotated[
        int, typer.Option("--lines", min=1, help="Maximum number of lines to translate.")
    ] = 1_000,
    as_json: options.AsJson = False,
    overrides: options.Overrides = None,
    device: options.Device = None,
) -> None:
    """Measure translation: sentences and tokens per second, latency, and memory, per precision.

    Each precision runs in a new process; p50 and p95 are the latencies of single sentences.
    """
    from seq2seq_cli.extras.bench.measure import decoding_table, measure_decoding

    speeds = measure_decoding(
        run_dir, precisions, overrides or (), device or "auto", input_file, num_lines
    )
    if as_json:
        typer.echo(json.dumps([speed._asdict() for speed in speeds], indent=2))
    else:
        typer.echo(decoding_table(speeds))
