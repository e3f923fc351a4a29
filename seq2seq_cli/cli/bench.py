"""The verbs that measure: bench train, bench translate."""

import json
from typing import Annotated

import typer

from seq2seq_cli.cli.program import ConfigFile, Device, Overrides, app, load_config_file

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
    from seq2seq_cli.training.benchmark import measure_training

    if (speed := measure_training(loaded, warmup, updates)) is not None:
        typer.echo(json.dumps(speed.report(), indent=2) if as_json else speed.table())
