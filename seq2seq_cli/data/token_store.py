"""The token ids of a corpus, read from disk as needed and never held in memory.

A store is a folder in the cache, named by the hash of everything that it depends on: `src.ids` and
`tgt.ids` (all sentences concatenated, each ending in EOS), `src.offsets` and `tgt.offsets`
(sentence i is ids[offsets[i]:offsets[i + 1]]), and `facts.json`.
"""

import hashlib
import itertools
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.config.types import OnBadLine
from seq2seq_cli.data.cache import PART, cache_folder, in_use, lock, make_room, size_of
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import fsync
from seq2seq_cli.text.corpus import Pair, hash_of_files, read_pairs
from seq2seq_cli.text.tokenizer import EOS_ID, UNK_ID, Tokenizers

_FORMAT = 1  # increased when the file format changes, so that old caches are not read
_LINES_AT_ONCE = 10_000
_CHARACTERS_AT_ONCE = 1 << 24
_IDS_AT_ONCE = 1 << 20

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class SideStats:
    """Counts of one side of the pairs in a store; `tokens` and `longest` include EOS."""

    tokens: int = 0
    unknown: int = 0
    longest: int = 0


@dataclass(frozen=True)
class StoreStats:
    pairs: int
    too_long: int
    src: SideStats
    tgt: SideStats
    sizes: tuple[int, ...] = ()  # pairs of each corpus; earlier versions had one


