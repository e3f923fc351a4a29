"""The tokenizers of SentencePiece: words, characters, BPE and unigram subwords."""

import errno
import functools
import io
import itertools
import os
import re
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import sentencepiece

from seq2seq_cli.config.tokenizer import SUBWORDS, TokenizerConfig
from seq2seq_cli.config.types import TOKENIZER_KINDS, Normalization, Side, TokenizerKind
from seq2seq_cli.errors import UserError
from seq2seq_cli.processes import killed_at_sigterm
from seq2seq_cli.text import quoting
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer
from seq2seq_cli.tokenizers.training_text import (
    MAX_LINE_BYTES,
    grapheme_clusters,
    sample,
    without_rare_characters,
)

_FEW_LINES = 200  # take less time than to start threads for them
_SPECIAL = ("pad", "unk", "bos", "eos")
_SKIPPED = "\u2585"  # ▅; the trainer of SentencePiece skips lines that contain it


class SentencePieceTokenizer(Tokenizer):
    """A vocabulary of SentencePiece; ▁ is the space before a word."""

    def __init__(self, model: bytes, shared_with: Tokenizer | None = None) -> None:
        """Load a serialized model; raises UserError for other bytes."""
        self._processor, pieces = open_model(model)
        special_ids = tuple(getattr(self._processor, f"{name}_id")() for name in _SPECIAL)
        if special_ids != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
            raise UserError(f"the SentencePiece model has {', '.join(_SPECIAL)} ids {special_ids}")
        super().__init__(model, pieces, shared_with)

    @functools.cached_property
    def kind(self) -> TokenizerKind:
        return kind_of(self.model)

    @classmethod
    def learn(
        cls, lines: Iterable[str], config: TokenizerConfig, side: Side, features: Sequence[str]
    ) -> Self:
        kind = config.kind.of(side)
        symbols = sorted(config.user_defined_symbols, key=len, reverse=True)
        symbol = re.compile("|".join(map(re.escape, symbols)))

        def learnable(line: str) -> str:  # without symbols, which are entries already
            line = line.replace(_SKIPPED, " ")
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
            assert vocab_size != "auto", "resolved before a vocabulary is learned"
            characters = sorted(set(itertools.chain.from_iterable(frequent)))
            room = vocab_size - EOS_ID - 1 - len(symbols) - len(features) - len(characters)
            config = config.with_symbols(grapheme_clusters(frequent, max(0, room)))
            # SentencePiece looks for characters outside of symbols only.
            learned_from = iter([*frequent, " ".join(characters)])
        with killed_at_sigterm(), _errors_of(learned_from) as observed:
            return cls(_train_model(observed, config, side, features=features))

    @classmethod
    def normalizer(cls, rule: Normalization, symbols: Sequence[str]) -> Callable[[str], str]:
        return str if rule == "identity" else cls(_normalizer_model(rule, symbols)).normalize

    def with_normalization(self, rule: Normalization, symbols: Sequence[str]) -> Tokenizer:
        if rule == "identity":
            return self
        model, normalizer = parsed(self.model), parsed(_normalizer_model(rule, symbols))
        normalizer.normalizer_spec.ClearField("normalization_rule_tsv")  # a temporary path
        model.normalizer_spec.CopyFrom(normalizer.normalizer_spec)
        return SentencePieceTokenizer(model.SerializeToString(), shared_with=self)

    def normalize(self, text: str) -> str:
        normalized: str = self._processor.normalize(quoting.prepare(text))
        return quoting.unquote(normalized.replace(quoting.SPACE, " ").strip())

    def to_ids_batch(self, lines: Sequence[str], num_threads: int | None = None) -> list[list[int]]:
        prepared = [quoting.prepare(line) for line in lines]
        return encoded(self._processor, prepared, int, num_threads)

    def to_inner_ids(self, text: str) -> list[int]:
        return without_first_space(self.model).encode(quoting.prepare(text))

    def to_pieces(self, text: str) -> list[str]:
        return list(self._processor.encode(quoting.prepare(text), out_type=str))

    def user_defined_symbols(self) -> list[str]:
        """Return tags and `tokenizer.user_defined_symbols`, without words' second entries, ▁…."""
        return [s for s in user_defined_in(self.model) if not s.startswith(quoting.SPACE)]

    def to_text(self, ids: Sequence[int]) -> str:
        if not self._bytes.keys().isdisjoint(ids):  # SentencePiece writes U+FFFD for broken ones
            return super().to_text(ids)
        return quoting.unquote(quoting.normalize_spaces(self._processor.decode(list(ids))))

    @functools.cached_property
    def _bytes(self) -> dict[int, int]:
        """The tokens of single bytes, with their values."""
        tokens = filter(self._processor.is_byte, range(len(self)))
        return {token: int(self._pieces[token][3:-1], 16) for token in tokens}

    def spans(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        text = quoting.normalize_spaces(text)
        quoted, offsets = quoting.quote_with_offsets(text)
        found = spans(self._processor, quoted)
        return text, [(offsets[start], offsets[end]) for start, end in found]


def open_model(model: bytes) -> tuple[sentencepiece.SentencePieceProcessor, list[str]]:
    """Return a model's processor and its pieces in order; raises UserError for other bytes."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
        pieces = map(processor.id_to_piece, range(processor.vocab_size()))
        return processor, list(map(str, pieces))
    except (RuntimeError, UnicodeDecodeError):  # damaged entries may be no text
        raise UserError("this is not a SentencePiece model") from None


def encoded(
    processor: sentencepiece.SentencePieceProcessor,
    lines: Sequence[str],
    out_type: type,
    num_threads: int | None,
) -> list[Any]:
    """Return the ids (int) or the pieces (str) of each of the prepared lines."""
    if len(lines) < _FEW_LINES:
        return [processor.encode(line, out_type=out_type) for line in lines]
    return list(processor.encode(lines, out_type=out_type, num_threads=num_threads))


@functools.lru_cache(maxsize=4)
def without_first_space(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Return the processor of a model that puts no space before a text."""
    processor = sentencepiece.SentencePieceProcessor()
    # A repeated protobuf field replaces the first: normalizer_spec.add_dummy_prefix = false.
    processor.LoadFromSerializedProto(model + b"\x1a\x02\x18\x00")
    return processor


def kind_of(model: bytes) -> TokenizerKind:
    spec = parsed(model).trainer_spec
    name = spec.ModelType.Name(spec.model_type)
    return next(kind for kind in TOKENIZER_KINDS if kind.upper() == name)


def user_defined_in(model: bytes) -> list[str]:
    """Return the symbols that a model never splits."""
    entries = parsed(model).pieces
    return [entry.piece for entry in entries if entry.type == entry.USER_DEFINED]


def spans(processor: sentencepiece.SentencePieceProcessor, text: str) -> list[tuple[int, int]]:
    """Return the span of characters in prepared text of each of its tokens."""
    normalized, origins = processor.normalize(text, with_offsets=True)
    surfaces = processor.encode(text, out_type=str)  # also of unknown tokens
    found = []
    start = num_bytes = 0  # bytes seen of the character at `start`
    for token, surface in zip(processor.encode(text), surfaces, strict=True):
        is_byte = processor.is_byte(token)
        end = min(start + (1 if is_byte else len(surface)), len(normalized))
        found.append((origins[start], origins[end]))
        num_bytes += is_byte
        if not is_byte or num_bytes == len(normalized[start:end].encode()):
            start, num_bytes = end, 0
    return found


def parsed(model: bytes) -> Any:
    """Return a model as SentencePiece's protocol buffer."""
    from sentencepiece import sentencepiece_model_pb2

    return sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]


