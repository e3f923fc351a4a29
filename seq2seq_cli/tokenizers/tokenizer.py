"""Reversible tokenization with SentencePiece, learnt from the training text only."""

import codecs
import functools
import io
import itertools
import re
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args

import sentencepiece

from seq2seq_cli.config.text import SUBWORDS, ParallelText, TokenizerConfig
from seq2seq_cli.config.types import SIDES, Normalization, OnBadLine, Side, TokenizerKind
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.files import MEBIBYTE, read_bounded, reading, write_atomic
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text import quoting
from seq2seq_cli.text.corpus import features_in, read_pairs
from seq2seq_cli.text.features import feature_symbols
from seq2seq_cli.tokenizers.graphemes import grapheme_clusters
from seq2seq_cli.tokenizers.sampling import MAX_LINE_BYTES, sample, without_rare_characters

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3
_FEW_LINES = 200  # take less time than to start threads for them


class LearnedPiece(NamedTuple):
    """An entry of a vocabulary with its score: bpe prefers merges of greater score, and that of a
    unigram model is a log-probability."""

    id: int
    score: float


class Tokenizer:
    """One vocabulary. `to_text(to_ids(s)) == s` for normalized text without unknown tokens."""

    def __init__(self, model: bytes, shared_with: "Tokenizer | None" = None) -> None:
        """Load a serialized SentencePiece model, whose vocabulary may be shared with another one.

        Raises UserError for other bytes, or if the two vocabularies differ.
        """
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
            self._pieces = tuple(self.pieces_of(range(len(self))))  # if damaged, perhaps not text
        except (RuntimeError, UnicodeDecodeError):
            raise UserError("this is not a SentencePiece model") from None
        special_ids = tuple(getattr(self._processor, f"{name}_id")() for name in _SPECIAL)
        if special_ids != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
            raise UserError(f"the SentencePiece model has {', '.join(_SPECIAL)} ids {special_ids}")
        if shared_with is not None:
            if self._pieces != shared_with._pieces:
                raise UserError("the vocabulary differs from the other side's, but must be shared")
            self._pieces = shared_with._pieces

    @classmethod
    def fit(
        cls,
        lines: Iterable[str],
        config: TokenizerConfig,
        side: Side = "src",
        features: Sequence[str] = (),
    ) -> Self:
        """Learn a vocabulary from raw lines of text; the same lines give the same bytes.

        It has the kind and the size of that side, and the entries of these features.
        """
        kind = config.kind.of(side)
        symbols = sorted(config.user_defined_symbols, key=len, reverse=True)
        symbol = re.compile("|".join(map(re.escape, symbols)))

        def learnable(line: str) -> str:  # without symbols, which are entries already
            if symbols and kind == "word":
                line = " ".join(word for word in line.split() if not symbol.search(word))
            return quoting.prepare(symbol.sub(" ", line) if symbols else line)

        min_frequency = config.min_character_frequency
        if kind == "word" or (kind == "char" and min_frequency == "auto"):
            min_frequency = 1
        sampled = sample(map(learnable, lines), config.max_sentences)
        learned_from = without_rare_characters(sampled, min_frequency)
        if config.graphemes and kind == "char":
            vocab_size, frequent = config.vocab_size.of(side), list(learned_from)
            assert vocab_size != "auto", "resolved before a vocabulary is learnt"
            characters = sorted(set(itertools.chain.from_iterable(frequent)))
            room = vocab_size - EOS_ID - 1 - len(symbols) - len(features) - len(characters)
            config = config.with_symbols(grapheme_clusters(frequent, max(0, room)))
            # SentencePiece looks for characters outside of symbols only.
            learned_from = iter([*frequent, " ".join(characters)])
        return cls(_train_model(learned_from, config, side, features=features))

    def with_normalization(
        self, normalization: Normalization, symbols: Sequence[str]
    ) -> "Tokenizer":
        """Return a tokenizer with the same vocabulary that normalizes all but user symbols."""
        if normalization == "identity":
            return self
        from sentencepiece import sentencepiece_model_pb2

        model, normalizer = (
            sentencepiece_model_pb2.ModelProto.FromString(serialized)  # type: ignore[attr-defined]
            for serialized in (self.model, _normalizer_model(normalization, symbols))
        )
        normalizer.normalizer_spec.ClearField("normalization_rule_tsv")  # a path of a moment
        model.normalizer_spec.CopyFrom(normalizer.normalizer_spec)
        return Tokenizer(model.SerializeToString(), shared_with=self)

    @classmethod
    def load(cls, path: Path, shared_with: "Tokenizer | None" = None) -> Self:
        """Load a model file; raises UserError if it is missing or something else."""
        with reading(path):
            model = read_bounded(path, 64 * MEBIBYTE)
        try:
            return cls(model, shared_with)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def __len__(self) -> int:
        return int(self._processor.vocab_size())

    @functools.cached_property
    def kind(self) -> TokenizerKind:
        """The kind of token; with `tokenizer.reuse` it may differ from that of the config."""
        spec = self._model_proto().trainer_spec
        name = spec.ModelType.Name(spec.model_type)
        kinds: dict[str, TokenizerKind] = {kind.upper(): kind for kind in get_args(TokenizerKind)}
        return kinds[name]

    def normalize(self, text: str) -> str:
        """Return text as `to_ids` sees it: Unicode-normalized, with single spaces, stripped."""
        normalized: str = self._processor.normalize(quoting.prepare(text))
        return quoting.unquote(normalized.replace(quoting.SPACE, " ").strip())

    def to_ids(self, text: str) -> list[int]:
        """Return ids without BOS or EOS; an unseen character becomes bytes or <unk>."""
        return self.to_ids_batch([text])[0]

    def to_ids_batch(self, lines: Sequence[str], num_threads: int | None = None) -> list[list[int]]:
        """Return the ids of lines; of many, on all cores unless `num_threads` is given."""
        prepared = [quoting.prepare(line) for line in lines]
        if len(prepared) < _FEW_LINES:
            return [self._processor.encode(line) for line in prepared]
        ids: list[list[int]] = self._processor.encode(prepared, num_threads=num_threads)
        return ids

    def feature_ids(self, features: str) -> list[int]:
        """Return the ids of features such as `V;PST`; those that the vocabulary lacks are <unk>.

        These come first, as text begins after the last known feature. Raises UserError if the
        vocabulary has none.
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
        first = EOS_ID + 1
        controls = itertools.takewhile(self._processor.is_control, range(first, len(self)))
        return {self._pieces[number]: number for number in controls}

    def to_pieces(self, text: str) -> list[str]:
        """Return the tokens as SentencePiece writes them: ▁ is the space before a word."""
        return list(self._processor.encode(quoting.prepare(text), out_type=str))

    def pieces_of(self, ids: Sequence[int]) -> list[str]:
        """Return ids as SentencePiece writes them."""
        return [str(self._processor.id_to_piece(i)) for i in ids]

    def tag_ids(self, tag: str | None) -> list[int]:
        """Return the one id of a tag, or none for None; UserError if the vocabulary lacks it."""
        if tag is None:
            return []
        (token,) = self.ids_of([tag])
        if self._pieces[token] != tag:
            symbols = ", ".join(self.user_defined_symbols()[:_MOST_LISTED]) or "none"
            raise UserError(
                f"the vocabulary lacks the tag {tag} (its user-defined symbols: {symbols}): when "
                "it is learned, data.train needs a corpus with this tag, or "
                "tokenizer.user_defined_symbols the tag itself"
            )
        return [token]

    def ids_of(self, pieces: Sequence[str]) -> list[int]:
        """Return the ids of tokens as SentencePiece writes them."""
        return [int(self._processor.piece_to_id(piece)) for piece in pieces]

    def pieces(self) -> Sequence[str]:
        """Return the whole vocabulary, by id."""
        return self._pieces

    def learned_pieces(self) -> dict[str, LearnedPiece]:
        """Return the entries that were learned: no special token, byte or user-defined symbol."""
        return {
            entry.piece: LearnedPiece(number, entry.score)
            for number, entry in enumerate(self._model_proto().pieces)
            if entry.type == entry.NORMAL
        }

    def user_defined_symbols(self) -> list[str]:
        """Return tags and `tokenizer.user_defined_symbols`; vocabularies of words also have ▁…."""
        entries = self._model_proto().pieces
        symbols = [entry.piece for entry in entries if entry.type == entry.USER_DEFINED]
        return [symbol for symbol in symbols if not symbol.startswith(quoting.SPACE)]

    def _model_proto(self) -> Any:
        from sentencepiece import sentencepiece_model_pb2

        return sentencepiece_model_pb2.ModelProto.FromString(self.model)  # type: ignore[attr-defined]

    def to_text(self, ids: Sequence[int]) -> str:
        """Return one line of text without special ids other than <unk>, and broken-off bytes."""
        if not self._bytes.keys().isdisjoint(ids):  # SentencePiece writes U+FFFD for broken ones
            return quoting.normalize_spaces("".join(self.surfaces(ids)))
        return quoting.unquote(quoting.normalize_spaces(self._processor.decode(list(ids))))

    def shares_with(self, other: "Tokenizer") -> bool:
        """Return True if both share one vocabulary; they may normalize text differently."""
        return self._pieces is other._pieces

    @functools.cached_property
    def is_of_words(self) -> bool:
        """True if every token is a whole word; user symbols have entries with and without ▁."""
        entries = set(self._pieces[EOS_ID + 1 :]) - self.features.keys()
        return all(entry.startswith(quoting.SPACE) or f"▁{entry}" in entries for entry in entries)

    def to_inner_ids(self, text: str) -> list[int]:
        """Return the ids of text that no space precedes, as in the middle of a word."""
        ids: list[int] = self._without_first_space.encode(quoting.prepare(text))
        return ids

    @functools.cached_property
    def _without_first_space(self) -> sentencepiece.SentencePieceProcessor:
        processor = sentencepiece.SentencePieceProcessor()
        # A repeated protobuf field replaces the first: normalizer_spec.add_dummy_prefix = false.
        processor.LoadFromSerializedProto(self.model + b"\x1a\x02\x18\x00")
        return processor

    def has_symbol(self, symbol: str) -> bool:
        """Return True if text is never split within this string; of words, if it is an entry."""
        return symbol in (self.pieces() if self.kind == "word" else self.to_pieces(symbol))

    def is_byte(self, token: int) -> bool:
        """Return True if the token is one byte of a character."""
        return token in self._bytes

    def continues_character(self, token: int) -> bool:
        """Return True if the token is a byte of a character, but not its first."""
        return 0x80 <= self._bytes.get(token, 0) < 0xC0

    @functools.cached_property
    def _bytes(self) -> dict[int, int]:
        """The tokens of single bytes, with their values."""
        tokens = filter(self._processor.is_byte, range(len(self)))
        return {token: int(self._pieces[token][3:-1], 16) for token in tokens}

    def spans(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """Return the text with normalized spaces, and the span of characters of each id in it.

        Every byte of a character has the span of that character.
        """
        text = quoting.normalize_spaces(text)
        quoted, offsets = quoting.quote_with_offsets(text)
        normalized, origins = self._processor.normalize(quoted, with_offsets=True)
        spans = []
        start = num_bytes = 0  # bytes seen of the character at `start`
        surfaces = self._processor.encode(quoted, out_type=str)  # also of unknown tokens
        for token, surface in zip(self._processor.encode(quoted), surfaces, strict=True):
            is_byte = self.is_byte(token)
            end = min(start + (1 if is_byte else len(surface)), len(normalized))
            spans.append((offsets[origins[start]], offsets[origins[end]]))
            num_bytes += is_byte
            if not is_byte or num_bytes == len(normalized[start:end].encode()):
                start, num_bytes = end, 0
        return text, spans

    def surfaces(self, ids: Sequence[int]) -> list[str]:
        """Return the text that each id adds; joined, with normalized spaces, they are `to_text`.

        The last byte of a character adds the character, the others nothing, nor do bytes of one
        that is broken off.
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
            elif self._processor.is_control(token):
                surfaces.append("")
            else:
                surfaces.append(self._pieces[token].replace(quoting.SPACE, " "))
        return list(quoting.unquote_parts(surfaces))


