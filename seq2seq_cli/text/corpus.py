"""Reads and counts parallel text, one pair at a time: memory does not grow with the corpus."""

import functools
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from seq2seq_cli.config.text import Corpus, ParallelText, unknown_format
from seq2seq_cli.config.types import Direction, OnBadLine
from seq2seq_cli.console import counted
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import naming
from seq2seq_cli.text.compression import limited, opened, opened_zip
from seq2seq_cli.text.features import TAB, feature_symbols
from seq2seq_cli.text.io import (
    MOST_BYTES,
    bounded_lines,
    lines_with_ends,
    raw_lines,
    refuse_utf16,
    strip_line_ends,
)
from seq2seq_cli.text.tmx import read_units

logger = logging.getLogger(__name__)


# Whether the sides of a corpus are exchanged, once for each time that it is read.
_TURNS: dict[Direction, tuple[bool, ...]] = {
    "forward": (False,),
    "reverse": (True,),
    "both": (False, True),
}
_NAME_THEM = (
    "; name those that are wanted, as fields: [1, 3] and features: 2 in a config, --fields 1 3 "
    "--features 2 on the command line"
)
_MOST_FEATURES = 10_000
_LARGE_FILES = 1 << 25  # bytes


class Pair(NamedTuple):
    """Source and target text of one line."""

    src: str
    tgt: str
    tag: str | None = None  # a token in front of the source
    features: str = ""  # of the source, such as V;PST

    @property
    def source_line(self) -> str:
        """The source as a line to translate, with its features after a tab."""
        src = self.src.replace(TAB, " ")  # as tokenizers read it
        return f"{src}{TAB}{self.features}" if self.features else src

    @property
    def is_empty(self) -> bool:
        return not (self.src.strip() and self.tgt.strip())


class BadLineError(UserError):
    """A line that cannot be read; `data.on_bad_line: skip` drops it."""


@dataclass
class CorpusCounts:
    lines: int = 0
    bad: int = 0
    empty: int = 0
    overlap: int = 0  # held-out lines whose source also occurs in the training text

    @property
    def pairs(self) -> int:
        return self.lines - self.bad - self.empty


def count_pairs(text: ParallelText, on_bad_line: OnBadLine, counts: CorpusCounts) -> Iterator[Pair]:
    """Yield the usable pairs and count all lines. Raises UserError if there are no pairs."""
    for pair in read_pairs(text, on_bad_line):
        counts.lines += 1
        if pair is None:
            counts.bad += 1
        elif pair.is_empty:
            counts.empty += 1
        else:
            yield pair
    if counts.bad and counts.bad == counts.lines:
        next(read_pairs(text))
    if not counts.pairs:
        raise UserError(
            f"no pairs in {text.name}: {counts.lines:,} lines, of which {counts.empty:,} have an "
            f"empty side and {counts.bad:,} cannot be read"
        )


def read_pairs(text: ParallelText, on_bad_line: OnBadLine = "error") -> Iterator[Pair | None]:
    """Yield every pair, also empty ones, and None for a bad line, which raises unless skipped."""
    for entry in read_entries(text):
        if not isinstance(entry, BadLineError):
            yield entry
        elif on_bad_line == "error":
            raise entry
        else:
            yield None


def read_entries(text: ParallelText) -> Iterator[Pair | BadLineError]:
    """Yield every pair in order, including empty ones, and for each bad line what is wrong with it.

    With `direction` both, each corpus is read in one direction and then in the other. Raises
    UserError if two files differ in length, lack a counterpart, or have an unknown format.
    """
    for corpus in text.corpora:
        for is_turned in _TURNS[text.direction]:
            for pair in (pair for part in corpus.parts() for pair in _read(part)):
                if isinstance(pair, BadLineError):
                    yield pair
                else:
                    src, tgt, _, features = pair
                    yield Pair(*((tgt, src) if is_turned else (src, tgt)), corpus.tag, features)


