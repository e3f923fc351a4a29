"""The commands push and pull: runs on a hub of models."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from seq2seq_cli.cli.app import app
from seq2seq_cli.cli.options import RunDir, path_argument
from seq2seq_cli.console import printable
from seq2seq_cli.extras.export.command import License

Repository = Annotated[
    str, typer.Argument(metavar="REPO", help="Repository on the hub, as owner/name.")
]


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq push runs/quickstart me/quickstart\n\n"
    "seq2seq push runs/quickstart me/quickstart --public --license apache-2.0"
)
def push(
    run_dir: RunDir,
    repo: Repository,
    is_public: Annotated[
        bool, typer.Option("--public/--private", help="Visibility of the repository.")
    ] = False,
    revision: Annotated[
        str | None, typer.Option(metavar="BRANCH", help="Branch to push to.", show_default="main")
    ] = None,
    license_name: License = "unknown",
) -> None:
    """Upload a run with a model card to the Hugging Face Hub, or the hub at HF_ENDPOINT.

    Checkpoints, logs and local paths are not uploaded. The token comes from HF_TOKEN or `hf auth
    login`.
    """
    from seq2seq_cli.extras.hub.hub import push as push_run

    address = push_run(run_dir, repo, is_public, revision, license_name)
    typer.echo(f"pushed {printable(str(run_dir))} as {address}")


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq pull me/quickstart\n\n"
    "seq2seq pull me/quickstart runs/theirs --revision v1"
)
def pull(
    repo: Repository,
    run_dir: Annotated[
        Path | None,
        path_argument("RUN", "New or empty folder to write; runs/NAME if left out."),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(metavar="NAME", help="Branch, tag or commit.", show_default="main")
    ] = None,
) -> None:
    """Download a run from a hub.

    Nothing in the run is executed. The folder appears once the download is complete and checked.
    """
    from seq2seq_cli.extras.hub import hub

    folder = run_dir or hub.default_folder(repo)
    what, name = hub.pull(repo, folder, revision), printable(str(folder))
    typer.echo(f"pulled {what} to {name}; next: seq2seq translate {shlex.quote(name)}")
