"""Removes the folders of the training machine from what is shared of a run."""

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import Any

from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.text import Corpora, Corpus
from seq2seq_cli.paths import is_remote

# Within a text, as in `--set data.train.src=/home/me/a.de`: the query of a URL, which may be
# secret, and a URL or a path that is absolute or leads out of the folder.
_QUERY = re.compile(
    r"((?<![\w/])[A-Za-z][A-Za-z0-9+]*://[^\s\"'?#]{0,4096})"
    r"[?#][^\s\"']*?(?=[,;\]})]*(?:[\s\"']|\Z))"
)
_QUOTED = re.compile(r"([\"'])[~/][^\"']*\1")
_OUTSIDE = ("/", "~", "../", "$")  # begin a path; $HOME is expanded
_PATH = re.compile(
    r"(?<![\w.~/-])(?:~|[A-Za-z][A-Za-z0-9+]*:|(?:[\w.~-]+/)*\.\.)?(?:/+[^\s/,;\"'\[\]{}()]+)+/*"
)


def portable_config(config: Config) -> Config:
    """Return the config with names of files in place of absolute paths and URLs.

    Relative paths into the folder stay.
    """
    data = config.data
    corpora = {
        "train": _portable(data.train),
        "valid": _portable(data.valid or ()) or None,
        "general": _portable(data.general or ()) or None,
    }
    reuse = config.tokenizer.reuse and _portable_path(config.tokenizer.reuse)
    return config.updated(data=corpora, tokenizer={"reuse": reuse})


def portable_record(value: Any, config: Config) -> Any:
    """Return a part of manifest.json with the names of files in place of absolute paths."""
    data = config.data
    corpora = (*data.train, *(data.valid or ()), *(data.general or ()))
    paths = [path for corpus in corpora for path in corpus.paths]
    paths += [config.tokenizer.reuse] if config.tokenizer.reuse else []
    known = sorted({str(path) for path in paths if _names_folder(path)}, key=len, reverse=True)

    def portable(text: str) -> str:
        for path in known:  # which may contain spaces
            text = text.replace(path, PurePath(path).name)
        return portable_text(text)

    return _mapped(value, portable)


def portable_text(text: str) -> str:
    """Return a text with the names of files in place of URLs and paths out of the folder."""
    text = _QUERY.sub(r"\1", text)
    if text.startswith(_OUTSIDE):
        return PurePath(text).name
    name, separator, value = text.partition("=")
    if separator and value.startswith(_OUTSIDE):
        return f"{name}={PurePath(value).name}"
    text = _QUOTED.sub(lambda match: f"{match[1]}{PurePath(match[0]).name}", text)
    return _PATH.sub(lambda match: PurePath(match[0]).name, text)


def portable_command(arguments: Sequence[object]) -> str:
    """Return a recorded command as a line for a shell."""
    words = list(map(str, arguments))
    if words:
        name = PurePath(words[0]).name
        words[0] = "seq2seq" if name == "__main__.py" else name  # python -m
    return shlex.join(words)


def _mapped(value: Any, function: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(part, function) for key, part in value.items()}
    if isinstance(value, list):
        return [_mapped(part, function) for part in value]
    return function(value) if isinstance(value, str) else value


def _portable(corpora: Corpora) -> tuple[Corpus, ...]:
    copies = []
    for corpus in corpora:
        files = {name: getattr(corpus, name) for name in ("src", "tgt", "pairs")}
        changes = {name: path and _portable_path(path) for name, path in files.items()}
        copies.append(corpus.model_copy(update=changes))
    return tuple(copies)


def _portable_path(path: Path) -> Path:
    if is_remote(path):
        return Path(Path(str(path).partition("?")[0]).name)
    return Path(path.name) if _names_folder(path) else path


def _names_folder(path: Any) -> bool:
    return not is_remote(path) and (path.is_absolute() or ".." in path.parts)
