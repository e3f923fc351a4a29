"""The vocabularies of imported models, in the order that the other program expects.

Their SentencePiece models are given back as they are, with a table from pieces to ids.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq_cli.extras.export.format import is_imported
from seq2seq_cli.files import write_atomic
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.quoting import normalize_spaces
from seq2seq_cli.tokenizers.tokenizer import (
    BOS_ID,
    EOS_ID,
    UNK_ID,
    Tokenizer,
    Tokenizers,
    save_tokenizers,
)

SPMS = ("source.spm", "target.spm")


class Rows(NamedTuple):
    """For every id of the other program, source and target, the id here."""

    src: Sequence[int]
    tgt: Sequence[int]


def marian_rows(tokenizers: Tokenizers) -> Rows:
    """Return Marian's order: EOS, UNK, then the rest; neither PAD nor a start token."""
    return Rows(*([EOS_ID, UNK_ID, *range(EOS_ID + 1, len(side))] for side in tokenizers))


def huggingface_rows(tokenizers: Tokenizers) -> Rows:
    """Return Marian's order, and after it the row that is both PAD and the start of the decoder.

    It has one id on both sides, after the smaller vocabulary. What was learned here keeps its ids.
    """
    if not is_imported(tokenizers):
        return _all_rows(tokenizers)
    marian = marian_rows(tokenizers)
    pad = min(map(len, marian))
    return Rows(*([*ids[:pad], BOS_ID, *ids[pad:]] for ids in marian))


def ctranslate2_rows(tokenizers: Tokenizers, *, has_start: bool) -> Rows:
    """Return the order here; of imported models without PAD, and a start token only if it has one.

    Without one, CTranslate2 starts from a zero vector.
    """
    if not is_imported(tokenizers):
        return _all_rows(tokenizers)
    first = [UNK_ID, *([BOS_ID] if has_start else []), EOS_ID]
    return Rows(*([*first, *range(EOS_ID + 1, len(side))] for side in tokenizers))


def _all_rows(tokenizers: Tokenizers) -> Rows:
    return Rows(*(range(len(tokenizer)) for tokenizer in tokenizers))


def names_of(tokenizer: Tokenizer, rows: Sequence[int], start: str | None = None) -> list[str]:
    """Return the entries in the other order; `start` renames the decoder's start token."""
    pieces = tokenizer.pieces()
    return [start if row == BOS_ID and start else pieces[row] for row in rows]


def spm_of(tokenizers: Tokenizers) -> tuple[bytes, bytes]:
    """Return the SentencePiece models of both sides; they quote what is quoted here."""
    from seq2seq_cli.extras.export.sentencepiece_rules import with_quoting

    sides: Any = tokenizers
    src, tgt = (with_quoting(side.spm) if side.is_quoted else side.spm for side in sides)
    return src, tgt


def write_tokenizers(tokenizers: Tokenizers, folder: Path) -> None:
    """Write the SentencePiece models of an imported model, or what was learned here."""
    if not is_imported(tokenizers):
        save_tokenizers(RunFolder(folder), tokenizers)
        return
    for name, model in zip(SPMS, spm_of(tokenizers), strict=True):
        write_atomic(folder / name, model)


def lines_for(tokenizers: Tokenizers, lines: Sequence[str]) -> list[str]:
    """Return lines as the other program gets them: of imported models with single spaces."""
    return [normalize_spaces(line) for line in lines] if is_imported(tokenizers) else list(lines)


def split_ids(folder: Path, vocabulary: Sequence[str], lines: Sequence[str]) -> list[list[int]]:
    """Return what the written source.spm and a vocabulary, by id, make of lines."""
    processor = processor_of(folder / SPMS[0])
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    return [
        [ids.get(piece, ids["<unk>"]) for piece in processor.encode(line, out_type=str)]
        for line in lines
    ]


def processor_of(path: Path) -> Any:
    """Return the SentencePiece model of a file."""
    from sentencepiece import SentencePieceProcessor

    return SentencePieceProcessor(model_file=str(path))