def _read(part: Corpus) -> Iterator[Pair | BadLineError]:
    if part.pairs is not None and part.format is None:
        raise UserError(unknown_format(part.pairs))
    return _READERS[part.format](part)


def readable_pairs(text: ParallelText, on_bad_line: OnBadLine) -> Iterator[tuple[int, Pair]]:
    """Yield each readable pair after its line number, from 1; a warning counts the others."""
    num_bad = 0
    for number, pair in enumerate(read_pairs(text, on_bad_line), 1):
        if pair is None:
            num_bad += 1
        else:
            yield number, pair
    if num_bad:
        logger.warning(f"{text.name}: skipped {counted(num_bad, 'line')} that cannot be read")


def features_in(text: ParallelText, on_bad_line: OnBadLine) -> list[str]:
    """Return the entries of all features of the sources, sorted; UserError if none or too many."""
    if not text.has_features:
        return []
    found: set[str] = set()
    for pair in read_pairs(text, on_bad_line):
        if pair is not None and not pair.is_empty:
            found.update(feature_symbols(pair.features))
        if len(found) > _MOST_FEATURES:
            raise UserError(
                f"{text.name}: more than {_MOST_FEATURES:,} different features, such as "
                f"{', '.join(sorted(found)[:3])}: do features name the right column or key?"
            )
    if not found:
        raise UserError(f"{text.name}: no line has features; leave out the option features")
    return sorted(found)