UNKNOWN_TEXT = "⁇"  # what an unknown token is in text, as SentencePiece writes it
_SPECIAL = ("pad", "unk", "bos", "eos")
_MOST_LISTED = 10  # symbols in a message


class Tokenizers(NamedTuple):
    """The tokenizers of source and target.

    With a shared vocabulary they are the same object, or two objects with the same pieces that
    normalize text differently.
    """

    src: Tokenizer
    tgt: Tokenizer

    @property
    def is_shared(self) -> bool:
        return self.src.shares_with(self.tgt)


def fit_tokenizers(
    text: ParallelText, config: TokenizerConfig, on_bad_line: OnBadLine = "error"
) -> Tokenizers:
    """Learn the vocabularies from training text, or take those of `tokenizer.reuse`.

    The tags of the text are among their symbols.
    """
    options = config.with_symbols(text.tags)
    if config.reuse is not None:
        return _reuse(options, config.reuse, features_in(text, on_bad_line))
    symbols, features = options.user_defined_symbols, features_in(text, on_bad_line)
    rules: dict[Side, Normalization] = {
        "src": config.normalization.src,
        "tgt": config.normalization.tgt,
    }
    normalize = {side: _normalizer(rule, symbols) for side, rule in rules.items()}

    def fit(*sides: Side) -> Tokenizer:
        def lines() -> Iterator[str]:
            for pair in read_pairs(text.once(), on_bad_line):
                if pair is not None and not pair.is_empty:
                    yield from (normalize[side](getattr(pair, side)) for side in sides)

        return Tokenizer.fit(lines(), options, sides[0], features if "src" in sides else ())

    if not config.shared:
        return Tokenizers(
            *(fit(side).with_normalization(rule, symbols) for side, rule in rules.items())
        )
    shared = fit("src", "tgt")
    by_rule = {rule: shared.with_normalization(rule, symbols) for rule in set(rules.values())}
    return Tokenizers(*(by_rule[rule] for rule in rules.values()))


