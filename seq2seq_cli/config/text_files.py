"""Paths in a config: which are files of text, and that these exist when the user names them."""

import os
import shlex
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from seq2seq_cli.errors import UserError, short
from seq2seq_cli.paths import expanded, files_of, is_remote, remote_path


def is_given_now(info: ValidationInfo) -> bool:
    """Return True for a config that the user passes, not one that is read from a run folder."""
    return bool(info.context and info.context.get("is_given_now"))


def _expanded(path: Path, info: ValidationInfo) -> Path:
    return expanded(path) if is_given_now(info) and not is_remote(path) else path


def _as_text_path(given: Any, as_path: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Path:
    """Accept a path or a URL; a URL of a run folder may need packages that are not installed."""
    try:
        url = os.path.expandvars(given) if is_given_now(info) and isinstance(given, str) else given
        remote = remote_path(url) if isinstance(url, str) else None
    except UserError as error:
        if is_given_now(info):
            raise ValueError(str(error)) from None
        remote = None
    return remote or (given if is_remote(given) else cast(Path, as_path(given)))


def _where(path: Path, info: ValidationInfo) -> str:
    """Return where a missing file was looked for, and whether the config's folder has it."""
    if is_remote(path) or path.is_absolute():
        return ""
    folder = (info.context or {}).get("folder")
    is_there = folder is not None and all(file.is_file() for file in files_of(folder / path))
    hint = f"; it is in the folder of the config: cd {shlex.quote(str(folder))}" if is_there else ""
    return f" in {Path.cwd()}{hint}"


def _must_be_files(path: Path, info: ValidationInfo) -> Path:
    """Check that text files exist, except in a run folder, which may outlive its text."""
    if not is_given_now(info):
        return path
    try:
        are_files = all(file.is_file() for file in files_of(path))
        is_folder, exists = path.is_dir(), path.exists()
    except Exception as error:  # any exception of a remote file system's library
        if not is_remote(path):
            raise
        raise ValueError(f"cannot read {path}: {short(str(error))}") from None
    if not are_files:
        if is_folder:
            raise ValueError(f"the folder {path} has no files")
        if not exists:
            raise ValueError(f"there is no file {path}{_where(path, info)}")
        raise ValueError(f"{path} is a stream, which can be read only once: write it to a file")
    return path


AnyPath = Annotated[Path, Field(strict=False), AfterValidator(_expanded)]
TextFile = Annotated[
    Path,
    Field(strict=False),
    WrapValidator(_as_text_path),
    AfterValidator(_expanded),
    AfterValidator(_must_be_files),
    PlainSerializer(lambda path, info: str(path) if info.mode == "json" else path),
]
