"""Text ⇄ ids with SentencePiece: trained on training text only, one file, reversible."""

import codecs
import functools
import io
import itertools
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import sentencepiece

from seq2seq_cli.config import Corpus, TokenizerConfig
from seq2seq_cli.errors import UserError
from seq2seq_cli.option_types import OnBadLine
from seq2seq_cli.run_folder import MEGABYTE, RunFolder, read_bytes, write_bytes
from seq2seq_cli.text.parallel import read_pairs

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3

# Subwords fall back to bytes, so that no character of any script is lost. Words and characters
# are closed vocabularies: what training did not see becomes <unk>.
_BYTE_FALLBACK = {"bpe": True, "unigram": True, "char": False, "word": False}

_MAX_LINE_BYTES = 65_536  # longer lines teach the tokenizer nothing; they are still tokenized
_MOST_CHARACTERS = 1 << 31  # to learn from, all lines together; SentencePiece holds them in memory


class Tokenizer:
    """One vocabulary. `to_text(to_ids(s)) == s` for normalized text without unknown tokens."""

    def __init__(self, model: bytes) -> None:
        """`model` is a serialized SentencePiece model; UserError if it is not."""
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
            self.pieces()  # a damaged one may not be text
        except (RuntimeError, UnicodeDecodeError):
            raise UserError("this is not a SentencePiece model") from None
        found = tuple(getattr(self._processor, f"{name}_id")() for name in _SPECIAL)
        if found != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
            raise UserError(f"the SentencePiece model has {', '.join(_SPECIAL)} ids {found}")

    @classmethod
    def fit(cls, lines: Iterable[str], config: TokenizerConfig) -> Self:
        """Learn a vocabulary from lines of text; the same lines give the same bytes."""
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(_sample(_learnable(lines), config.max_sentences)),
                model_writer=model,
                model_type=config.kind,
                vocab_size=config.vocab_size,
                hard_vocab_limit=False,
                byte_fallback=_BYTE_FALLBACK[config.kind],
                character_coverage=1.0,
                normalization_rule_name=config.normalization,
                max_sentence_length=_MAX_LINE_BYTES,
                pad_id=PAD_ID,
                unk_id=UNK_ID,
                bos_id=BOS_ID,
                eos_id=EOS_ID,
                num_threads=2,  # fixed: the sums of unigram training depend on it
                minloglevel=2,
            )
        except RuntimeError as error:
            raise UserError(_fit_message(error, config)) from None
        return cls(model.getvalue())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises UserError when the file is missing or something else."""
        try:
            return cls(read_bytes(path, 64 * MEGABYTE))
        except FileNotFoundError:
            raise UserError(f"{path} is missing") from None
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def __len__(self) -> int:
        return int(self._processor.vocab_size())

    def normalize(self, text: str) -> str:
        """The text that `to_ids` sees: Unicode-normalized, single spaces, none at the ends."""
        normalized: str = self._processor.normalize(_one_spaced(text))
        return normalized.replace("▁", " ").strip()

    def to_ids(self, text: str) -> list[int]:
        """Ids without BOS or EOS; an unseen character is bytes or one <unk>, never an error."""
        return self.to_ids_of_all([text])[0]

    def to_ids_of_all(self, lines: Sequence[str]) -> list[list[int]]:
        """`to_ids` of many lines at once, on all processors."""
        ids: list[list[int]] = self._processor.encode([_one_spaced(line) for line in lines])
        return ids

    def to_pieces(self, text: str) -> list[str]:
        """The tokens as SentencePiece writes them: ▁ stands for the space before a word."""
        pieces: list[str] = self._processor.encode(_one_spaced(text), out_type=str)
        return pieces

    def pieces_of(self, ids: Sequence[int]) -> list[str]:
        """Ids as SentencePiece writes them."""
        return [str(self._processor.id_to_piece(i)) for i in ids]

    def pieces(self) -> list[str]:
        """The whole vocabulary, by id."""
        return self.pieces_of(range(len(self)))

    def to_text(self, ids: Sequence[int]) -> str:
        """One line of text; special ids other than <unk> leave no trace."""
        return _one_spaced(self._processor.decode(list(ids)))

    @functools.cached_property
    def is_of_words(self) -> bool:
        """Whether every token is a whole word, also an unknown one."""
        pieces = (self.pieces_of([i])[0] for i in range(EOS_ID + 1, len(self)))
        return all(piece.startswith("▁") for piece in pieces)

    def to_inner_ids(self, text: str) -> list[int]:
        """Ids of text that no space stands before, as in the middle of a word or a sentence."""
        ids: list[int] = self._without_first_space.encode(_one_spaced(text))
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
        """The text with its white space tidied, and of it the characters that each id stands for.

        The bytes of a character all stand for it.
        """
        text = _one_spaced(text)
        normalized, origins = self._processor.normalize(text, with_offsets=True)
        spans = []
        place = num_bytes = 0  # of the character at this place, so many have been seen
        surfaces = self._processor.encode(text, out_type=str)  # of unknown tokens too
        for token, surface in zip(self._processor.encode(text), surfaces, strict=True):
            is_byte = self._processor.is_byte(token)
            end = min(place + (1 if is_byte else len(surface)), len(normalized))
            spans.append((origins[place], origins[end]))
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
            if self._processor.is_byte(token):
                byte = int(self._processor.id_to_piece(token)[3:-1], 16)
                is_last = following is None or not self._processor.is_byte(following)
                surfaces.append(decoder.decode(bytes([byte]), final=is_last))
            elif token == UNK_ID:
                surfaces.append(" ⁇ ")
            elif self._processor.is_control(token):
                surfaces.append("")
            else:
                surfaces.append(self._processor.id_to_piece(token).replace("▁", " "))
        return surfaces


_SPECIAL = ("pad", "unk", "bos", "eos")


class Tokenizers(NamedTuple):
    """The two sides' tokenizers, one and the same object when the vocabulary is shared."""

    src: Tokenizer
    tgt: Tokenizer

    @property
    def is_shared(self) -> bool:
        return self.src is self.tgt


