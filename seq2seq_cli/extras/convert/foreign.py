"""A model of another program on its way to a run, and what the readers of models share."""

import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seq2seq_cli.config.languages import LanguagePair
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.extras.export.marian import marian_base
from seq2seq_cli.files import MEBIBYTE, read_bounded, read_json, reading
from seq2seq_cli.model.positions import sinusoidal_positions
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.sentencepiece_tokenizer import open_model
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, UNK_ID, Tokenizer, Tokenizers

Array = NDArray[np.float32]

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


class Positions(NamedTuple):
    """How a table of positional encodings was made."""

    has_halves: bool  # sines before cosines, not alternating
    base: float
    offset: int


@dataclass
class ForeignModel:
    """Weights under the run's names, in fp32, with the rows of vocabularies in their own order."""

    weights: dict[str, Array]
    model: dict[str, Any]  # options of section model
    src: Vocabulary
    tgt: Vocabulary  # the same object if the vocabulary is shared
    positions: Positions
    sentencepiece: tuple[bytes, bytes] | None = None  # of source and target
    tokenizers: Tokenizers | None = None  # of an export of this program
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
            found = list(array.shape)
            raise UserError(
                f"{self.path} does not fit its configuration: {name} has the shape {found}"
            )
        return np.ascontiguousarray(array, np.float32)

    def take_or_zeros(self, name: str, *shape: int) -> Array:
        array = self.take_optional(name, *shape)
        return np.zeros(shape, np.float32) if array is None else array


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
    """Read a JSON object, empty if an optional file is missing; UserError for anything else."""
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
    is_one = run.new_tokenizer_paths(is_one=True)[0].is_file()
    src_path, tgt_path = run.new_tokenizer_paths(is_one=is_one)
    if not (src_path.is_file() and tgt_path.is_file()):
        return None
    src = Tokenizer.load(src_path)
    tgt = src if src_path == tgt_path else Tokenizer.load(tgt_path)
    if tgt.pieces() == src.pieces() and tgt is not src:
        tgt = Tokenizer.load(tgt_path, src)
    return Tokenizers(src, tgt)


def own_vocabularies(
    tokenizers: Tokenizers, sizes: tuple[int, int], path: Path
) -> tuple[Vocabulary, Vocabulary]:
    """Return the vocabularies of tokenizers; UserError if the weights have other rows."""
    for tokenizer, size in zip(tokenizers, sizes, strict=True):
        if (length := len(tokenizer)) != size:
            raise UserError(f"{path} does not fit its tokenizer, which has {length:,} entries")
    src, tgt = (Vocabulary(tuple(t.pieces()), UNK_ID, EOS_ID, BOS_ID) for t in tokenizers)
    return src, src if tokenizers.is_shared else tgt


def known_activation(
    name: object, known: Mapping[Any, tuple[str, float]], path: Path
) -> tuple[str, float]:
    """Return our name of an activation f, and a with f(x) = ours(a x) / a; UserError if unknown."""
    if name not in known:
        what = f"the activation {short(str(name))}"
        raise refuse(path, what, "runs have relu, gelu and swish")
    return known[name]


def fold_activation(weights: dict[str, Array], factor: float) -> None:
    """Make f(x) = silu(a x) / a from silu: exactly, in the layers before and after it."""
    if factor != 1.0:
        for name in weights:
            if ".feed_forward.expand." in name:
                weights[name] = weights[name] * np.float32(factor)
            elif name.endswith(".feed_forward.contract.weight"):
                weights[name] = weights[name] / np.float32(factor)


def one_d_ff(weights: Mapping[str, Array], path: Path) -> int:
    """Return the size of all feed-forward networks; UserError if they differ."""
    sizes = {len(w) for n, w in weights.items() if n.endswith(".feed_forward.expand.weight")}
    if len(sizes) > 1:
        raise refuse(path, "feed-forward networks of different sizes", "a run has one")
    return sizes.pop()


def positions_of(tables: Iterable[Array | None], default: Positions, path: Path) -> Positions:
    """Return the positions of encoder and decoder; UserError if they differ.

    `default` are those that the other program computes if it has stored no table.
    """
    found = {default if table is None else fit_positions(table, path) for table in tables}
    if len(found) > 1:
        raise refuse(path, "different positions in encoder and decoder", "a run has one")
    return found.pop()


_MOST_POSITIONS = 512  # compared; angles of later ones differ by rounding in fp32
_MOST_LOG_BASE = math.log(1e12)


def _base_of(table: NDArray[np.float64]) -> Iterator[float]:
    """Yield the base, to four digits, as the second angle of two positions has it."""
    count, d_model = table.shape
    if count > 2 and d_model > 2:
        angles = np.arctan2(table[1:3, 2], table[1:3, 3])
        rate = (angles[1] - angles[0]) % (2 * math.pi)
        if 0 < rate < 1 and (log_base := -d_model / 2 * math.log(rate)) < _MOST_LOG_BASE:
            yield float(f"{math.exp(log_base):.4g}")


def fit_positions(table: NDArray[Any], path: Path) -> Positions:
    """Find layout, base and offset of a table, (positions, d_model); UserError if none fits."""
    stored = np.asarray(table, np.float64)[:_MOST_POSITIONS]
    count, d_model = stored.shape
    if not count or d_model % 2:
        raise damaged(path, "its table of positions does not fit")
    bits = np.ascontiguousarray(table, np.float32).view(np.uint32)
    is_bf16 = not (bits & 0xFFFF).any()
    tolerance = 8e-3 if is_bf16 else 2e-3 if not (bits & 0x1FFF).any() else 5e-4  # fp16, fp32
    alternating = stored.reshape(count, 2, -1).transpose(0, 2, 1).reshape(stored.shape)
    for has_halves, pairs in ((True, alternating), (False, stored)):
        for base in (10_000.0, marian_base(d_model), *_base_of(pairs)):
            for offset in (0, 1, 2):
                computed = sinusoidal_positions(offset, offset + count, d_model, base=base)
                # A padding position may be zero, and a run computes what the table has.
                if np.abs(computed.numpy() - pairs).max(initial=0.0) <= tolerance:
                    return Positions(has_halves, base, offset)
    raise refuse(path, "a table of positions that is no known sinusoid", "runs learn no positions")
