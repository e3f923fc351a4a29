"""The token ids of a text, read from disk as needed and never held in memory.

A text is stored in segments: one for each corpus, or several if it has many files. A segment is a
folder in the cache, named by the hash of everything that it depends on: `src.ids` and `tgt.ids`
(all sentences concatenated, each ending in EOS), `src.offsets` and `tgt.offsets` (sentence i is
ids[offsets[i]:offsets[i + 1]]), and `facts.json`. So the segments of a text can be made by several
machines, and segments of unchanged files are reused.
"""

import bisect
import hashlib
import json
import logging
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from seq2seq_cli.config.text import Corpus, ParallelText
from seq2seq_cli.config.types import SIDES, OnBadLine
from seq2seq_cli.data import cache
from seq2seq_cli.data.cache import FACTS, changed_meanwhile, key_of
from seq2seq_cli.data.tokenization import Ids, Splitter, TokenizedChunk, TokenizedSide, splitter
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import MEBIBYTE, fsync, naming, read_bounded, reading
from seq2seq_cli.machine import allow_many_open_files, num_cores
from seq2seq_cli.text.corpus import hash_of_files, read_pairs
from seq2seq_cli.tokenizers.tokenizer import UNK_ID, Tokenizers

logger = logging.getLogger(__name__)

_FORMAT = 1  # increased when the file format changes, so that old caches are not read
_IDS_AT_ONCE = 1 << 20
_PAIRS_AT_ONCE = 1 << 20

_SMALLEST_SEGMENT = 1 << 28  # bytes of text, if a corpus has several files
_MOST_SEGMENTS = 64  # approximately; each has five open files
_LARGE_TEXT = 1 << 25  # bytes; tokenization is parallel above this size

_POSITION = threading.Lock()  # of files that are read


@dataclass(frozen=True)
class SideStats:
    """Counts of one side of the pairs in a store; `tokens` and `longest` include EOS."""

    tokens: int = 0
    unknown: int = 0
    longest: int = 0

    def __add__(self, other: "SideStats") -> "SideStats":
        tokens, unknown = self.tokens + other.tokens, self.unknown + other.unknown
        return SideStats(tokens, unknown, max(self.longest, other.longest))


@dataclass(frozen=True)
class StoreStats:
    pairs: int = 0
    too_long: int = 0
    src: SideStats = SideStats()
    tgt: SideStats = SideStats()

    def __add__(self, other: "StoreStats") -> "StoreStats":
        pairs, too_long = self.pairs + other.pairs, self.too_long + other.too_long
        return StoreStats(pairs, too_long, self.src + other.src, self.tgt + other.tgt)


class _ArrayFile:
    """An array in a file; a mapping would keep many times the bytes that are read at random."""

    def __init__(self, path: Path, dtype: npt.DTypeLike) -> None:
        self._path = path
        with reading(path):
            self._file = path.open("rb", buffering=0)
        weakref.finalize(self, self._file.close)
        self._dtype = np.dtype(dtype)

    def __len__(self) -> int:
        return os.fstat(self._file.fileno()).st_size // self._dtype.itemsize

    def read(self, start: int, end: int) -> npt.NDArray[Any]:
        """Return a slice of less than 2 GiB, which is the most that Linux reads at once."""
        first, size = start * self._dtype.itemsize, (end - start) * self._dtype.itemsize
        try:  # two reads for each sentence: faster than `naming`
            if hasattr(os, "pread"):
                found = os.pread(self._file.fileno(), size, first)
            else:  # Windows
                with _POSITION:
                    self._file.seek(first)
                    found = self._file.read(size)
        except OSError as error:
            error.filename = str(self._path)
            raise
        return np.frombuffer(found, self._dtype)


