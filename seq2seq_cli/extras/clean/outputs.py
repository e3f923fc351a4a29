"""The files that `clean` writes: pairs that are kept, and rejected ones with their rules."""

import bz2
import gzip
import io
import lzma
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import zstandard

from seq2seq_cli.config.text import without_compression
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import check_empty, naming, replacing
from seq2seq_cli.text.corpus import BadLineError, Pair
from seq2seq_cli.text.features import TAB

Write = Callable[[str, int, Pair | BadLineError], None]

_BUFFER = 1 << 16
_FAST = 3  # of the levels of gzip: the default takes three times as long for 5% fewer bytes


_OPEN: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda file: gzip.GzipFile("", "wb", _FAST, file, 0),
    ".bz2": lambda file: bz2.BZ2File(file, "wb"),
    ".xz": lambda file: lzma.LZMAFile(file, "wb"),  # noqa: SIM115 (the caller closes it)
    ".zst": lambda file: zstandard.ZstdCompressor().stream_writer(file, closefd=False),
}


class Outputs(NamedTuple):
    """Where to write: the pairs in a .tsv file, or in a file for each side."""

    kept: tuple[Path, ...]
    rejected: Path
    may_replace: bool  # files that have content

    @classmethod
    def of(
        cls,
        kept: list[Path],
        rejected: Path | None,
        inputs: tuple[Path, ...],
        *,
        may_replace: bool = False,
    ) -> "Outputs":
        """Check the names; raises UserError if one is an input, or given twice."""
        if len(kept) > 2:
            raise UserError("give --output once for a .tsv file, or twice for source and target")
        first = without_compression(kept[0].name)
        if len(kept) == 1 and not first.endswith(".tsv"):
            raise UserError(
                f"--output {kept[0]}: a file of pairs is .tsv (or .tsv.gz and the like); give "
                "--output twice for two files"
            )
        compression = kept[0].name.removeprefix(first)
        rejected = rejected or kept[0].with_name(f"{Path(first).stem}.rejected.tsv{compression}")
        outputs = cls(tuple(kept), rejected, may_replace)
        everything = [path.resolve() for path in (*inputs, *outputs.kept, rejected)]
        for path in (*outputs.kept, rejected):
            if everything.count(path.resolve()) > 1:
                raise UserError(f"{path} would be read and written, or written twice")
        return outputs

    def check_empty(self) -> None:
        """Raise UserError if a file that may not be replaced has content."""
        for path in () if self.may_replace else (*self.kept, self.rejected):
            check_empty(path)


@contextmanager
def opened_outputs(outputs: Outputs | None, *, has_features: bool) -> Iterator[Write]:
    """Yield a function that writes a pair with its rule ("" if it is kept) and line.

    The files appear when the block ends without an error and all of them are complete. A tab in a
    text becomes a space in .tsv files, as tokenizers read it. With features, each of their rows has
    a column for them, which may be empty.
    """
    if outputs is None:
        yield lambda rule, line, entry: None
        return
    named = (*outputs.kept, outputs.rejected)
    paths = [  # of a link, such as /dev/stdout, what it links to
        path.resolve() if path.is_file() else path for path in named
    ]
    with ExitStack() as replaced, ExitStack() as opened:  # which ends first
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
        parts = [replaced.enter_context(replacing(path)) for path in paths]
        files = [opened.enter_context(_opened(*names)) for names in zip(parts, named, strict=True)]

        def columns_of(pair: Pair) -> list[str]:
            return [pair.src, pair.tgt, *([pair.features] if has_features else [])]

        def put(place: int, row: bytes) -> None:
            try:
                files[place].write(row)
            except OSError as error:
                error.filename = str(named[place])
                raise

        def write(rule: str, line: int, entry: Pair | BadLineError) -> None:
            if isinstance(entry, BadLineError):
                put(-1, _row(rule, str(line), str(entry)))
            elif rule:
                put(-1, _row(rule, str(line), *columns_of(entry)))
            elif len(outputs.kept) == 1:
                put(0, _row(*columns_of(entry)))
            else:
                put(0, _encoded(entry.source_line))
                put(1, _encoded(entry.tgt))

        yield write
        opened.close()
        outputs.check_empty()  # another command may have written them meanwhile


@contextmanager
def _opened(part: Path, path: Path) -> Iterator[BinaryIO]:
    """Open the part of a file, whose given name says how it is compressed, until it is complete."""
    with ExitStack() as stack:
        file = writer = stack.enter_context(part.open("wb"))
        if open_writer := _OPEN.get(path.suffix):
            writer = stack.enter_context(open_writer(file))
            # Python's zlib and zstandard are slow for a line at a time.
            writer = stack.enter_context(io.BufferedWriter(writer, _BUFFER))
        try:
            yield writer
        except BaseException:
            with suppress(OSError):  # of writing again what could not be written
                stack.close()
            raise
        with naming(path):
            stack.close()


def _row(*columns: str) -> bytes:
    return _encoded("\t".join([column.replace(TAB, " ") for column in columns]))


def _encoded(line: str) -> bytes:
    return (line.replace("\n", " ") + "\n").encode("utf-8", "replace")
