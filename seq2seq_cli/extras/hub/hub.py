"""Pushes a run to a hub of models, and pulls one, by the client `huggingface_hub`.

A push is one commit, and a pull a folder that appears when it is complete and checked. The token
comes from the environment or `hf auth login`; this program never sees it.
"""

import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seq2seq_cli import plugins
from seq2seq_cli.config.loader import config_yaml, load_config
from seq2seq_cli.config.safe_yaml import MOST_BYTES
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.extras.export.portable import portable_config, portable_record
from seq2seq_cli.files import MEBIBYTE, fsync, read_json, require_new_folder, write_json
from seq2seq_cli.run_folder import RunFolder

logger = logging.getLogger(__name__)

_MODEL, _CONFIG, _CARD = "model.safetensors", "config.yaml", "README.md"
# Files to push and pull, with their maximum sizes in bytes; weights are checked elsewhere.
_MOST_BYTES: dict[str, float] = {
    _CONFIG: MOST_BYTES,
    _MODEL: float("inf"),
    **dict.fromkeys(("tokenizer.model", "src.model", "tgt.model"), 64 * MEBIBYTE),
    **dict.fromkeys(("statistics.json", "search.json", "manifest.json"), 16 * MEBIBYTE),
    "metrics.jsonl": 256 * MEBIBYTE,
    "candidates.jsonl": MEBIBYTE,
    _CARD: MEBIBYTE,
}
_CACHE = ".cache"  # of huggingface_hub, in a folder that it downloads to
_USAGE = """```bash
pip install '.[hub]'  # in a clone of seq2seq-cli
seq2seq pull {repo} {name}
seq2seq translate {name} "a sentence"
```

Nothing of the folder is executed when it is loaded: it holds safetensors, JSON, YAML and a
SentencePiece model.
"""


def push(run_dir: Path, repo: str, is_public: bool, branch: str | None, license_name: str) -> str:
    """Upload what `translate` and `eval` need, with a card, as one commit; return its address.

    A repository or branch that does not exist is created. Raises UserError if the run cannot be
    loaded, if the hub refuses, and if the repository exists and is not as public as asked.
    """
    api = hub_api()
    import huggingface_hub as hub

    run = RunFolder(run_dir)
    run.ensure_is_run()
    translator = Translator.load(run_dir, "cpu")
    with tempfile.TemporaryDirectory() as temporary:
        files = _portable_files(run, Path(temporary), translator, repo, license_name)
        with hub_errors(repo):
            api.create_repo(repo, private=not is_public, exist_ok=True)
            is_private = api.repo_info(repo).private
            if is_public and is_private:
                raise UserError(f"the repository {repo} is private: push to it without --public")
            if not (is_public or is_private):
                raise UserError(f"the repository {repo} is public: push to it with --public")
            if branch is not None:
                api.create_branch(repo, branch=branch, exist_ok=True)
            present = api.list_repo_files(repo, revision=branch)
            stale = (_MOST_BYTES.keys() - files.keys()) & set(present)
            added = [hub.CommitOperationAdd(name, str(path)) for name, path in files.items()]
            removed = [hub.CommitOperationDelete(name) for name in sorted(stale)]
            message = f"Push {run_dir.resolve().name} with seq2seq-cli"
            commit = api.create_commit(
                repo, [*added, *removed], commit_message=message, revision=branch
            )
    return str(commit.commit_url)


def _portable_files(
    run: RunFolder, temporary: Path, translator: Translator, repo: str, license_name: str
) -> dict[str, Path]:
    """Return the files to upload by name, without paths of this machine in them."""
    from seq2seq_cli.extras.export.model_card import model_card  # with PyTorch: pull needs none

    config = load_config(run.config)
    usage = _USAGE.format(repo=repo, name=default_folder(repo))
    card = model_card(run, config, translator.statistics, "seq2seq-cli", usage, license_name)
    (temporary / _CARD).write_bytes(card.encode())
    (temporary / _CONFIG).write_bytes(config_yaml(portable_config(config)).encode())
    if run.manifest.exists():
        write_json(temporary / "manifest.json", portable_record(read_json(run.manifest), config))
    written = {path.name: path for path in temporary.iterdir()}
    kept = {name: run.path / name for name in _MOST_BYTES if (run.path / name).is_file()}
    return kept | written


