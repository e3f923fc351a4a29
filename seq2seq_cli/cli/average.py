"""The command average: averages checkpoints of a run."""

from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import check_empty


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq average runs/quickstart\n\n"
    "seq2seq average runs/quickstart --steps 1000,1500 --output average.safetensors"
)
def average(
    run_dir: options.RunDir,
    last: Annotated[
        int | None,
        typer.Option(min=2, help="Average the last K checkpoints.", metavar="K", show_default="5"),
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(min=2, help="Average the K best models.", metavar="K"),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(help="Average the checkpoints of these steps, such as 500,1000."),
    ] = None,
    output: Annotated[
        Path | None,
        options.path_option(
            help_text="File (.safetensors) to write the average to, instead of replacing the model."
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace the run's model even if the average is worse; with --output, overwrite a "
            "file that is not empty.",
        ),
    ] = False,
    device: options.Device = None,
) -> None:
    """Average the weights of several checkpoints, and score the average on the validation text.

    The average replaces the run's model if it is better. With --output it is written to a file
    instead, which translate, eval and other commands read with --model.
    """
    if sum(given is not None for given in (last, best, steps)) > 1:
        raise UserError("give only one of --last, --best and --steps")
    if output is not None and output.suffix != ".safetensors":
        raise UserError(f"--output {output}: the name of a file of weights ends in .safetensors")
    if output is not None and not force:
        check_empty(output)
    numbers = [] if steps is None else [step.strip() for step in steps.split(",")]
    is_steps = all(number.isascii() and number.isdigit() for number in numbers)
    chosen = sorted({*map(int, numbers)}) if is_steps else []
    if steps is not None and len(chosen) < 2:
        raise UserError(f"--steps {steps}: give two steps or more, as in 500,1000")
    from seq2seq_cli.commands.average import average_weights

    typer.echo(
        average_weights(
            run_dir, output, device or "auto", last=last, best=best, steps=chosen, force=force
        )
    )