class _SegmentSide:
    def __init__(self, folder: Path, side: str) -> None:
        self._offsets = _ArrayFile(folder / f"{side}.offsets", np.int64)
        self.ids = _ArrayFile(folder / f"{side}.ids", np.int32)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Ids:
        start, end = self._offsets.read(index, index + 2)
        return self.ids.read(int(start), int(end))

    def validate(self, facts: SideStats, vocab_size: int) -> None:
        """Raise ValueError unless the files are as `_SideWriter` writes them."""
        first, last = (int(self._offsets.read(n, n + 1)[0]) for n in (0, len(self)))
        if not (first == 0 and last == facts.tokens == len(self.ids)):
            raise ValueError("sentences do not cover the tokens")
        for start in range(0, len(self), _IDS_AT_ONCE):
            if (self.lengths(start, min(start + _IDS_AT_ONCE, len(self))) < 1).any():
                raise ValueError("sentences overlap")
        for ids in self.chunks():
            if ids.min() < 0 or ids.max() >= vocab_size:
                raise ValueError("ids are not of this vocabulary")

    def lengths(self, start: int, end: int) -> Ids:
        return np.diff(self._offsets.read(start, end + 1)).astype(np.int32)

    def chunks(self) -> Iterator[Ids]:
        for start in range(0, len(self.ids), _IDS_AT_ONCE):
            yield self.ids.read(start, min(start + _IDS_AT_ONCE, len(self.ids)))


class Sentences:
    """The ids of one side of a text; `sentences[i]` is read from disk."""

    def __init__(self, sides: Sequence[_SegmentSide]) -> None:
        self._sides = sides
        self._starts = [0, *accumulate(map(len, sides))]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Ids:
        number = bisect.bisect_right(self._starts, index) - 1
        return self._sides[number][index - self._starts[number]]

    def counts(self, vocab_size: int) -> npt.NDArray[np.int64]:
        """Return how often each id occurs."""
        counts = np.zeros(vocab_size, np.int64)
        for ids in self.chunks():
            counts += np.bincount(ids, minlength=vocab_size)
        return counts

    def chunks(self, most: int | None = None) -> Iterator[Ids]:
        """Yield the ids in large chunks; of more than about `most`, some that are evenly spaced."""
        step = 1 if most is None else -(-sum(len(side.ids) for side in self._sides) // most)
        chunks = (ids for side in self._sides for ids in side.chunks())
        return islice(chunks, 0, None, max(1, step))

    def lengths(self, start: int = 0, end: int | None = None) -> Ids:
        """Return the number of tokens of every sentence in a range, EOS included."""
        end = len(self) if end is None else end
        parts = [
            side.lengths(max(start, first) - first, min(end, last) - first)
            for side, (first, last) in zip(self._sides, pairwise(self._starts), strict=True)
            if first < end and last > start
        ]
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int32), *parts])


class _Segment:
    """Both sides of some pairs as ids, with statistics."""

    def __init__(self, folder: Path, tokenizers: Tokenizers) -> None:
        """Open a segment; DamagedFileError if a file is missing, ValueError if one is damaged."""
        weakref.finalize(self, os.close, cache.lock(folder))
        self.num_bytes = cache.size_of(folder)
        self.facts = TypeAdapter(StoreStats).validate_json(read_bounded(folder / FACTS, MEBIBYTE))
        self.src, self.tgt = (_SegmentSide(folder, side) for side in SIDES)
        if not len(self.src) == len(self.tgt) == self.facts.pairs:
            raise ValueError("sides differ in length")
        self.src.validate(self.facts.src, len(tokenizers.src))
        self.tgt.validate(self.facts.tgt, len(tokenizers.tgt))


