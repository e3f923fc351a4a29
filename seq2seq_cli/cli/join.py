"""The command join: joins the outputs of translate --shard."""

from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app
from seq2seq_cli.files import check_empty


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq join part-* --output big.en\n\n"
    "seq2seq join part-* | zstd > big.en.zst"
)
def join(
    parts: Annotated[
        list[Path],
        options.path_argument("PART", "Outputs of translate --shard, in any order."),
    ],
    output_file: Annotated[
        Path | None,
        options.path_option(
            "--output", "-o", help_text="File to write; - is stdout.", show_default=False
        ),
    ] = None,
    force: options.Force = False,
) -> None:
    """Join the translations of all shards of a file.

    If a shard is missing, incomplete, or made from another text, model or options, nothing is
    written.
    """
    from seq2seq_cli.decoding.lines.shards import join_shards

    options.check_uncompressed(output_file)
    if output_file is not None and not force:
        check_empty(output_file)
    num_shards = join_shards(parts, output_file)
    typer.echo(f"joined {num_shards:,} shards", err=True)
