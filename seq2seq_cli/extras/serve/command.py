"""The command serve."""

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from seq2seq_cli import plugins
from seq2seq_cli.cli.app import app
from seq2seq_cli.cli.options import (
    Device,
    Overrides,
    WhichModel,
    check_model_of_runs,
    path_argument,
    path_option,
)
from seq2seq_cli.errors import UserError

NETWORK, LIMITS = "Network and access", "Limits"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]+)?")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}  # which browsers leave out of an origin

EXAMPLES = (
    "**Examples**\n\n"
    "seq2seq serve runs/quickstart      (then open http://127.0.0.1:5000)\n\n"
    "seq2seq serve runs/de-en runs/en-de --port 8000\n\n"
    "seq2seq serve runs/mine --langs de-en --set decoding.beam_size=5\n\n"
    "SEQ2SEQ_TOKEN=secret seq2seq serve runs/mine --host 0.0.0.0\n\n"
    'curl http://127.0.0.1:5000/translate -d q="Ein Bier." -d source=de -d target=en'
)


def _option(panel: str, help_text: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, **settings)


Runs = Annotated[list[Path], path_argument("RUN", "Run folders, one for each language pair.")]
LanguagePairs = Annotated[
    list[str] | None,
    typer.Option(
        "--langs",
        metavar="SRC-TGT",
        help="Languages, such as de-en, if a run does not record them; once per RUN, in order.",
    ),
]
Host = Annotated[str, _option(NETWORK, "Address to listen on.")]
Port = Annotated[int, _option(NETWORK, "Port to listen on; 0: any free port.", min=0, max=65_535)]
TokenFile = Annotated[
    Path | None,
    path_option(
        help_text="File with the token that clients must send, instead of $SEQ2SEQ_TOKEN.",
        rich_help_panel=NETWORK,
    ),
]
NoAuth = Annotated[bool, _option(NETWORK, "Accept requests without a token.", "--no-auth")]
AllowHost = Annotated[
    list[str] | None,
    _option(
        NETWORK,
        "Allowed value of the Host header; may be repeated.",
        show_default="loopback names if --host is a loopback address, otherwise all",
    ),
]
AllowOrigin = Annotated[
    list[str] | None,
    _option(
        NETWORK,
        "Origin whose pages may call the server (CORS), or *; may be repeated.",
        metavar="ORIGIN",
    ),
]
CharLimit = Annotated[int, _option(LIMITS, "Maximum number of characters in a text.", min=1)]
BatchLimit = Annotated[int, _option(LIMITS, "Maximum number of texts in a request.", min=1)]
AlternativesLimit = Annotated[
    int, _option(LIMITS, "Maximum number of alternatives for a text.", min=0, max=100)
]
TimeLimit = Annotated[float, _option(LIMITS, "Timeout of a request in seconds.", min=0.1)]
QueueLimit = Annotated[
    int,
    _option(LIMITS, "Maximum number of queued sentences; beyond it requests get 503.", min=1),
]
CacheSize = Annotated[
    int, _option(LIMITS, "Size of the cache of translations in MB.", "--cache-megabytes", min=0)
]
NumProcesses = Annotated[
    int | None,
    typer.Option(min=1, help="Number of workers on a CPU.", show_default="one per core"),
]
LogText = Annotated[bool, typer.Option("--log-text", help="Also log texts and translations.")]


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
    """Serve trained models: a web page for translation, and the LibreTranslate and DeepL APIs.

    Models are reloaded when their files change: a run in training serves its current best model.
    """
    from seq2seq_cli.config.languages import LanguagePair, languages_from_option
    from seq2seq_cli.machine import num_cores

    if not hasattr(os, "fork"):
        raise UserError(
            "seq2seq serve needs Linux or macOS: the processes that translate are forks, which "
            "share a model; on Windows it runs in the Windows Subsystem for Linux (WSL)"
        )
    host = host.strip("[]")
    if "/" in host:
        raise UserError(f"--host {host} is a path or a URL: write a host name or an IP address")
    check_model_of_runs(model, runs)
    pairs: list[LanguagePair | None] = [languages_from_option(pair) for pair in langs or ()]
    if pairs and len(pairs) != len(runs):
        raise UserError(f"--langs is given {len(pairs)} times, for {len(runs)} runs")
    token = _token(token_file, host, no_auth=no_auth)
    server = plugins.load("serve", "server")
    server.serve(
        [
            server.RunToServe(run, pair, model, tuple(overrides or ()), device or "auto")
            for run, pair in zip(runs, pairs or [None] * len(runs), strict=True)
        ],
        (host, port),
        server.Limits(char_limit, batch_limit, alternatives_limit, time_limit),
        server.Access(token, _hosts(allow_host, host), tuple(map(_origin, allow_origin or ()))),
        workers=processes or num_cores(),
        queue_limit=queue_limit,
        cache_bytes=cache_size * 1_000_000,
        logs_text=log_text,
    )


def _token(file: Path | None, host: str, *, no_auth: bool) -> str | None:
    """Return the token; raises UserError if one is needed and missing."""
    from seq2seq_cli.files import read_bounded

    if file and no_auth:
        raise UserError("--token-file and --no-auth exclude each other")
    if file is None:
        token = os.environ.get("SEQ2SEQ_TOKEN", "").strip()
    else:
        token = read_bounded(file, 4_096).decode("utf-8", "replace").strip()
        if not token:
            raise UserError(f"{file} has no token")
    if not (no_auth or (token.isascii() and token.isprintable())):
        raise UserError(
            "the token has a line end or other characters outside of printable ASCII, which no "
            "header can contain"
        )
    if not (token or no_auth or _is_loopback(host)):
        raise UserError(
            f"anyone who reaches {host} could use the server: set a token in SEQ2SEQ_TOKEN or "
            "--token-file, or give --no-auth"
        )
    return None if no_auth else token or None


def _hosts(given: list[str] | None, host: str) -> tuple[str, ...]:
    """Return the allowed values of the Host header; empty: all."""
    if not given and not _is_loopback(host):
        return ()
    names = ("localhost", "127.0.0.1", "[::1]", *map(_in_header, (host, *(given or ()))))
    return tuple(dict.fromkeys(name.lower() for name in names))


def _in_header(given: str) -> str:
    """Return a host as browsers send it, given its name, its address or a URL."""
    host = given.partition("://")[2].partition("/")[0] or given
    return f"[{host}]" if host.count(":") > 1 and "[" not in host else host


def _origin(given: str) -> str:
    """Return an allowed origin as browsers write it. Raises UserError if it is none."""
    origin = given.lower().removesuffix("/")
    if origin != "*" and not _ORIGIN.fullmatch(origin):
        raise UserError(
            f"--allow-origin {given} is not an origin: write scheme://host, or scheme://host:port, "
            "as in https://www.example.org, or * for all"
        )
    scheme = origin.partition(":")[0]
    return origin.removesuffix(_DEFAULT_PORTS.get(scheme, ""))


def _is_loopback(host: str) -> bool:
    """Return True if only programs on this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