class TokenStore:
    """Both sides of a text as ids, with statistics."""

    def __init__(self, key: str, segments: Sequence[_Segment], sizes: Sequence[int]) -> None:
        """`key`: the hash of text, tokenizers and filters; `sizes`: the pairs of each corpus."""
        self._segments = segments  # which are locked as long as they are referred to
        self.key = key
        self.num_bytes = sum(segment.num_bytes for segment in {*segments})  # each is stored once
        self.facts = sum((segment.facts for segment in segments), StoreStats())
        self.sizes = tuple(sizes)
        self.src = Sentences([segment.src for segment in segments])
        self.tgt = Sentences([segment.tgt for segment in segments])

    def __len__(self) -> int:
        return len(self.src)

    def length_counts(
        self, start: int = 0, end: int | None = None
    ) -> tuple[Ids, Ids, npt.NDArray[np.int64]]:
        """Return the different lengths of the pairs of a range, EOS included, and their counts."""
        end = len(self) if end is None else end
        width = self.facts.tgt.longest + 1
        codes, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for first in range(start, end, _PAIRS_AT_ONCE):
            last = min(first + _PAIRS_AT_ONCE, end)
            src, tgt = self.src.lengths(first, last), self.tgt.lengths(first, last)
            found, numbers = np.unique(src.astype(np.int64) * width + tgt, return_counts=True)
            codes, places = np.unique(np.concatenate([codes, found]), return_inverse=True)
            counts = np.bincount(places, np.concatenate([counts, numbers])).astype(np.int64)
        src, tgt = (side.astype(np.int32) for side in np.divmod(codes, width))
        return src, tgt, counts


def open_store(
    text: ParallelText,
    tokenizers: Tokenizers,
    on_bad_line: OnBadLine,
    max_length: int | None = None,
) -> TokenStore:
    """Open the ids of a text in the cache; tokenize the text if they are not there.

    With `max_length`, as in training, pairs with an empty side or more tokens on one are dropped;
    without it every readable pair is kept. Raises UserError if no pairs are left.
    """
    request = _Request(tokenizers, on_bad_line, max_length)
    texts = segment_texts(text)
    keys = [list(map(request.key, corpus)) for corpus in texts]
    opened, _ = request.open_all(dict(zip(chain(*keys), chain(*texts), strict=True)))
    segments = [opened[key] for key in chain(*keys)]
    sizes = [sum(opened[key].facts.pairs for key in corpus) for corpus in keys]
    store = TokenStore(key_of(keys) if len(segments) > 1 else keys[0][0], segments, sizes)
    if len(store) == 0:
        reason = (
            f"{store.facts.too_long:,} are longer than data.max_length {max_length:,} tokens"
            if max_length is not None
            else "there is no line that can be read"
        )
        raise UserError(f"no pairs in {text.name}: {reason}")
    return store


def write_segments(
    text: ParallelText,
    tokenizers: Tokenizers,
    on_bad_line: OnBadLine,
    max_length: int | None,
    number: int,
    num_shards: int,
) -> tuple[int, int]:
    """Write a share of the segments of a text, where they are missing: shard `number` (from 1).

    Returns how many segments the shard has, and how many were written.
    """
    request = _Request(tokenizers, on_bad_line, max_length)
    texts = list(chain(*segment_texts(text)))[number - 1 :: num_shards]
    segments = {request.key(segment): segment for segment in texts}
    _, num_written = request.open_all(segments)
    return len(segments), num_written


