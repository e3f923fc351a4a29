"""A model of another program between its reader and the writer of the run, and what readers share.

V vocabulary, D d_model, F d_ff.
"""

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seq2seq_cli.config.languages import LanguagePair
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.extras.export.marian import marian_base
from seq2seq_cli.files import MEBIBYTE, read_bounded, read_json, reading
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.sentencepiece_tokenizer import open_model
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, UNK_ID, Tokenizer, Tokenizers

Array = NDArray[np.float32]
Dialect = Literal["Hugging Face", "Marian", "CTranslate2"]

MOST_ENTRIES = 2_000_000  # of a vocabulary
MOST_LAYERS = 1_000
_MOST_SENTENCEPIECE = 64 * MEBIBYTE


class Vocabulary(NamedTuple):
    """The entries of one side by the ids of the other program, and the ids of special tokens."""

    pieces: tuple[str | None, ...]  # None: a row without an entry
    unk: int
    eos: int
    start: int | None = None  # of the decoder; None: it starts from a zero embedding
    pad: int | None = None  # never produced, so the run has no such row


@dataclass
class ForeignModel:
    """Weights under the run's names, in fp32, with the rows of vocabularies in their own order."""

    weights: dict[str, Array]
    model: dict[str, Any]  # options of section model
    src: Vocabulary
    tgt: Vocabulary  # the same object if the vocabulary is shared
    dialect: Dialect
    sentencepiece: tuple[bytes, bytes] | None = None  # of source and target
    tokenizers: Tokenizers | None = None  # of an export of this program
    has_halves: bool = True  # sines before cosines, not alternating
    is_eos_given: bool = False  # to CTranslate2 by its caller, after every source
    decoding: dict[str, Any] = field(default_factory=dict)  # options of section decoding
    bad_words: Sequence[Sequence[int]] = ()  # target ids that no translation contains
    max_length: int = 256  # tokens of a source
    languages: LanguagePair | None = None
    tags: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


class Names:
    """The tensors of a file by name, each of which is taken once, with its expected shape."""

    def __init__(self, tensors: Mapping[str, NDArray[Any]], path: Path) -> None:
        self.tensors, self.path = dict(tensors), path

    def take(self, name: str, *shape: int | None) -> Array:
        """Return and remove a tensor in fp32; UserError if it is missing or has another shape."""
        found = self.take_optional(name, *shape)
        if found is None:
            raise incomplete(self.path, f"it lacks the weights {name}")
        return found

    def take_optional(self, name: str, *shape: int | None) -> Array | None:
        """Return None if there is no such tensor."""
        array = self.tensors.pop(name, None)
        if array is None:
            return None
        fits = len(array.shape) == len(shape) and all(
            expected in (None, size) for expected, size in zip(shape, array.shape, strict=True)
        )
        if not fits or array.dtype.kind not in "fiu":
            raise UserError(
                f"{self.path} does not fit its configuration: {name} has the shape "
                f"{list(array.shape)}"
            )
        return np.ascontiguousarray(array, np.float32)


def number(value: object, name: str, path: Path, least: int = 1, most: int = 1 << 20) -> int:
    """Return a number of a configuration; UserError if it is none in this range."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UserError(f"{path}: {name} must be a number from {least:,} to {most:,}")
    return value


def probability(given: object) -> float:
    return float(given) if isinstance(given, int | float) and 0 <= given < 1 else 0.0


def refuse(path: Path, what: str, reason: str) -> UserError:
    """Return the error for a model that a run cannot represent."""
    return UserError(f"{path} cannot be imported: it has {what}, and {reason}")


def damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path} is damaged: {what}")


def incomplete(path: Path, what: str) -> UserError:
    return UserError(f"{path} is not complete: {what}")


def refused(path: Path, what: str) -> UserError:
    """Return the error for an archive that may be hostile."""
    return UserError(f"{path} is refused: {what}")


@contextmanager
def unzipping(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive; UserError if it is damaged, for which zipfile and NumPy raise many types."""
    with reading(path):
        try:
            with zipfile.ZipFile(path) as archive:
                yield archive
        except Exception as error:
            is_of_system = isinstance(error, OSError) and error.errno is not None  # unlike bzip2's
            if is_of_system or isinstance(error, UserError):
                raise
            raise damaged(path, short(str(error))) from None


def read_object(path: Path, *, is_optional: bool = False) -> dict[str, Any]:
    """Read a JSON object; UserError if the file is missing, damaged or something else.

    An optional file that is missing counts as empty.
    """
    if is_optional and not path.is_file():
        return {}
    content = read_json(path)
    if not isinstance(content, dict):
        raise damaged(path, "it is not a JSON object")
    return content


def read_sentencepiece(path: Path) -> bytes:
    """Read a SentencePiece model; UserError if the file is missing, damaged or something else."""
    with reading(path):
        model = read_bounded(path, _MOST_SENTENCEPIECE)
    try:
        open_model(model)
    except UserError:
        raise damaged(path, "it is not a SentencePiece model") from None
    return model