def pull(repo: str, run_dir: Path, revision: str | None = None) -> str:
    """Download a run to a new folder, which exists when it is complete and can be loaded.

    An interrupted download continues the next time. Raises UserError if the folder exists, if the
    hub has no such run, and if what it has cannot be loaded. Returns what was pulled.
    """
    api = hub_api()
    require_new_folder(run_dir)
    part = run_dir.with_name(f"{run_dir.name}.part")
    with hub_errors(repo):
        info = api.repo_info(repo, revision=revision, files_metadata=True)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings}
        names = [name for name in _MOST_BYTES if name in sizes]
        for name in (_CONFIG, _MODEL):
            if name not in names:
                raise UserError(f"{repo} is not a run of this program: it has no {name}")
        for name in names:
            if sizes[name] > (most := _MOST_BYTES[name]):
                raise UserError(
                    f"{repo}: {name} is larger than {most:,.0f} bytes, the limit for such a file"
                )
        _check_is_ours(part)
        for name in names:
            api.hf_hub_download(repo, name, revision=info.sha, local_dir=part)
    shutil.rmtree(part / _CACHE, ignore_errors=True)
    for stale in _MOST_BYTES.keys() - set(names):  # of another revision, interrupted before
        (part / stale).unlink(missing_ok=True)
    try:
        RunFolder(part).ensure_is_run()
        Translator.load(part, "cpu")
    except UserError as error:
        shutil.rmtree(part)
        problem = str(error).replace(f"{part}/", "")
        raise UserError(f"the run of {repo} cannot be loaded: {problem}") from None
    for name in names:
        fsync(part / name)
    part.replace(run_dir)
    fsync(run_dir.absolute().parent)
    return f"{repo} at commit {info.sha[:12]}"


def _check_is_ours(part: Path) -> None:
    """Raise UserError if the folder of an interrupted download has anything else in it."""
    allowed = {*_MOST_BYTES, _CACHE}
    is_ours = part.is_dir() and all(path.name in allowed for path in part.iterdir())
    if part.exists() and (not is_ours or any(path.is_symlink() for path in part.rglob("*"))):
        raise UserError(
            f"{part} exists and is not an interrupted download: remove it, or give another RUN"
        )


def default_folder(repo: str) -> Path:
    """Return the folder that a repository is pulled to if none is named."""
    return Path("runs") / repo.rpartition("/")[2]


def hub_api() -> Any:
    """Return the client for the hub of HF_ENDPOINT; UserError if it is not installed."""
    plugins.require("huggingface_hub", "hub", "the Hugging Face Hub")
    import huggingface_hub

    return huggingface_hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="seq2seq-cli")


@contextmanager
def hub_errors(repo: str) -> Iterator[None]:
    """Turn errors of the client and of the network into a UserError."""
    from huggingface_hub import errors

    network: Any = errors.HfHubHTTPError.__bases__  # of the library that the client uses
    try:
        with warnings.catch_warnings(record=True) as caught:  # of the hub, about the card
            yield
    except errors.HFValidationError as error:
        problem = f"{repo} is not the name of a repository: {short(str(error))}"
    except errors.RevisionNotFoundError:
        problem = f"{repo} has no such revision: --revision is a branch, tag or commit"
    except errors.LocalTokenNotFoundError:
        problem = "the hub requires a token: log in with `hf auth login`, or set HF_TOKEN"
    except errors.HfHubHTTPError as error:
        status, answer = error.response.status_code, short(str(error.server_message or error))
        problem = f"the hub refused with status {status}: {answer}"
        if status == 401:
            problem = (
                f"the hub does not know the token, or {repo} needs one: `hf auth login`, "
                "or HF_TOKEN"
            )
        elif status == 403:
            problem = f"the token may not do this with {repo}: it needs the right to write"
        elif status == 404:
            problem = f"the hub has no repository {repo}, or the token may not read it"
    except (*network, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk
        reason = short(str(error) or type(error).__name__)
        problem = f"the transfer to or from the hub failed: {reason}"
    else:
        for warning in caught:
            logger.warning(short(str(warning.message)))
        return
    raise UserError(problem)