def fit_tokenizers(
    corpus: Corpus, config: TokenizerConfig, on_bad_line: OnBadLine = "error"
) -> Tokenizers:
    """Learn the vocabularies from training text alone, or take those of `tokenizer.reuse`."""
    if config.reuse is not None:
        reused = RunFolder(config.reuse)
        reused.must_be_closed()
        return load_tokenizers(reused, config)

    def lines(*sides: str) -> Iterable[str]:
        for pair in read_pairs(corpus, on_bad_line):
            if pair is not None and not pair.is_empty:
                yield from (getattr(pair, side) for side in sides)

    if config.shared:
        tokenizer = Tokenizer.fit(lines("src", "tgt"), config)
        return Tokenizers(tokenizer, tokenizer)
    return Tokenizers(Tokenizer.fit(lines("src"), config), Tokenizer.fit(lines("tgt"), config))


def load_tokenizers(run: RunFolder, config: TokenizerConfig) -> Tokenizers:
    """Those of a run; UserError if a file is damaged or larger than the config has it."""
    src_path, tgt_path = run.tokenizer_paths(config.shared)
    src = Tokenizer.load(src_path)
    tokenizers = Tokenizers(src, src if config.shared else Tokenizer.load(tgt_path))
    for path, tokenizer in zip((src_path, tgt_path), tokenizers, strict=True):
        if len(tokenizer) > config.vocab_size:
            raise UserError(
                f"{path} does not fit the config: it has {len(tokenizer):,} entries, more than "
                f"tokenizer.vocab_size {config.vocab_size:,}"
            )
    return tokenizers


def save_tokenizers(run: RunFolder, tokenizers: Tokenizers) -> dict[Path, Tokenizer]:
    """Write one file, or two when the vocabularies are separate; returns what went where."""
    paths = run.tokenizer_paths(tokenizers.is_shared)
    written = dict(zip(paths, tokenizers, strict=True))
    for path, tokenizer in written.items():
        write_bytes(path, tokenizer.model)
    return written


def _learnable(lines: Iterable[str]) -> Iterator[str]:
    return (line for line in map(_one_spaced, lines) if len(line) <= _MAX_LINE_BYTES)


def _sample(lines: Iterator[str], size: int) -> list[str]:
    """So many of the lines at random, the same in every process; all if there are fewer.

    Vitter 1985, algorithm R. SentencePiece can sample too, but each time differently.
    """
    generator = random.Random(0)
    sample: list[str] = []
    num_characters = 0
    for seen, line in enumerate(lines, start=1):
        if seen <= size:
            sample.append(line)
        elif (place := generator.randrange(seen)) < size:
            num_characters -= len(sample[place])
            sample[place] = line
        else:
            continue
        num_characters += len(line)
        if num_characters > _MOST_CHARACTERS:
            raise UserError(
                f"tokenizer.max_sentences {size:,}: so many of these lines are more than "
                f"{_MOST_CHARACTERS:,} characters to learn from; take fewer"
            )
    return sample


def _one_spaced(text: str) -> str:
    """All white space (tabs, no-break spaces, Unicode's line ends) becomes single spaces.

    A lone surrogate, which is how Python keeps a byte that is not UTF-8, becomes a question mark.
    """
    return " ".join(text.split()).encode("utf-8", "replace").decode("utf-8")


def _fit_message(error: RuntimeError, config: TokenizerConfig) -> str:
    """SentencePiece speaks of its own source and options; the user needs ours."""
    if needed := re.search(r"required_chars\D*\d+ vs (\d+)", str(error)):
        return (
            f"tokenizer.vocab_size {config.vocab_size:,} is too small: the characters of this "
            f"text and the special entries alone are {int(needed[1]):,}"
        )
    reason = str(error).rpartition("] ")[2].strip() or str(error)
    return f"tokenizer.vocab_size {config.vocab_size:,} cannot be had from this text: {reason}"