class _ArrayFile:
    """An array in a file, of which slices are read on demand.

    It is not memory-mapped: random access to a mapping keeps many times the requested bytes.
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike) -> None:
        self._file = path.open("rb", buffering=0)
        weakref.finalize(self, self._file.close)
        self._dtype = np.dtype(dtype)

    def __len__(self) -> int:
        return os.fstat(self._file.fileno()).st_size // self._dtype.itemsize

    def read(self, start: int, end: int) -> npt.NDArray[Any]:
        """Return a slice of less than 2 GiB, which is the most that Linux reads at once."""
        start, end = start * self._dtype.itemsize, end * self._dtype.itemsize
        return np.frombuffer(os.pread(self._file.fileno(), end - start, start), self._dtype)

    def read_all(self) -> npt.NDArray[Any]:
        self._file.seek(0)
        return np.fromfile(self._file, self._dtype)


class Sentences:
    """The ids of one side; `sentences[i]` is read from disk."""

    def __init__(self, folder: Path, side: str) -> None:
        self._offsets = _ArrayFile(folder / f"{side}.offsets", np.int64)
        self._ids = _ArrayFile(folder / f"{side}.ids", np.int32)
        self._num_sentences = len(self._offsets) - 1

    def __len__(self) -> int:
        return self._num_sentences

    def __getitem__(self, index: int) -> Ids:
        start, end = self._offsets.read(index, index + 2)
        return self._ids.read(int(start), int(end))

    def validate(self, facts: SideStats, vocab_size: int) -> None:
        """Raise ValueError unless the files are as `_SideWriter` writes them."""
        offsets = self._offsets.read_all()
        num_tokens = len(self._ids)
        if (offsets[0], offsets[-1], facts.tokens) != (0, num_tokens, num_tokens):
            raise ValueError("sentences do not cover the tokens")
        if (np.diff(offsets) < 1).any():
            raise ValueError("sentences overlap")
        for ids in self._chunks():
            if ids.min() < 0 or ids.max() >= vocab_size:
                raise ValueError("ids are not of this vocabulary")

    def counts(self, vocab_size: int) -> npt.NDArray[np.int64]:
        """Return how often each id occurs."""
        counts = np.zeros(vocab_size, np.int64)
        for ids in self._chunks():
            counts += np.bincount(ids, minlength=vocab_size)
        return counts

    def lengths(self) -> Ids:
        """Return the number of tokens of every sentence, EOS included."""
        lengths: Ids = np.diff(self._offsets.read_all()).astype(np.int32)
        return lengths

    def _chunks(self) -> Iterator[Ids]:
        for start in range(0, len(self._ids), _IDS_AT_ONCE):
            yield self._ids.read(start, start + _IDS_AT_ONCE)


class TokenStore:
    """Both sides of a corpus as ids, with statistics."""

    def __init__(self, folder: Path, tokenizers: Tokenizers) -> None:
        """Open a store; OSError or ValueError if it is missing or damaged."""
        weakref.finalize(self, os.close, lock(folder))
        self.key = folder.name  # the hash of text, tokenizers and filters
        self.num_bytes = size_of(folder)
        self.facts = TypeAdapter(StoreStats).validate_json((folder / "facts.json").read_bytes())
        self.src = Sentences(folder, "src")
        self.tgt = Sentences(folder, "tgt")
        self.sizes = self.facts.sizes or (self.facts.pairs,)
        if not len(self.src) == len(self.tgt) == self.facts.pairs == sum(self.sizes):
            raise ValueError("sides differ in length")
        self.src.validate(self.facts.src, len(tokenizers.src))
        self.tgt.validate(self.facts.tgt, len(tokenizers.tgt))

    def __len__(self) -> int:
        return len(self.src)


def open_store(
    text: ParallelText,
    tokenizers: Tokenizers,
    on_bad_line: OnBadLine,
    max_length: int | None = None,
) -> TokenStore:
    """Open the ids of a text in the cache; tokenize the text if they are not there.

    With `max_length`, as in training, pairs that have an empty side or more tokens on one side are
    dropped and counted; without it, as in evaluation, every readable pair is kept. Raises UserError
    if no pairs are left.
    """
    dependencies = [
        _FORMAT,
        hash_of_files(text.files),
        text.forms,
        [hashlib.sha256(tokenizer.model).hexdigest() for tokenizer in tokenizers],
        on_bad_line,
        max_length,
    ]
    key = hashlib.sha256(json.dumps(dependencies).encode()).hexdigest()[:32]
    folder = cache_folder() / key
    try:
        store = TokenStore(folder, tokenizers)
    except (OSError, ValueError):  # missing or damaged
        shutil.rmtree(folder, ignore_errors=True)
        texts = [text._replace(corpora=(corpus,)) for corpus in text.corpora]
        _write_store(
            [_usable(one, on_bad_line, max_length) for one in texts], tokenizers, folder, max_length
        )
        store = TokenStore(folder, tokenizers)
        make_room()
    if len(store) == 0:
        reason = (
            f"{store.facts.too_long:,} are longer than data.max_length {max_length:,} tokens"
            if max_length is not None
            else "there is no line that can be read"
        )
        raise UserError(f"no pairs in {text.name}: {reason}")
    return store


def _usable(text: ParallelText, on_bad_line: OnBadLine, max_length: int | None) -> Iterator[Pair]:
    """Yield the readable pairs, those of training text without those that have an empty side."""
    for pair in read_pairs(text, on_bad_line):
        if pair is not None and (max_length is None or not pair.is_empty):
            yield pair


def _write_store(
    corpora: Sequence[Iterable[Pair]],
    tokenizers: Tokenizers,
    folder: Path,
    max_length: int | None,
) -> None:
    """Write a store atomically: into a temporary folder that is renamed at the end."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=PART, dir=folder.parent))
    part.chmod(0o755)  # readable by others, as the text may be
    try:
        with in_use(part), _SideWriter(part, "src") as src, _SideWriter(part, "tgt") as tgt:
            too_long, ends = 0, []
            for pairs in corpora:
                for chunk in _chunks(pairs):
                    kept = [
                        both
                        for both in _ids(chunk, tokenizers)
                        if max_length is None or max(map(len, both)) <= max_length
                    ]
                    too_long += len(chunk) - len(kept)
                    src.add([ids for ids, _ in kept])
                    tgt.add([ids for _, ids in kept])
                ends.append(src.num_sentences)
        sizes = tuple(int(size) for size in np.diff([0, *ends]))
        facts = StoreStats(src.num_sentences, too_long, src.facts, tgt.facts, sizes)
        (part / "facts.json").write_text(json.dumps(asdict(facts)))
        for file in part.iterdir():
            fsync(file)
        try:
            part.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process has written the same store
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _ids(pairs: Sequence[Pair], tokenizers: Tokenizers) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the ids of both sides of each pair, its tag first, then its features."""
    tags = {tag: tokenizers.src.tag_ids(tag) for tag in {pair.tag for pair in pairs}}
    src_ids = tokenizers.src.to_ids_batch([pair.src for pair in pairs])
    tgt_ids = tokenizers.tgt.to_ids_batch([pair.tgt for pair in pairs])
    for pair, src, tgt in zip(pairs, src_ids, tgt_ids, strict=True):
        yield tags[pair.tag] + tokenizers.src.feature_ids(pair.features) + src, tgt


class _SideWriter:
    """Appends sentences to `<side>.ids` and `<side>.offsets`."""

    def __init__(self, folder: Path, side: str) -> None:
        self._ids: BinaryIO = (folder / f"{side}.ids").open("wb")
        self._offsets: BinaryIO = (folder / f"{side}.offsets").open("wb")
        self._offsets.write(np.int64(0).tobytes())
        self.facts = SideStats()
        self.num_sentences = 0

    def __enter__(self) -> "_SideWriter":
        return self

    def __exit__(self, *_: Any) -> None:
        self._ids.close()
        self._offsets.close()

    def add(self, sentences: list[list[int]]) -> None:
        if not sentences:
            return
        closed = [[*ids, EOS_ID] for ids in sentences]
        ends = self.facts.tokens + np.cumsum([len(ids) for ids in closed], dtype=np.int64)
        flat = np.fromiter(itertools.chain.from_iterable(closed), dtype=np.int32)
        self._ids.write(flat.tobytes())
        self._offsets.write(ends.tobytes())
        self.num_sentences += len(closed)
        self.facts = SideStats(
            tokens=int(ends[-1]),
            unknown=self.facts.unknown + int((flat == UNK_ID).sum()),
            longest=max(self.facts.longest, *map(len, closed)),
        )


def _chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Split pairs into chunks, bounded in lines and characters."""
    chunk: list[Pair] = []
    num_characters = 0
    for pair in pairs:
        chunk.append(pair)
        num_characters += len(pair.src) + len(pair.tgt)
        if len(chunk) == _LINES_AT_ONCE or num_characters > _CHARACTERS_AT_ONCE:
            yield chunk
            chunk, num_characters = [], 0
    if chunk:
        yield chunk