def segment_texts(
    text: ParallelText, smallest: int = _SMALLEST_SEGMENT
) -> list[list[ParallelText]]:
    """Return the texts of the segments of each corpus; consecutive small files share one.

    `smallest`: bytes that a segment has at least, if there are as many files.
    """
    total = sum(file.stat().st_size for file in text.files)
    smallest = max(smallest, total // _MOST_SEGMENTS)
    texts = []
    for corpus in text.corpora:
        groups: list[list[Corpus]] = [[]]
        size = 0  # of the last group
        for part in corpus.parts():
            if size >= smallest:
                groups.append([])
                size = 0
            groups[-1].append(part)
            size += sum(path.stat().st_size for path in part.paths)
        texts.append([text._replace(corpora=tuple(parts)) for parts in groups])
    return texts


class _Request(NamedTuple):
    """What segments depend on, except for their text."""

    tokenizers: Tokenizers
    on_bad_line: OnBadLine
    max_length: int | None

    def key(self, text: ParallelText) -> str:
        """Return the name of the segment of a text."""
        models = [hashlib.sha256(tokenizer.model).hexdigest() for tokenizer in self.tokenizers]
        options = [text.forms, models, self.on_bad_line, self.max_length]
        return key_of([_FORMAT, hash_of_files(text.files), *options])

    def open_all(self, texts: Mapping[str, ParallelText]) -> tuple[dict[str, _Segment], int]:
        """Open the segments of these names; missing or damaged ones are written, and counted."""
        allow_many_open_files()
        opened: dict[str, _Segment] = {}
        num_written = 0
        for key in texts:
            with suppress(FileNotFoundError):  # at this moment another process has written it
                if (segment := self._open(key)) is not None:
                    opened[key] = segment
        missing = {key: text for key, text in texts.items() if key not in opened}
        if not missing:
            return opened, num_written
        size = sum(path.stat().st_size for text in missing.values() for path in text.files)
        processes = 1
        if size >= _LARGE_TEXT:
            processes = num_cores()
            logger.info(f"tokenizing {size / 1e6:,.0f} MB of text")
        with splitter(self.tokenizers, self.max_length, processes) as split:
            for key, text in missing.items():
                with cache.writing(key):
                    segment = self._open(key)  # perhaps another process has written it
                    if segment is None:
                        folder = cache.cache_folder() / key
                        with suppress(FileNotFoundError), cache.advising(folder):
                            shutil.rmtree(folder)  # damaged, if it exists
                        _write_segment(self._chunks(split, text, key), folder)
                        segment = _Segment(folder, self.tokenizers)
                        num_written += 1
                    opened[key] = segment
        cache.make_room()
        return opened, num_written

    def _chunks(self, split: Splitter, text: ParallelText, key: str) -> Iterator[TokenizedChunk]:
        """Yield the ids of a text; raise UserError in the end if it is not the one of the key."""
        pairs = (pair for pair in read_pairs(text, self.on_bad_line) if pair is not None)
        yield from split(p for p in pairs if self.max_length is None or not p.is_empty)
        if self.key(text) != key:
            raise UserError(changed_meanwhile(text.name))

    def _open(self, key: str) -> _Segment | None:
        """Open a segment; None if it is missing or damaged, OSError if it cannot be read."""
        try:
            return _Segment(cache.cache_folder() / key, self.tokenizers)
        except (UserError, ValueError):
            return None


def _write_segment(chunks: Iterable[TokenizedChunk], folder: Path) -> None:
    """Write a segment atomically: into a temporary folder that is renamed at the end."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=cache.PART, dir=folder.parent))
    part.chmod(0o755)  # readable by others, as the text may be
    facts = StoreStats()
    try:
        (part / FACTS).touch()  # which is locked
        with naming(part), ExitStack() as held:
            held.callback(os.close, cache.lock(part))
            with ExitStack() as files:
                src, tgt = (_SideWriter(part, side, files) for side in SIDES)
                for chunk in chunks:
                    n = len(chunk.src.lengths)
                    facts += StoreStats(n, chunk.too_long, src.add(chunk.src), tgt.add(chunk.tgt))
            (part / FACTS).write_text(json.dumps(asdict(facts)))
            for file in part.iterdir():
                fsync(file)
            os.utime(part)  # not to be taken for left over before it is renamed
        try:
            part.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process has written the same segment
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


class _SideWriter:
    """Appends sentences to `<side>.ids` and `<side>.offsets`."""

    def __init__(self, folder: Path, side: str, files: ExitStack) -> None:
        self._ids, self._offsets = (
            files.enter_context((folder / f"{side}.{kind}").open("wb"))
            for kind in ("ids", "offsets")
        )
        self._offsets.write(np.int64(0).tobytes())
        self._num_tokens = 0

    def add(self, side: TokenizedSide) -> SideStats:
        """Write the sentences; return their counts."""
        self._ids.write(side.ids.tobytes())
        ends = self._num_tokens + np.cumsum(side.lengths, dtype=np.int64)
        self._offsets.write(ends.tobytes())
        self._num_tokens += len(side.ids)
        unknown, longest = int((side.ids == UNK_ID).sum()), int(side.lengths.max(initial=0))
        return SideStats(len(side.ids), unknown, longest)
