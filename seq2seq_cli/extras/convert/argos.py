"""Reads packages of Argos Translate and LibreTranslate: .argosmodel files."""

import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from seq2seq_cli.config.languages import LanguagePair
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.extras.convert import ctranslate2, foreign
from seq2seq_cli.files import MEBIBYTE

_MOST_FILES = 10_000
_MOST_BYTES = 8 << 30  # of a package
_MOST_RATIO = 50  # of a package's content and its own size; vocabularies compress well
_SMALL = 64 * MEBIBYTE  # any package may contain so much
_NEEDED = ("metadata.json", "sentencepiece.model", "bpe.model")
# What Argos Translate asks of CTranslate2.
_SEARCH: dict[str, Any] = {"beam_size": 4, "length_penalty": 0.2, "replace_unk": True}
# Codes of LibreTranslate that are not of ISO 639.
_CODES = {"pb": "pt-BR", "zt": "zh-Hant"}


def detect(path: Path) -> bool:
    return path.is_file() and path.suffix in (".argosmodel", ".zip")


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Give a temporary folder with the package's own folder; UserError if it is not a package."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with foreign.unzipping(path) as archive:
            _unpack(archive, path, folder)
        found = sorted(folder.rglob("metadata.json"), key=lambda p: len(p.parts))
        if not found:
            raise UserError(f"{path} is not a package of Argos Translate: it has no metadata.json")
        try:
            yield found[0].parent
        except UserError as error:  # which names files of the temporary folder
            raise UserError(str(error).replace(str(found[0].parent), str(path))) from None


def _unpack(archive: zipfile.ZipFile, path: Path, folder: Path) -> None:
    """Write the files that are needed, no more bytes than the package says and may have."""
    entries = archive.infolist()
    most = min(_MOST_BYTES, max(_SMALL, _MOST_RATIO * path.stat().st_size))
    if len(entries) > _MOST_FILES or sum(entry.file_size for entry in entries) > most:
        raise foreign.refused(path, f"it would expand to more than {most:,} bytes")
    for entry in entries:
        name = PurePosixPath(entry.filename)
        if name.is_absolute() or ".." in name.parts or "\\" in entry.filename:
            raise foreign.refused(path, f"it has the path {short(entry.filename)!r}")
        if not entry.is_dir() and ("model" in name.parts or name.name in _NEEDED):
            archive.extract(entry, folder)  # no more than file_size; a link as a file


def read(folder: Path) -> foreign.ForeignModel:
    """Read the folder of a package; UserError if it is damaged, or cannot become a run."""
    metadata = foreign.read_object(folder / "metadata.json")
    if not (folder / "sentencepiece.model").is_file():
        if (folder / "bpe.model").is_file():
            what = "bpe.model, BPE after Moses' tokenizer"
            raise foreign.refuse(folder, what, "only SentencePiece models can be read")
        raise foreign.incomplete(folder, "it has no sentencepiece.model")
    model = folder / "model"
    if not (model / "model.bin").is_file():
        raise foreign.incomplete(folder, "it has no model/model.bin")
    spm = foreign.read_sentencepiece(folder / "sentencepiece.model")
    found = ctranslate2.read(model, (spm, spm))
    found.decoding |= _SEARCH
    prefix = metadata.get("target_prefix")
    if isinstance(prefix, str) and prefix:
        found.notes.append(f"target_prefix {short(prefix)!r} has no equivalent")
    codes = [metadata.get("from_code"), metadata.get("to_code")]
    if all(isinstance(code, str) and 2 <= len(code) <= 12 for code in codes):
        found.languages = LanguagePair(*(_CODES.get(str(code), str(code)) for code in codes))
    return found