@contextmanager
def _errors_of(lines: Iterator[str]) -> Iterator[Iterator[str]]:
    """Raise what reading the lines raised, in place of SentencePiece's own error."""
    raised: list[BaseException] = []

    def observed() -> Iterator[str]:
        try:
            yield from lines
        except GeneratorExit:
            raise
        except BaseException as error:
            raised.append(error)
            raise

    try:
        yield observed()
    except UserError:
        if raised:
            raise raised[0] from None
        raise


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
    assert vocab_size != "auto", "resolved before a vocabulary is learned"
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
    except RuntimeError as error:  # whose message names SentencePiece's own source and options
        if needed := re.search(r"required_chars\D*\d+ vs (\d+)", str(error)):
            raise UserError(
                f"tokenizer.vocab_size {vocab_size:,} is too small: the characters of this text "
                f"and the special tokens alone require {int(needed[1]):,} entries"
            ) from None
        if re.search(r"sentences_\.empty|all_chars_count", str(error)):
            raise UserError(
                "no text is left to learn a vocabulary from: all of it is "
                "tokenizer.user_defined_symbols, or rarer than tokenizer.min_character_frequency"
            ) from None
        if str(error) == os.strerror(errno.EAGAIN):  # no thread could be started
            raise
        reason = str(error).rpartition("] ")[2].strip() or str(error)
        raise UserError(
            f"cannot learn a vocabulary of tokenizer.vocab_size {vocab_size:,} entries from this "
            f"text: {reason}"
        ) from None
    return model.getvalue()


def _normalizer_model(normalization: Normalization, symbols: Sequence[str]) -> bytes:
    """Train a minimal SentencePiece model with this normalization and the user's symbols."""
    config = TokenizerConfig.model_validate(
        {"kind": "char", "vocab_size": 8 + len(symbols), "user_defined_symbols": symbols}
    )
    if normalization != "nfd":
        return _train_model(iter(["a"]), config, "src", normalization_rule_name=normalization)
    characters = map(chr, range(sys.maxunicode + 1))
    rules = {c: nfd for c in characters if (nfd := unicodedata.normalize("NFD", c)) != c}
    return model_with_rules(rules, config)


def model_with_rules(rules: Mapping[str, str], config: TokenizerConfig) -> bytes:
    """Train a minimal SentencePiece model that replaces texts by others."""
    with tempfile.NamedTemporaryFile("w", encoding="ascii", suffix=".tsv") as file:
        for before, after in rules.items():
            code_points = (" ".join(f"{ord(c):X}" for c in text) for text in (before, after))
            file.write("\t".join(code_points) + "\n")
        file.flush()
        return _train_model(iter(["a"]), config, "src", normalization_rule_tsv=file.name)
