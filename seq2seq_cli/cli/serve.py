"""The command serve: a page and a service for trained models."""

import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seq2seq_cli.cli.app import (
    Device,
    Overrides,
    WhichModel,
    app,
    check_model_of_runs,
    path_argument,
    path_option,
)
from seq2seq_cli.errors import UserError

if TYPE_CHECKING:
    from seq2seq_cli.config.languages import LanguagePair

NETWORK, LIMITS = "Network and access", "Limits"

EXAMPLES = (
    "**Examples**\n\n"
    "seq2seq serve runs/quickstart      (then open http://127.0.0.1:5000)\n\n"
    "seq2seq serve runs/de-en runs/en-de --port 8000\n\n"
    "seq2seq serve runs/mine --langs de-en --set decoding.beam_size=5\n\n"
    "SEQ2SEQ_TOKEN=secret seq2seq serve runs/mine --host 0.0.0.0\n\n"
    'curl http://127.0.0.1:5000/translate -d q="Ein Bier." -d source=de -d target=en'
)

Runs = Annotated[
    list[Path], path_argument("RUN...", "Run folders; several are several pairs of languages.")
]


@app.command(epilog=EXAMPLES)
def serve(
    runs: Runs,
    langs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SRC-TGT",
            help="Languages of a run that does not name them, such as de-en; once for each RUN.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at.", rich_help_panel=NETWORK)
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port; 0: a free one.", rich_help_panel=NETWORK)
    ] = 5_000,
    token_file: Annotated[
        Path | None,
        path_option(
            help_text="File with the token that requests need; or the variable SEQ2SEQ_TOKEN.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    no_auth: Annotated[
        bool,
        typer.Option("--no-auth", help="Let anybody use the server.", rich_help_panel=NETWORK),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name that requests may be for; may be repeated.",
            show_default="those of this machine's loopback, if that is where it listens",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Origin of pages that may call the server (CORS), or *; may be repeated.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    char_limit: Annotated[
        int, typer.Option(min=1, help="Characters of a text.", rich_help_panel=LIMITS)
    ] = 5_000,
    batch_limit: Annotated[
        int, typer.Option(min=1, help="Texts of a request.", rich_help_panel=LIMITS)
    ] = 64,
    alternatives_limit: Annotated[
        int, typer.Option(min=0, max=100, help="Alternatives of a text.", rich_help_panel=LIMITS)
    ] = 5,
    time_limit: Annotated[
        float, typer.Option(min=0.1, help="Seconds for a request.", rich_help_panel=LIMITS)
    ] = 60.0,
    queue_limit: Annotated[
        int,
        typer.Option(
            min=1,
            help="Sentences that wait, from which on requests are refused (503).",
            rich_help_panel=LIMITS,
        ),
    ] = 4_096,
    cache_megabytes: Annotated[
        int, typer.Option(min=0, help="Memory for translations made.", rich_help_panel=LIMITS)
    ] = 64,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1, help="Translating processes on a CPU.", show_default="one for each core"
        ),
    ] = None,
    overrides: Overrides = None,
    device: Device = None,
    model: WhichModel = "best",
    log_text: Annotated[
        bool, typer.Option("--log-text", help="Log texts and translations too.")
    ] = False,
) -> None:
    """Serve trained models: a page to translate with, and the interface of LibreTranslate.

    The models of runs that are still being trained are replaced by better ones as they appear.
    """
    from seq2seq_cli.machine import num_cores

    try:
        from seq2seq_cli.serving.application import Access
        from seq2seq_cli.serving.request_fields import Limits
        from seq2seq_cli.serving.served_run import RunToServe
        from seq2seq_cli.serving.server import serve as serve_runs
        from seq2seq_cli.serving.service import ServiceSettings
    except ImportError as error:
        raise UserError(
            f"serve needs the package {error.name}: pip install 'seq2seq-cli[serve]'"
        ) from None
    check_model_of_runs(model, runs)
    to_serve = [
        RunToServe(run, pair, model, tuple(overrides or ()), device or "auto")
        for run, pair in zip(runs, _language_pairs(langs, runs), strict=True)
    ]
    token = _token(token_file)
    if not (token or no_auth or _is_loopback(host)):
        raise UserError(
            f"anybody who reaches {host} could use the server: put a token into SEQ2SEQ_TOKEN or "
            "--token-file, or give --no-auth"
        )
    hosts = tuple(name.lower() for name in allow_host or ())
    if not hosts and _is_loopback(host):
        hosts = ("localhost", "127.0.0.1", "[::1]")
    serve_runs(
        to_serve,
        (host, port),
        ServiceSettings(
            workers=processes or num_cores(),
            queue_limit=queue_limit,
            cache_bytes=cache_megabytes << 20,
        ),
        Limits(char_limit, batch_limit, alternatives_limit, seconds=time_limit),
        Access(token, hosts, tuple(allow_origin or ())),
        logs_text=log_text,
    )


def _language_pairs(given: list[str] | None, runs: list[Path]) -> "list[LanguagePair | None]":
    """Return the languages of each run, if they are given."""
    from seq2seq_cli.config.languages import language_pair

    if not given:
        return [None] * len(runs)
    if len(given) != len(runs):
        raise UserError(f"--langs is given {len(given)} times, for {len(runs)} runs")
    return [language_pair(text) for text in given]


def _token(file: Path | None) -> str | None:
    from seq2seq_cli.files import read_bounded

    if file is None:
        return os.environ.get("SEQ2SEQ_TOKEN") or None
    token = read_bounded(file, 4_096).decode("utf-8", "replace").strip()
    if not token:
        raise UserError(f"{file} has no token")
    return token


def _is_loopback(host: str) -> bool:
    """Return True if only programs on this machine reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
