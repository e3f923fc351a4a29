"""Text ⇄ ids with SentencePiece: trained on training text only, one file, reversible."""

import codecs
import functools
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import sentencepiece

from seq2seq_cli.config.text import SUBWORDS, Corpus, TokenizerConfig
from seq2seq_cli.config.types import Normalization, OnBadLine
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import MEBIBYTE, read_bounded, write_atomic
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text import quoting
from seq2seq_cli.text.corpus import read_pairs
from seq2seq_cli.text.sampling import MAX_LINE_BYTES, sample, without_rare_characters

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3


class Tokenizer:
    """One vocabulary. `to_text(to_ids(s)) == s` for normalized text without unknown tokens."""

    def __init__(self, model: bytes, like: "Tokenizer | None" = None) -> None:
        """`model` is a serialized SentencePiece model; UserError if it is not.

        With `like` this one shares that one's vocabulary; UserError if it has another.
        """
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
            self._pieces = tuple(self.pieces_of(range(len(self))))  # damaged ones may not be text
        except (RuntimeError, UnicodeDecodeError):
            raise UserError("this is not a SentencePiece model") from None
        found = tuple(getattr(self._processor, f"{name}_id")() for name in _SPECIAL)
        if found != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
            raise UserError(f"the SentencePiece model has {', '.join(_SPECIAL)} ids {found}")
        if like is not None:
            if self._pieces != like._pieces:
                raise UserError("the vocabulary is not the other side's, which it should share")
            self._pieces = like._pieces

    @classmethod
    def fit(cls, lines: Iterable[str], config: TokenizerConfig) -> Self:
        """Learn a vocabulary from lines of text as they are; the same lines give the same bytes."""
        symbols = sorted(config.user_defined_symbols, key=len, reverse=True)
        symbol = re.compile("|".join(map(re.escape, symbols)))

        def learnable(line: str) -> str:  # symbols are entries already
            if symbols and config.kind == "word":
                line = " ".join(word for word in line.split() if not symbol.search(word))
            return quoting.prepared(symbol.sub(" ", line) if symbols else line)

        least = config.min_character_frequency
        if least == "auto" and config.kind not in SUBWORDS:
            least = 1
        chosen = sample(map(learnable, lines), config.max_sentences)
        return cls(_trained(without_rare_characters(chosen, least), config))

    def normalizing(self, normalization: Normalization, config: TokenizerConfig) -> "Tokenizer":
        """The same vocabulary for text that is normalized first, but for symbols of the user's."""
        if normalization == "identity":
            return self
        from sentencepiece import sentencepiece_model_pb2

        model, rule = (
            sentencepiece_model_pb2.ModelProto.FromString(serialized)  # type: ignore[attr-defined]
            for serialized in (self.model, _rule(normalization, config))
        )
        model.normalizer_spec.CopyFrom(rule.normalizer_spec)
        return Tokenizer(model.SerializeToString(), like=self)

    @classmethod
    def load(cls, path: Path, like: "Tokenizer | None" = None) -> Self:
        """Raises UserError when the file is missing or something else."""
        try:
            return cls(read_bounded(path, 64 * MEBIBYTE), like)
        except FileNotFoundError:
            raise UserError(f"{path} is missing") from None
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def __len__(self) -> int:
        return int(self._processor.vocab_size())

    def normalize(self, text: str) -> str:
        """The text that `to_ids` sees: Unicode-normalized, single spaces, none at the ends."""
        normalized: str = self._processor.normalize(quoting.prepared(text))
        return quoting.unquoted(normalized.replace(quoting.SPACE, " ").strip())

    def to_ids(self, text: str) -> list[int]:
        """Ids without BOS or EOS; an unseen character is bytes or one <unk>, never an error."""
        return self.to_ids_batch([text])[0]

    def to_ids_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """`to_ids` of many lines at once, on all processors."""
        ids: list[list[int]] = self._processor.encode([quoting.prepared(line) for line in lines])
        return ids

    def to_pieces(self, text: str) -> list[str]:
        """The tokens as SentencePiece writes them: ▁ stands for the space before a word."""
        return list(self._processor.encode(quoting.prepared(text), out_type=str))

    def pieces_of(self, ids: Sequence[int]) -> list[str]:
        """Ids as SentencePiece writes them."""
        return [str(self._processor.id_to_piece(i)) for i in ids]

    def pieces(self) -> Sequence[str]:
        """The whole vocabulary, by id."""
        return self._pieces

    def to_text(self, ids: Sequence[int]) -> str:
        """One line of text; special ids other than <unk> leave no trace."""
        return quoting.unquoted(quoting.normalize_spaces(self._processor.decode(list(ids))))

    def shares_with(self, other: "Tokenizer") -> bool:
        """Whether both were made to have one vocabulary; they may normalize text differently."""
        return self._pieces is other._pieces

    @functools.cached_property
    def is_of_words(self) -> bool:
        """Whether every token is a whole word, also an unknown one; symbols stand there twice."""
        own = set(self._pieces[EOS_ID + 1 :])
        return all(piece.startswith(quoting.SPACE) or f"▁{piece}" in own for piece in own)

    def to_inner_ids(self, text: str) -> list[int]:
        """Ids of text that no space stands before, as in the middle of a word or a sentence."""
        ids: list[int] = self._without_first_space.encode(quoting.prepared(text))
        return ids

    @functools.cached_property
    def _without_first_space(self) -> sentencepiece.SentencePieceProcessor:
        processor = sentencepiece.SentencePieceProcessor()
        # A field that is there again replaces the first: normalizer_spec.add_dummy_prefix = false.
        processor.LoadFromSerializedProto(self.model + b"\x1a\x02\x18\x00")
        return processor

    def is_byte(self, token: int) -> bool:
        """Whether it stands for one byte of a character."""
        return bool(self._processor.is_byte(token))

    def spans(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """The text with its white space tidied, and the characters of it that each id stands for.

        The bytes of a character all stand for it.
        """
        text = quoting.normalize_spaces(text)
        given, own_places = quoting.quoted_with_places(text)
        normalized, origins = self._processor.normalize(given, with_offsets=True)
        spans = []
        place = num_bytes = 0  # of the character at this place, so many have been seen
        surfaces = self._processor.encode(given, out_type=str)  # of unknown tokens too
        for token, surface in zip(self._processor.encode(given), surfaces, strict=True):
            is_byte = self.is_byte(token)
            end = min(place + (1 if is_byte else len(surface)), len(normalized))
            spans.append((own_places[origins[place]], own_places[origins[end]]))
            num_bytes += is_byte
            if not is_byte or num_bytes == len(normalized[place:end].encode()):
                place, num_bytes = end, 0
        return text, spans

    def surfaces(self, ids: Sequence[int]) -> list[str]:
        """What each id adds to the text; together, with white space tidied, `to_text`.

        The last byte of a character adds it, the others nothing.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        surfaces: list[str] = []
        for token, following in itertools.zip_longest(ids, ids[1:]):
            if self.is_byte(token):
                byte = int(self._pieces[token][3:-1], 16)
                is_last = following is None or not self.is_byte(following)
                surfaces.append(decoder.decode(bytes([byte]), final=is_last))
            elif token == UNK_ID:
                surfaces.append(" ⁇ ")
            elif self._processor.is_control(token):
                surfaces.append("")
            else:
                surfaces.append(self._pieces[token].replace(quoting.SPACE, " "))
        return list(quoting.unquoted_parts(surfaces))


_SPECIAL = ("pad", "unk", "bos", "eos")


class Tokenizers(NamedTuple):
    """The two sides' tokenizers.

    With a shared vocabulary they are one and the same object, or two of the same pieces that
    normalize text differently.
    """

    src: Tokenizer
    tgt: Tokenizer

    @property
    def is_shared(self) -> bool:
        return self.src.shares_with(self.tgt)


def fit_tokenizers(
    corpus: Corpus, config: TokenizerConfig, on_bad_line: OnBadLine = "error"
) -> Tokenizers:
    """Learn the vocabularies from training text alone, or take those of `tokenizer.reuse`."""
    if config.reuse is not None:
        return _reused(config, config.reuse)
    rules = {"src": config.normalization.src, "tgt": config.normalization.tgt}
    normalized = {side: _normalizer(rule, config) for side, rule in rules.items()}

    def fit(*sides: str) -> Tokenizer:
        def lines() -> Iterator[str]:
            for pair in read_pairs(corpus, on_bad_line):
                if pair is not None and not pair.is_empty:
                    yield from (normalized[side](getattr(pair, side)) for side in sides)

        return Tokenizer.fit(lines(), config)

    if not config.shared:
        return Tokenizers(*(fit(side).normalizing(rule, config) for side, rule in rules.items()))
    both = fit("src", "tgt")
    normalizing = {rule: both.normalizing(rule, config) for rule in set(rules.values())}
    return Tokenizers(*(normalizing[rule] for rule in rules.values()))


def _reused(config: TokenizerConfig, folder: Path) -> Tokenizers:
    run = RunFolder(folder)
    run.reject_escaping_links()
    tokenizers = load_tokenizers(run, config)
    for symbol in config.user_defined_symbols:
        if not all(symbol in tokenizer.to_pieces(symbol) for tokenizer in tokenizers):
            raise UserError(
                f"tokenizer.reuse: the vocabulary of {folder} has no {symbol!r}, as "
                "tokenizer.user_defined_symbols wants it; leave one of the two options out"
            )
    return tokenizers


def load_tokenizers(run: RunFolder, config: TokenizerConfig) -> Tokenizers:
    """Those of a run; UserError if a file is damaged or not what the config has."""
    src_path, tgt_path = run.tokenizer_paths(config.shared)
    src = Tokenizer.load(src_path)
    like = src if config.shared else None
    tokenizers = Tokenizers(src, src if src_path == tgt_path else Tokenizer.load(tgt_path, like))
    for path, tokenizer in zip((src_path, tgt_path), tokenizers, strict=True):
        if len(tokenizer) > config.vocab_size:
            raise UserError(
                f"{path} does not fit the config: it has {len(tokenizer):,} entries, more than "
                f"tokenizer.vocab_size {config.vocab_size:,}"
            )
    return tokenizers


def save_tokenizers(run: RunFolder, tokenizers: Tokenizers) -> dict[Path, Tokenizer]:
    """Write one file, or two where the sides differ; returns what went where."""
    paths = run.new_tokenizer_paths(is_one=tokenizers.src is tokenizers.tgt)
    written = dict(zip(paths, tokenizers, strict=True))
    for path, tokenizer in written.items():
        write_atomic(path, tokenizer.model)
    return written


def _trained(
    lines: Iterator[str], config: TokenizerConfig, normalization: Normalization = "identity"
) -> bytes:
    """A SentencePiece model; UserError if the text is too little or has too many characters."""
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            hard_vocab_limit=False,
            byte_fallback=config.kind in SUBWORDS,
            character_coverage=1.0,
            split_digits=config.split_digits,
            user_defined_symbols=list(config.user_defined_symbols),
            normalization_rule_name=normalization,
            max_sentence_length=MAX_LINE_BYTES,
            pad_id=PAD_ID,
            unk_id=UNK_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            num_threads=2,  # fixed: the sums of unigram training depend on it
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(_fit_message(error, config)) from None
    return model.getvalue()


def _rule(normalization: Normalization, config: TokenizerConfig) -> bytes:
    """A SentencePiece model that normalizes so and leaves the user's symbols as they are."""
    symbols = config.user_defined_symbols
    small = TokenizerConfig(kind="char", vocab_size=8 + len(symbols), user_defined_symbols=symbols)
    return _trained(iter(["a"]), small, normalization)


def _normalizer(normalization: Normalization, config: TokenizerConfig) -> Callable[[str], str]:
    """What text of a side is before a vocabulary is learnt from it."""
    if normalization == "identity":
        return str
    return Tokenizer(_rule(normalization, config)).normalize


def _fit_message(error: RuntimeError, config: TokenizerConfig) -> str:
    """SentencePiece speaks of its own source and options; the user needs ours."""
    if needed := re.search(r"required_chars\D*\d+ vs (\d+)", str(error)):
        return (
            f"tokenizer.vocab_size {config.vocab_size:,} is too small: the characters of this "
            f"text and the special entries alone are {int(needed[1]):,}"
        )
    reason = str(error).rpartition("] ")[2].strip() or str(error)
    return (
        f"tokenizer.vocab_size {config.vocab_size:,}: this text does not give a vocabulary of that "
        f"size: {reason}"
    )
