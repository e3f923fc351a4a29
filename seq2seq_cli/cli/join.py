"""The command join: joins the translations of the shards of a file."""

from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli.app import app, path_option


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq join part-* --output big.en\n\n"
    "seq2seq join part-* | zstd > big.en.zst"
)
def join(
    parts: Annotated[
        list[Path],
        typer.Argument(help="What translate --shard has written, in any order.", metavar="PART..."),
    ],
    output_file: Annotated[
        Path | None,
        path_option("--output", "-o", help_text="File to write; - is stdout.", show_default=False),
    ] = None,
) -> None:
    """Join the translations of all shards of a file, in order.

    Refuses parts that are missing, cut short, or of another text, model or options; nothing is
    written then.
    """
    from seq2seq_cli.decoding.lines.shards import join_shards

    num_shards = join_shards(parts, output_file)
    typer.echo(f"joined {num_shards:,} shards", err=True)