def hash_of_files(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the bytes of the files, each preceded by its size.

    Large files are read once in a process, unless their times change.
    """
    versions = [
        (path, status.st_size, status.st_mtime) for path in paths for status in [path.stat()]
    ]
    is_large = sum(size for _, size, _ in versions) >= _LARGE_FILES
    return (_hash if is_large else _hash.__wrapped__)(tuple(versions))


@functools.lru_cache(maxsize=256)
def _hash(versions: Sequence[tuple[Path, int, float]]) -> str:
    digest = hashlib.sha256()
    for path, size, _ in versions:
        digest.update(f"{size} ".encode())
        with naming(path), path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)  # which it adds to
    return digest.hexdigest()


def files_of_lines(corpus: Corpus) -> list[tuple[str, Iterator[bytes]]]:
    """Return the name of each file of a part of a corpus, and its lines with their ends.

    A Moses archive has two members, such as `X.de-en.de`, read in place. TMX has no lines.
    """
    path = corpus.pairs
    if corpus.format != ".zip" or path is None:
        paths = () if corpus.format == ".tmx" else corpus.paths
        return [(str(path), lines_with_ends(path)) for path in paths]
    with opened_zip(path) as archive:
        names = archive.namelist()
    ends = [f".{language}" for language in corpus.field_names]
    stems = [{name.removesuffix(end) for name in names if name.endswith(end)} for end in ends]
    found = sorted(set.intersection(*stems))
    if len(found) != 1:
        raise UserError(
            f"{path} must have one pair of files that end in {' and '.join(ends)}, but has "
            f"{len(found)} (it contains {', '.join(names[:10]) or 'nothing'})"
        )

    def lines(member: str) -> Iterator[bytes]:
        with opened_zip(path) as archive, archive.open(member) as file:
            size = archive.getinfo(member).compress_size
            yield from limited(f"{path}:{member}", bounded_lines(cast(BinaryIO, file)), size)

    return [(f"{path}:{found[0]}{end}", lines(found[0] + end)) for end in ends]


def _read_two_files(corpus: Corpus) -> Iterator[Pair | BadLineError]:
    """Pair the lines of two files; raises UserError with both line counts if they differ."""
    names, files = zip(*files_of_lines(corpus), strict=True)
    readers = [strip_line_ends(lines) for lines in files]
    for number, row in enumerate(itertools.zip_longest(*readers), 1):
        if None in row:
            counts = ", ".join(
                f"{name}: {number - (line is None) + sum(1 for _ in reader):,}"
                for name, line, reader in zip(names, row, readers, strict=True)
            )
            raise UserError(f"parallel files differ in length (lines in {counts})")
        try:
            src, tgt = (_decode(name, number, raw) for name, raw in zip(names, row, strict=True))
        except BadLineError as error:
            yield _detached(error)
            continue
        features = ""
        if corpus.features:
            src, _, features = src.partition(TAB)
        yield Pair(src, tgt, None, features)


def _read_tsv(corpus: Corpus) -> Iterator[Pair | BadLineError]:
    places = [int(column) - 1 for column in corpus.all_fields]

    def split(line: str) -> Pair:
        columns = line.split("\t")
        if not (corpus.fields or corpus.features) and len(columns) != 2:
            more = _NAME_THEM if len(columns) > 2 else ""
            raise ValueError(f"needs 2 columns (source, tab, target), has {len(columns)}{more}")
        if max(places) >= len(columns):
            raise ValueError(f"needs column {max(places) + 1}, has {len(columns)}")
        src, tgt, *features = (columns[place] for place in places)
        return Pair(src, tgt, None, *features)

    return _parsed_lines(corpus, split)


def _read_json(corpus: Corpus) -> Iterator[Pair | BadLineError]:
    paths = [field.split(".") for field in corpus.all_fields]

    def split(line: str) -> Pair:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError("not valid JSON") from None
        values = []
        for path in paths:
            value = record
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            if isinstance(value, list) and path is paths[-1] and corpus.features:
                value = ";".join(map(str, value))
            if not isinstance(value, str):
                raise ValueError(f"needs text under the keys {' and '.join(corpus.all_fields)}")
            # A JSON string can contain line feeds and lone surrogates; a line of text cannot.
            values.append(value.encode("utf-8", "replace").decode().replace("\n", " "))
        src, tgt, *features = values
        return Pair(src, tgt, None, *features)

    return _parsed_lines(corpus, split)


def _read_tmx(corpus: Corpus) -> Iterator[Pair | BadLineError]:
    path = corpus.pairs
    assert path is not None
    with opened(path) as file:
        chunks = iter(lambda: file.read(1 << 16), b"")
        for number, unit in enumerate(read_units(chunks, str(path)), 1):
            place = f"{path}, line {unit.line:,}, unit {number:,}"
            sides = [unit.text_in(language) for language in corpus.field_names]
            missing = [name for name in corpus.field_names if unit.text_in(name) is None]
            if not unit.is_whole:
                yield BadLineError(f"{place}: longer than {MOST_BYTES:,} characters")
            elif missing:
                languages = ", ".join(code for code, _ in unit.segments[:10]) or "none"
                yield BadLineError(
                    f"{place}: has no segment in {' and '.join(missing)} (its languages: "
                    f"{languages})"
                )
            else:
                yield Pair(*(side or "" for side in sides))


_READERS: dict[str | None, Callable[[Corpus], Iterator[Pair | BadLineError]]] = {
    None: _read_two_files,
    ".tsv": _read_tsv,
    ".jsonl": _read_json,
    ".tmx": _read_tmx,
    ".zip": _read_two_files,
}


def _parsed_lines(corpus: Corpus, split: Callable[[str], Pair]) -> Iterator[Pair | BadLineError]:
    """Read the lines of a file of pairs; `split` raises ValueError, without file and line."""
    (path,) = corpus.paths
    for number, raw in enumerate(raw_lines(path), 1):
        try:
            yield split(_decode(str(path), number, raw))
        except BadLineError as error:
            yield _detached(error)
        except ValueError as error:
            yield BadLineError(f"{path}, line {number:,}: {error}")


def _detached(error: BadLineError) -> BadLineError:
    """Return the error without its traceback and context, which hold the line: errors are kept."""
    return BadLineError(str(error))


def _decode(name: str, number: int, raw: bytes) -> str:
    if len(raw) > MOST_BYTES:
        raise BadLineError(f"{name}, line {number:,}: longer than {MOST_BYTES:,} bytes")
    if number == 1:
        refuse_utf16(raw, name)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLineError(
            f"{name}, line {number:,}, byte {error.start + 1:,}: not valid UTF-8"
        ) from None