def entries_by_id(ids: Mapping[Any, Any], size: int, path: Path) -> tuple[str | None, ...]:
    """Return entries by id from a table of ids; UserError for ids that the weights lack."""
    pieces: list[str | None] = [None] * size
    for piece, token in ids.items():
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < size:
            raise UserError(f"{path}: {short(str(piece))} has an id that the weights lack")
        if pieces[token] is not None:
            raise UserError(f"{path}: two entries have the id {token}")
        pieces[token] = str(piece)
    return tuple(pieces)


def tags_of(vocabulary: Vocabulary) -> tuple[str, ...]:
    """Return entries such as >>deu<<, which chooses the target language of OPUS-MT's models."""
    pieces = (piece for piece in vocabulary.pieces if piece is not None and len(piece) > 4)
    return tuple(piece for piece in pieces if piece.startswith(">>") and piece.endswith("<<"))


def own_tokenizers(folder: Path) -> Tokenizers | None:
    """Return the tokenizers of an exported model; None if the folder has none."""
    run = RunFolder(folder)
    one, (src, tgt) = run.new_tokenizer_paths(is_one=True)[0], run.new_tokenizer_paths(is_one=False)
    if one.is_file():
        tokenizer = Tokenizer.load(one)
        return Tokenizers(tokenizer, tokenizer)
    if src.is_file() and tgt.is_file():
        first, second = Tokenizer.load(src), Tokenizer.load(tgt)
        if first.pieces() == second.pieces():
            second = Tokenizer.load(tgt, first)
        return Tokenizers(first, second)
    return None


def own_vocabulary(tokenizer: Tokenizer, size: int, path: Path) -> Vocabulary:
    """Return the vocabulary of a tokenizer; UserError if the weights have other rows."""
    if len(tokenizer) != size:
        raise UserError(f"{path} does not fit its tokenizer, which has {len(tokenizer):,} entries")
    return Vocabulary(tuple(tokenizer.pieces()), UNK_ID, EOS_ID, BOS_ID)


# Activations by their names in other programs, and a number a with f(x) = ours(a x) / a.
ACTIVATIONS = {
    "relu": ("relu", 1.0),
    "gelu": ("gelu", 1.0),
    "swish": ("silu", 1.0),
    "silu": ("silu", 1.0),
    "quick_gelu": ("silu", 1.702),  # x · sigmoid(1.702 x) (Hendrycks and Gimpel 2016)
}


def fold_activation(weights: dict[str, Array], factor: float) -> None:
    """Make f(x) = silu(a x) / a from silu: exactly, in the layers before and after it."""
    if factor != 1.0:
        for name in weights:
            if ".feed_forward.expand." in name:
                weights[name] = weights[name] * np.float32(factor)
            elif name.endswith(".feed_forward.contract.weight"):
                weights[name] = weights[name] / np.float32(factor)


def table_of_positions(count: int, d_model: int, base: float, offset: int) -> NDArray[np.float64]:
    """Return encodings of positions, (count, D), with sines before cosines, as other programs."""
    rates = base ** (-np.arange(d_model // 2) * 2 / d_model)
    angles = (np.arange(count) + offset)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


class Positions(NamedTuple):
    """How a table of positional encodings was made."""

    has_halves: bool
    base: float
    offset: int


def one_for_both(found: set[Positions], path: Path) -> Positions:
    """Return the positions of encoder and decoder; UserError if they differ."""
    if len(found) > 1:
        raise refuse(path, "different positions in encoder and decoder", "a run has one")
    return found.pop()


_MOST_POSITIONS = 512  # compared; angles of later ones differ by rounding in fp32
_MOST_LOG_BASE = math.log(1e12)


def _base_of(table: NDArray[np.float64]) -> Iterator[float]:
    """Yield the base, to four digits, as the second angle of two positions has it."""
    half = table.shape[1] // 2
    if len(table) > 2 and half > 1:
        angles = np.arctan2(table[1:3, 1], table[1:3, half + 1])
        rate = (angles[1] - angles[0]) % (2 * math.pi)
        if 0 < rate < 1 and (log_base := -half * math.log(rate)) < _MOST_LOG_BASE:
            yield float(f"{math.exp(log_base):.4g}")


def fit_positions(table: NDArray[Any], path: Path) -> Positions:
    """Find layout, base and offset of a table, (positions, D); UserError if none of these fits."""
    stored = np.asarray(table, np.float64)[:_MOST_POSITIONS]
    d_model = stored.shape[1]
    if not len(stored) or d_model % 2:
        raise damaged(path, "its table of positions does not fit")
    bits = np.ascontiguousarray(table, np.float32).view(np.uint32)
    is_bf16 = not (bits & 0xFFFF).any()
    tolerance = 8e-3 if is_bf16 else 2e-3 if not (bits & 0x1FFF).any() else 5e-4  # fp16, fp32
    pairs = stored.reshape(len(stored), -1, 2).transpose(0, 2, 1).reshape(stored.shape)
    for has_halves, halves in ((True, stored), (False, pairs)):
        for base in (10_000.0, marian_base(d_model), *_base_of(halves)):
            for offset in (0, 1, 2):
                computed = table_of_positions(len(stored), d_model, base, offset)
                # A padding position may be zero, and a run computes what the table has.
                if np.abs(computed - halves).max(initial=0.0) <= tolerance:
                    return Positions(has_halves, base, offset)
    raise refuse(path, "a table of positions that is no known sinusoid", "runs learn no positions")
