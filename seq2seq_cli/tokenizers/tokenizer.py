"""The interface of tokenizers, whose kinds `TOKENIZER_KINDS` lists, and the two of a run."""

import codecs
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, cast

from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.config.types import (
    SIDES,
    TOKENIZER_KINDS,
    Normalization,
    OnBadLine,
    Side,
    TokenizerKind,
)
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.files import MEBIBYTE, read_bounded, read_json, reading, write_atomic
from seq2seq_cli.plugins import implementation
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text import quoting
from seq2seq_cli.text.corpus import features_in, hash_of_files, read_pairs
from seq2seq_cli.text.features import feature_symbols

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3
UNKNOWN_TEXT = "⁇"  # what an unknown token is in text, as SentencePiece writes it
_MOST_LISTED = 10  # symbols in a message
KIND_MARK = b"seq2seq-cli tokenizer "  # and the kind begin every file but SentencePiece's


class Tokenizer(ABC):
    """One vocabulary. `to_text(to_ids(s)) == s` for normalized text without unknown tokens.

    A kind is a subclass that is made of `model` and `shared_with`. The methods that are not
    abstract are for entries of text in which ▁ is a space, after special tokens and features.
    """

    is_quoted = True  # whether ▁ in text is quoted before it is split, and unquoted after it

    def __init__(
        self, model: bytes, pieces: Sequence[str], shared_with: "Tokenizer | None" = None
    ) -> None:
        """`model` is the content of the file; the vocabulary may be shared with another one."""
        self.model, self._pieces = model, tuple(pieces)
        if shared_with is not None:
            if self._pieces != shared_with._pieces:
                raise UserError(
                    "the vocabulary differs from the other side's, but must be shared; to reuse "
                    "two separate ones, set tokenizer.shared: false"
                )
            self._pieces = shared_with._pieces

    @staticmethod
    def fit(
        lines: Iterable[str],
        config: TokenizerConfig,
        side: Side = "src",
        features: Sequence[str] = (),
    ) -> "Tokenizer":
        """Learn a side's vocabulary from raw lines of text; the same lines give the same bytes."""
        return _class_of(config.kind.of(side)).learn(lines, config, side, features)

    @staticmethod
    def from_model(model: bytes, shared_with: "Tokenizer | None" = None) -> "Tokenizer":
        """Return the tokenizer with this content; UserError if it is damaged or not shared."""
        kind = "bpe"  # SentencePiece's format says which of its kinds it is
        if model.startswith(KIND_MARK):
            kind = model.removeprefix(KIND_MARK).split(b"\n", 1)[0].decode("ascii", "replace")
        facts = TOKENIZER_KINDS.get(cast(TokenizerKind, kind))
        if facts is None:
            raise UserError(f"this is a tokenizer of an unknown kind: {short(kind)}")
        return implementation(facts.tokenizer)(model, shared_with)

    @staticmethod
    def load(path: Path, shared_with: "Tokenizer | None" = None) -> "Tokenizer":
        """Load a model file; raises UserError if it is missing or something else."""
        with reading(path):
            model = read_bounded(path, 64 * MEBIBYTE)
        try:
            return Tokenizer.from_model(model, shared_with)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    @property
    @abstractmethod
    def kind(self) -> TokenizerKind:
        """The kind, which with `tokenizer.reuse` may differ from the config's."""

    @classmethod
    def learn(
        cls, lines: Iterable[str], config: TokenizerConfig, side: Side, features: Sequence[str]
    ) -> "Tokenizer":
        """See `fit`; not for kinds that only imported models have."""
        raise AssertionError("the config refuses to learn this kind")

    @abstractmethod
    def to_ids_batch(self, lines: Sequence[str], num_threads: int | None = None) -> list[list[int]]:
        """Return the ids of lines; of many, on all cores unless `num_threads` is given."""

    @abstractmethod
    def spans(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """Return the text with normalized spaces, and the span of characters of each id in it.

        Every byte of a character has the span of that character.
        """

    def normalize(self, text: str) -> str:
        """Return text as `to_ids` sees it: Unicode-normalized, with single spaces, stripped."""
        return quoting.normalize_spaces(text)

    @classmethod
    def normalizer(cls, rule: Normalization, symbols: Sequence[str]) -> Callable[[str], str]:
        """Return the function that normalizes text before a vocabulary is learned from it."""
        if rule != "identity":
            raise UserError(
                "tokenizer.normalization: this kind of tokenizer supports only identity"
            )
        return str

    def with_normalization(self, rule: Normalization, symbols: Sequence[str]) -> "Tokenizer":
        """Return a tokenizer with the same vocabulary that normalizes all but user symbols."""
        assert rule == "identity", "`normalizer` refuses others"
        return self

    def __len__(self) -> int:
        return len(self._pieces)

    def to_ids(self, text: str) -> list[int]:
        """Return ids without BOS or EOS; an unseen character becomes bytes or <unk>."""
        return self.to_ids_batch([text])[0]

    def split_tag(self, text: str) -> tuple[str | None, str]:
        """Return the tag that a line begins with and the rest, for kinds that read tags in text."""
        return None, text

    def begins_with_tag(self, text: str) -> bool:
        return text.lstrip().startswith(tuple(self._symbols))

    def to_inner_ids(self, text: str) -> list[int]:
        """Return the ids of text that no space precedes, as in the middle of a word."""
        return self.to_ids(text)

    def feature_ids(self, features: str) -> list[int]:
        """Return the ids of features such as `V;PST`; UserError if the vocabulary has none.

        Unknown ones, <unk>, come first, as text begins after the last known feature.
        """
        if features and not self.features:
            raise UserError(
                f"the vocabulary has no features, but a source has: {short(features)}; they are "
                "learned if data.train has features"
            )
        ids = [self.features.get(symbol, UNK_ID) for symbol in feature_symbols(features)]
        return sorted(ids, key=lambda number: number != UNK_ID)

    @functools.cached_property
    def features(self) -> dict[str, int]:
        """The entries of features, with their ids."""
        learned = self._pieces[EOS_ID + 1 :]
        found = itertools.takewhile(lambda piece: piece.startswith("<feature "), learned)
        return {piece: number for number, piece in enumerate(found, EOS_ID + 1)}

    def to_pieces(self, text: str) -> list[str]:
        """Return the tokens of text: ▁ is the space before a word."""
        return self.pieces_of(self.to_ids(text))

    def pieces_of(self, ids: Sequence[int]) -> list[str]:
        return [self._pieces[i] for i in ids]

    def tag_ids(self, tag: str | None) -> list[int]:
        """Return the one id of a tag, or none for None; UserError if the vocabulary lacks it."""
        if tag is None:
            return []
        if tag not in self._symbols:  # a learned piece, such as `en`, is no tag
            symbols = ", ".join(self.user_defined_symbols()[:_MOST_LISTED]) or "none"
            raise UserError(
                f"the vocabulary lacks the tag {tag} (its user-defined symbols: {symbols}): when "
                "it is learned, data.train needs a corpus with this tag, or "
                "tokenizer.user_defined_symbols the tag itself"
            )
        return self.ids_of([tag])

    @functools.cached_property
    def _symbols(self) -> frozenset[str]:
        return frozenset(self.user_defined_symbols())

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {piece: number for number, piece in enumerate(self._pieces)}

    def ids_of(self, pieces: Sequence[str]) -> list[int]:
        """Return the ids of entries, <unk> for others."""
        return [self._ids.get(piece, UNK_ID) for piece in pieces]

    def pieces(self) -> Sequence[str]:
        return self._pieces

    def user_defined_symbols(self) -> list[str]:
        """Return tags and `tokenizer.user_defined_symbols`."""
        return []

    def to_text(self, ids: Sequence[int]) -> str:
        """Return one line of text without special ids other than <unk>, and broken-off bytes."""
        return quoting.normalize_spaces("".join(self.surfaces(ids)))

    @functools.cached_property
    def is_of_words(self) -> bool:
        """True if every token is a whole word; user symbols have entries with and without ▁."""
        entries = set(self._pieces[EOS_ID + 1 :]) - self.features.keys()
        return all(entry.startswith(quoting.SPACE) or f"▁{entry}" in entries for entry in entries)

    def is_byte(self, token: int) -> bool:
        return token in self._bytes

    def continues_character(self, token: int) -> bool:
        """Return True if the token is a byte of a character, but not its first."""
        return 0x80 <= self._bytes.get(token, 0) < 0xC0

    @functools.cached_property
    def _bytes(self) -> Mapping[int, int]:
        """The tokens of single bytes, with their values."""
        return {}

    def surfaces(self, ids: Sequence[int]) -> list[str]:
        """Return the text that each id adds; joined, with normalized spaces, they are `to_text`.

        The last byte of a character adds it. Other bytes, also of a broken character, add nothing.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        surfaces: list[str] = []
        for token in ids:
            if self.is_byte(token):
                surfaces.append(decoder.decode(bytes([self._bytes[token]])))
                continue
            decoder.reset()
            if token == UNK_ID:
                surfaces.append(f" {UNKNOWN_TEXT} ")
            elif token <= EOS_ID or self._pieces[token] in self.features:
                surfaces.append("")
            else:
                surfaces.append(self._pieces[token].replace(quoting.SPACE, " "))
        return list(quoting.unquote_parts(surfaces)) if self.is_quoted else surfaces


def _class_of(kind: TokenizerKind) -> type[Tokenizer]:
    return implementation(TOKENIZER_KINDS[kind].tokenizer)


class Tokenizers(NamedTuple):
    """The tokenizers of source and target; if they share a vocabulary, they may be one object."""

    src: Tokenizer
    tgt: Tokenizer

    @property
    def is_shared(self) -> bool:
        return self.src.pieces() is self.tgt.pieces()


def fit_tokenizers(
    text: ParallelText, config: TokenizerConfig, on_bad_line: OnBadLine = "error"
) -> Tokenizers:
    """Learn the vocabularies, with the text's tags, or load them from `tokenizer.reuse`."""
    options, features = config.with_symbols(text.tags), features_in(text, on_bad_line)
    if config.reuse is not None:
        return _reuse(options, config.reuse, features, text.tags)
    rules, symbols = config.normalization, options.user_defined_symbols

    def fit(*sides: Side) -> Tokenizer:
        lines = lines_to_learn(text, options, on_bad_line, *sides)
        return Tokenizer.fit(lines, options, sides[0], features if "src" in sides else ())

    if not config.shared:
        return Tokenizers(
            *(fit(side).with_normalization(getattr(rules, side), symbols) for side in SIDES)
        )
    shared = fit(*SIDES)
    src = shared.with_normalization(rules.src, symbols)
    tgt = src if rules.src == rules.tgt else shared.with_normalization(rules.tgt, symbols)
    return Tokenizers(src, tgt)


def lines_to_learn(
    text: ParallelText, config: TokenizerConfig, on_bad_line: OnBadLine, *sides: Side
) -> Iterator[str]:
    """Yield the normalized lines that a vocabulary of one side, or of both, is learned from."""
    normalize = {}
    for side in sides:
        rule = getattr(config.normalization, side)
        kind = _class_of(config.kind.of(side))
        normalize[side] = kind.normalizer(rule, config.user_defined_symbols)
    for pair in read_pairs(text.once(), on_bad_line):
        if pair is not None and not pair.is_empty:
            yield from (normalize[side](getattr(pair, side)) for side in sides)


def _reuse(
    config: TokenizerConfig, folder: Path, features: Sequence[str], tags: Sequence[str]
) -> Tokenizers:
    if folder.is_file():
        raise UserError(
            f"tokenizer.reuse: {folder} is a file: give the folder of a run or of seq2seq vocab"
        )
    run = RunFolder(folder)
    run.reject_escaping_links()
    tokenizers = load_tokenizers(run, config)
    if missing := [name for name in features if name not in tokenizers.src.features]:
        raise UserError(
            f"tokenizer.reuse: the vocabulary of {folder} lacks {', '.join(missing[:3])}, which "
            "data.train has; learn another vocabulary with tokenizer.reuse: null"
        )
    for symbol in config.user_defined_symbols:
        sides = tokenizers[:1] if symbol in tags else tokenizers  # only sources have tags
        entries = (t.pieces() if t.kind == "word" else t.to_pieces(symbol) for t in sides)
        if not all(symbol in found for found in entries):
            raise UserError(
                f"tokenizer.reuse: the vocabulary of {folder} lacks {symbol!r}, which is a tag of "
                "data.train or one of tokenizer.user_defined_symbols; leave it out, or learn "
                "another vocabulary with tokenizer.reuse: null"
            )
    return tokenizers


def load_tokenizers(run: RunFolder, config: TokenizerConfig) -> Tokenizers:
    """Load the tokenizers of a run.

    Raises UserError if a file is damaged, does not fit, or is not the one that manifest.json names.
    """
    src_path, tgt_path = run.tokenizer_paths(config.shared)
    src = Tokenizer.load(src_path)
    shared_with = src if config.shared else None
    tgt = src if src_path == tgt_path else Tokenizer.load(tgt_path, shared_with)
    tokenizers = Tokenizers(src, tgt)
    for side, path, tokenizer in zip(SIDES, (src_path, tgt_path), tokenizers, strict=True):
        vocab_size = config.vocab_size.of(side)
        if vocab_size != "auto" and len(tokenizer) > vocab_size:
            raise UserError(
                f"{path} does not fit the config: it has {len(tokenizer):,} entries, more than "
                f"tokenizer.vocab_size {vocab_size:,}"
            )
    recorded = None
    with suppress(UserError, OSError, KeyError, TypeError):  # a model is usable without
        recorded = read_json(run.manifest)["tokenizer"]
    if recorded is not None and recorded != tokenizer_hashes(run, config):
        raise UserError(
            f"the vocabulary in {run.path} is not the one that the run started with; put it back"
        )
    return tokenizers


def tokenizer_hashes(run: RunFolder, config: TokenizerConfig) -> dict[str, str]:
    """Return the hash of each file of a run's tokenizers by its name, or that it is missing."""
    paths = dict.fromkeys(run.tokenizer_paths(config.shared))
    return {p.name: hash_of_files([p]) if p.is_file() else "missing" for p in paths}


def save_tokenizers(run: RunFolder, tokenizers: Tokenizers) -> dict[Path, Tokenizer]:
    """Write one file, or two if the sides differ; return the tokenizer of each file.

    Another vocabulary's files, which would be read instead, and lists of pieces are removed.
    """
    paths = run.new_tokenizer_paths(is_one=tokenizers.src is tokenizers.tgt)
    files = dict(zip(paths, tokenizers, strict=True))
    for path, tokenizer in files.items():
        write_atomic(path, tokenizer.model)
    one, two = (run.new_tokenizer_paths(is_one=is_one) for is_one in (True, False))
    for path in {*one, *two} - files.keys():
        path.unlink(missing_ok=True)
        path.with_suffix(".vocab").unlink(missing_ok=True)
    return files
