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
from seq2seq_cli.errors import UserError, pip_arguments

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
LanguagePairs = Annotated[
    list[str] | None,
    typer.Option(
        "--langs",
        metavar="SRC-TGT",
        help="Languages of a run that does not name them, such as de-en; once for each RUN.",
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen at.", rich_help_panel=NETWORK)]
Port = Annotated[
    int, typer.Option(min=0, max=65_535, help="Port; 0: a free one.", rich_help_panel=NETWORK)
]
TokenFile = Annotated[
    Path | None,
    path_option(
        help_text="File with the token that requests need; or the variable SEQ2SEQ_TOKEN.",
        rich_help_panel=NETWORK,
    ),
]
NoAuth = Annotated[
    bool, typer.Option("--no-auth", help="Let anybody use the server.", rich_help_panel=NETWORK)
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        help="Name that requests may be for; may be repeated.",
        show_default="those of the loopback interface, where it listens there",
        rich_help_panel=NETWORK,
    ),
]
AllowOrigin = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN",
        help="Origin of pages that may call the server (CORS), or *; may be repeated.",
        rich_help_panel=NETWORK,
    ),
]
CharLimit = Annotated[
    int, typer.Option(min=1, help="Characters of a text.", rich_help_panel=LIMITS)
]
BatchLimit = Annotated[int, typer.Option(min=1, help="Texts of a request.", rich_help_panel=LIMITS)]
AlternativesLimit = Annotated[
    int, typer.Option(min=0, max=100, help="Alternatives of a text.", rich_help_panel=LIMITS)
]
TimeLimit = Annotated[
    float, typer.Option(min=0.1, help="Seconds for a request.", rich_help_panel=LIMITS)
]
QueueLimit = Annotated[
    int,
    typer.Option(
        min=1,
        help="Sentences that wait, from which on requests are refused (503).",
        rich_help_panel=LIMITS,
    ),
]
CacheSize = Annotated[
    int,
    typer.Option(
        "--cache-megabytes", min=0, help="Memory for latest translations.", rich_help_panel=LIMITS
    ),
]
NumProcesses = Annotated[
    int | None,
    typer.Option(min=1, help="Translating processes on a CPU.", show_default="one for each core"),
]
LogText = Annotated[bool, typer.Option("--log-text", help="Log texts and translations too.")]


@app.command(epilog=EXAMPLES)
def serve(
    runs: Runs,
    langs: LanguagePairs = None,
    host: Host = "127.0.0.1",
    port: Port = 5_000,
    token_file: TokenFile = None,
    no_auth: NoAuth = False,
    allow_host: AllowHost = None,
    allow_origin: AllowOrigin = None,
    char_limit: CharLimit = 5_000,
    batch_limit: BatchLimit = 64,
    alternatives_limit: AlternativesLimit = 5,
    time_limit: TimeLimit = 60.0,
    queue_limit: QueueLimit = 4_096,
    cache_size: CacheSize = 64,
    processes: NumProcesses = None,
    overrides: Overrides = None,
    device: Device = None,
    model: WhichModel = "best",
    log_text: LogText = False,
) -> None:
    """Serve trained models: a page to translate with, and the interface of LibreTranslate.

    The models of runs that are still being trained are replaced by better ones as they appear.
    """
    from seq2seq_cli.machine import num_cores

    check_model_of_runs(model, runs)
    pairs = _language_pairs(langs, runs)
    token = _token(token_file, host, no_auth=no_auth)
    try:
        from seq2seq_cli.extras.serve.server import Access, Limits, RunToServe, ServiceSettings
        from seq2seq_cli.extras.serve.server import serve as serve_runs
    except ImportError as error:
        raise UserError(
            f"serve needs the package {error.name}: pip install {pip_arguments('serve')}"
        ) from None
    serve_runs(
        [
            RunToServe(run, pair, model, tuple(overrides or ()), device or "auto")
            for run, pair in zip(runs, pairs, strict=True)
        ],
        (host, port),
        ServiceSettings(
            workers=processes or num_cores(),
            queue_limit=queue_limit,
            cache_bytes=cache_size << 20,
        ),
        Limits(char_limit, batch_limit, alternatives_limit, time_limit),
        Access(token, _hosts(allow_host, host), tuple(allow_origin or ())),
        logs_text=log_text,
    )


def _language_pairs(given: list[str] | None, runs: list[Path]) -> "list[LanguagePair | None]":
    """Return the languages of each run, if they are given."""
    from seq2seq_cli.config.languages import languages_from_option

    if not given:
        return [None] * len(runs)
    if len(given) != len(runs):
        raise UserError(f"--langs is given {len(given)} times, for {len(runs)} runs")
    return [languages_from_option(text) for text in given]


def _token(file: Path | None, host: str, *, no_auth: bool) -> str | None:
    """Return the token that requests need; raises UserError if it is missing."""
    from seq2seq_cli.files import read_bounded

    if file is None:
        token = os.environ.get("SEQ2SEQ_TOKEN", "")
    else:
        token = read_bounded(file, 4_096).decode("utf-8", "replace").strip()
        if not token:
            raise UserError(f"{file} has no token")
    if not (token or no_auth or _is_loopback(host)):
        raise UserError(
            f"anybody who reaches {host} could use the server: put a token into SEQ2SEQ_TOKEN or "
            "--token-file, or give --no-auth"
        )
    return None if no_auth else token or None


def _hosts(given: list[str] | None, host: str) -> tuple[str, ...]:
    """Return the names that requests may be for; empty: all."""
    if not given and not _is_loopback(host):
        return ()
    own = f"[{host}]" if ":" in host else host
    names = ("localhost", "127.0.0.1", "[::1]", own, *(given or ()))
    return tuple(dict.fromkeys(name.lower() for name in names))


def _is_loopback(host: str) -> bool:
    """Return True if only programs on this machine reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
