"""Splits a text into training, validation and test parts that share no source."""

import bisect
import hashlib
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.config.types import SIDES
from seq2seq_cli.console import counted
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import replacing
from seq2seq_cli.text.corpus import CorpusCounts, Pair, count_pairs
from seq2seq_cli.text.leakage import normalized

REST = "train"


def split_files(folder: Path, parts: Mapping[str, int]) -> dict[str, dict[str, Path]]:
    """Return the files that `split` writes, by part and side."""
    return {
        part: {side: folder / f"{part}.{side}" for side in SIDES}
        for part in (*(name for name, size in parts.items() if size), REST)
    }


def split(given: ParallelText, folder: Path, parts: Mapping[str, int]) -> dict[str, int]:
    """Write parts of at least the given sizes, and the rest as `train`; return all sizes.

    Sources are sorted by hash, and the first ones are held out with all of their translations, so
    that the split does not depend on the order of lines. Sources that differ only in case, width,
    white space or features count as the same. Unreadable pairs and pairs with an empty side are
    left out. Needs 8 bytes of memory per pair. Raises UserError if no pairs remain for training.
    """
    files = split_files(folder, parts)
    keys = np.fromiter(map(_key, count_pairs(given, "skip", CorpusCounts())), np.uint64)
    sources, counts = np.unique(keys, return_counts=True)
    pairs_up_to = np.concatenate([[0], np.cumsum(counts)])
    wanted, ends = [parts[part] for part in files if part != REST], [0]
    for size in wanted:
        ends.append(int(np.searchsorted(pairs_up_to, pairs_up_to[ends[-1]] + size)))
        if ends[-1] >= len(sources):
            found = f"{counted(len(keys), 'pair')} with {counted(len(sources), 'different source')}"
            asked = " and ".join(f"{size:,} for {part}" for part, size in parts.items() if size)
            raise UserError(f"{given.name}: {found} are too few to hold out {asked}")
    bounds = [int(source) for source in sources[ends[1:]]]  # where the next part begins
    folder.mkdir(parents=True, exist_ok=True)
    sizes = dict.fromkeys(files, 0)
    names = list(files)
    with ExitStack() as complete, ExitStack() as stack:
        opened = {
            (part, side): stack.enter_context(complete.enter_context(replacing(path)).open("wb"))
            for part, sides in files.items()
            for side, path in sides.items()
        }
        for pair in count_pairs(given, "skip", CorpusCounts()):
            part = names[bisect.bisect_right(bounds, _key(pair))]
            sizes[part] += 1
            for side, text in zip(SIDES, (pair.source_line, pair.tgt), strict=True):
                opened[part, side].write(f"{text}\n".encode())
    return sizes


def _key(pair: Pair) -> int:
    """Return a hash of the source, without features, that is the same on every machine."""
    digest = hashlib.blake2b(normalized(pair.src).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
