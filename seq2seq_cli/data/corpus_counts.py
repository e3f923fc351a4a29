"""Line counts of training text, kept in the cache: resuming a run need not read its text again."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.config.types import OnBadLine
from seq2seq_cli.data.cache import COUNTS, cache_folder, writing
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import MEBIBYTE, read_bounded, write_atomic
from seq2seq_cli.text.corpus import CorpusCounts, hash_of_files
from seq2seq_cli.text.leakage import count_corpus

_VERSION = 3  # of what is counted

_Counts = tuple[CorpusCounts, CorpusCounts | None]


def cached_counts(
    train: ParallelText, valid: ParallelText | None, on_bad_line: OnBadLine
) -> _Counts:
    """Return what `count_corpus` returns, from the cache if it has counted the same text before.

    If another process is counting it, as a run that was started together with this one, that is
    waited for.
    """
    texts = [[hash_of_files(t.files), t.forms] for t in (train, valid) if t is not None]
    key = hashlib.sha256(json.dumps([*texts, on_bad_line, _VERSION]).encode()).hexdigest()[:32]
    path = cache_folder() / COUNTS / f"{key}.json"
    if (found := _read(path)) is not None:
        return found
    with writing(f"{COUNTS}-{key}"):
        if (found := _read(path)) is not None:
            return found
        counts = count_corpus(train, valid, on_bad_line)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps([one and asdict(one) for one in counts]).encode())
        return counts


def _read(path: Path) -> _Counts | None:
    """Return counts from the cache; None if they are missing or damaged."""
    try:
        return TypeAdapter(_Counts).validate_json(read_bounded(path, MEBIBYTE))
    except (FileNotFoundError, UserError, ValueError):
        return None