def _reuse(config: TokenizerConfig, folder: Path, features: Sequence[str]) -> Tokenizers:
    run = RunFolder(folder)
    run.reject_escaping_links()
    tokenizers = load_tokenizers(run, config)
    if missing := [name for name in features if name not in tokenizers.src.features]:
        raise UserError(
            f"tokenizer.reuse: the vocabulary of {folder} lacks {', '.join(missing[:3])}, which "
            "data.train has; learn another vocabulary with tokenizer.reuse: null"
        )
    for symbol in config.user_defined_symbols:
        if not all(tokenizer.has_symbol(symbol) for tokenizer in tokenizers):
            raise UserError(
                f"tokenizer.reuse: the vocabulary of {folder} lacks {symbol!r}, which is a tag of "
                "data.train or one of tokenizer.user_defined_symbols; leave it out, or learn "
                "another vocabulary with tokenizer.reuse: null"
            )
    return tokenizers


def load_tokenizers(run: RunFolder, config: TokenizerConfig) -> Tokenizers:
    """Load the tokenizers of a run; raises UserError if a file is damaged or does not fit."""
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
    return tokenizers


def save_tokenizers(run: RunFolder, tokenizers: Tokenizers) -> dict[Path, Tokenizer]:
    """Write one file, or two if the sides differ; return the tokenizer of each file.

    Files of another vocabulary are removed, which would be read instead of these, with the lists of
    its pieces.
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


def _train_model(
    lines: Iterator[str],
    config: TokenizerConfig,
    side: Side,
    features: Sequence[str] = (),
    **normalizer: Any,
) -> bytes:
    """Train a SentencePiece model; raises UserError if text and vocabulary size do not fit.

    `normalizer` is an option of SentencePiece that says how the model normalizes.
    """
    model, kind, vocab_size = io.BytesIO(), config.kind.of(side), config.vocab_size.of(side)
    assert vocab_size != "auto", "resolved before a vocabulary is learnt"
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=model,
            model_type=kind,
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            byte_fallback=kind in SUBWORDS,
            character_coverage=1.0,
            split_digits=config.split_digits and kind in SUBWORDS,
            user_defined_symbols=list(config.user_defined_symbols),
            control_symbols=list(features),
            **(normalizer or {"normalization_rule_name": "identity"}),
            max_sentence_length=MAX_LINE_BYTES,
            pad_id=PAD_ID,
            unk_id=UNK_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            num_threads=2,  # fixed, because sums in unigram training depend on it
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(_fit_message(error, vocab_size)) from None
    return model.getvalue()


def _normalizer_model(normalization: Normalization, symbols: Sequence[str]) -> bytes:
    """Train a minimal SentencePiece model with this normalization and the user's symbols."""
    config = TokenizerConfig.model_validate(
        {"kind": "char", "vocab_size": 8 + len(symbols), "user_defined_symbols": symbols}
    )
    if normalization != "nfd":
        return _train_model(iter(["a"]), config, "src", normalization_rule_name=normalization)
    with tempfile.NamedTemporaryFile("w", encoding="ascii", suffix=".tsv") as rules:
        for character in map(chr, range(sys.maxunicode + 1)):
            if (decomposed := unicodedata.normalize("NFD", character)) != character:
                code_points = " ".join(f"{ord(part):X}" for part in decomposed)
                rules.write(f"{ord(character):X}\t{code_points}\n")
        rules.flush()
        return _train_model(iter(["a"]), config, "src", normalization_rule_tsv=rules.name)


def _normalizer(normalization: Normalization, symbols: Sequence[str]) -> Callable[[str], str]:
    """Return the function that normalizes text before a vocabulary is learnt from it."""
    if normalization == "identity":
        return str
    return Tokenizer(_normalizer_model(normalization, symbols)).normalize


def _fit_message(error: RuntimeError, vocab_size: int) -> str:
    """Translate SentencePiece's message, which names its own source and options, into ours."""
    if needed := re.search(r"required_chars\D*\d+ vs (\d+)", str(error)):
        return (
            f"tokenizer.vocab_size {vocab_size:,} is too small: the characters of this "
            f"text and the special tokens alone require {int(needed[1]):,} entries"
        )
    reason = str(error).rpartition("] ")[2].strip() or str(error)
    return (
        f"cannot learn a vocabulary of tokenizer.vocab_size {vocab_size:,} entries from "
        f"this text: {reason}"
    )
