"""The sections `data` and `tokenizer` of a config: the text of a run, and how it becomes ids."""

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from seq2seq_cli.config.types import (
    AutoOrPositiveInt,
    AutoOrVocabSize,
    Normalization,
    OnBadLine,
    OnResume,
    Section,
    TokenizerKind,
)
from seq2seq_cli.paths import expanded

PAIRS_FORMATS = (".tsv", ".jsonl")

# Kinds with byte fallback, so that no character of any script is lost. The others are closed
# vocabularies: anything unseen in training becomes <unk>.
SUBWORDS = ("bpe", "unigram")
MOST_WHOLE_TOKENS = 50_000  # words or characters that `vocab_size: auto` allows (Luong et al. 2015)

# White space, SentencePiece's sign for it, and SentencePiece's special tokens.
_NO_SYMBOL = re.compile(r"[\s▁\ufdd0\ufdd1]|^(<pad>|<unk>|<s>|</s>|<0x[0-9A-F]{2}>)$")


def _is_given_now(info: ValidationInfo) -> bool:
    """True for a config that the user gives now, not one that is read from a run folder."""
    return bool(info.context and info.context.get("is_given_now"))


def _expanded(path: Path, info: ValidationInfo) -> Path:
    return expanded(path) if _is_given_now(info) else path


def _must_be_a_file(path: Path, info: ValidationInfo) -> Path:
    """Check that a text file exists, except in a run folder, which may outlive its text."""
    if _is_given_now(info) and not path.is_file():
        if not path.exists():
            raise ValueError(f"there is no file {path}")
        if path.is_dir():
            raise ValueError(f"{path} is a folder, not a text file")
        raise ValueError(
            f"{path} is a stream, but training reads its text several times: write it to a file"
        )
    return path


AnyPath = Annotated[Path, Field(strict=False), AfterValidator(_expanded)]
TextFile = Annotated[AnyPath, AfterValidator(_must_be_a_file)]


class Corpus(Section):
    """Parallel text: two files with corresponding lines, or one file of pairs."""

    src: TextFile | None = Field(
        None, description="File of source sentences, one per line; may be gzipped (.gz)."
    )
    tgt: TextFile | None = Field(
        None,
        description="File of target sentences; line n is the translation of line n of src; may be "
        "gzipped (.gz).",
    )
    pairs: TextFile | None = Field(
        None,
        description="File of sentence pairs, instead of src and tgt: .tsv (source, tab, target) or "
        '.jsonl ({"src": ..., "tgt": ...} on each line); may be gzipped (.gz).',
    )

    @field_validator("pairs")
    @classmethod
    def _known_format(cls, pairs: Path | None) -> Path | None:
        if pairs and not pairs.name.removesuffix(".gz").endswith(PAIRS_FORMATS):
            raise ValueError(f"{pairs} must be a .tsv or .jsonl file (or .gz of one)")
        return pairs

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        given = {name for name in ("src", "tgt", "pairs") if getattr(self, name) is not None}
        if given not in ({"src", "tgt"}, {"pairs"}):
            raise ValueError("needs src and tgt, or pairs alone")
        return self

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.src, self.tgt, self.pairs) if path is not None)

    @property
    def name(self) -> str:
        """The names of the files, for messages."""
        return " and ".join(map(str, self.files))

    @property
    def forms(self) -> list[str]:
        """The extensions that say how each file is read: .gz, .tsv, .jsonl.gz or none."""
        known = r"(\.tsv|\.jsonl)?(\.gz)?$" if self.pairs else r"(\.gz)?$"
        return [match[0] for path in self.files if (match := re.search(known, path.name))]


class DataConfig(Section):
    train: Corpus = Field(description="Parallel text to train on.")
    valid: Corpus | None = Field(
        None,
        description="Held-out parallel text to validate on, given like train; null: no validation.",
    )
    max_length: Annotated[int, Field(gt=0, le=1_000_000)] = Field(
        256,
        description="Maximum number of tokens on either side of a training pair; longer pairs are "
        "dropped and counted. Longer sentences to translate are split into segments.",
    )
    on_bad_line: OnBadLine = Field(
        "error",
        description="What to do with a line that is not valid UTF-8, TSV or JSON: stop with an "
        "error, or skip and count it.",
    )


def _same_for_both_sides(value: Any) -> Any:
    return value if isinstance(value, dict | Normalizations) else {"src": value, "tgt": value}


class Normalizations(Section):
    """`normalization: nfkc` is short for `normalization: {src: nfkc, tgt: nfkc}`."""

    on_resume: ClassVar[OnResume] = "fixed"

    src: Normalization = Field("identity", description="Unicode normalization of the source.")
    tgt: Normalization = Field(
        "identity",
        description="Unicode normalization of the target; references are normalized too before "
        "they are scored.",
    )


class TokenizerConfig(Section):
    on_resume: ClassVar[OnResume] = "fixed"

    kind: TokenizerKind = Field("bpe", description="Kind of token.")
    vocab_size: AutoOrVocabSize = Field(
        "auto",
        description="Maximum vocabulary size of each tokenizer; it is smaller if the text has "
        "fewer tokens. auto: for bpe and unigram by the number of pairs (1,000 pieces for 30,000 "
        "pairs, 8,000 for a million, 32,000 for 4.5 million) beside bytes and characters; for char "
        f"and word all, at most {MOST_WHOLE_TOKENS:,}; a run keeps the number it has found.",
    )
    shared: bool = Field(True, description="Use one vocabulary for source and target.")
    min_character_frequency: AutoOrPositiveInt = Field(
        "auto",
        description="Characters that occur less often in the training text get no vocabulary "
        "entry: bpe and unigram fall back to bytes, char to <unk>. auto: 1 for char and word; else "
        "5 or, if greater, a millionth of the text's characters (1 if that removed more than 2% of "
        "a small text).",
    )
    user_defined_symbols: tuple[str, ...] = Field(
        (),
        strict=False,
        description="Strings that are always one token and never normalized, such as language tags "
        "and placeholders; with kind word only where they are words of their own.",
    )
    split_digits: bool = Field(
        False, description="Make each digit a token of its own (bpe and unigram only)."
    )
    normalization: Annotated[
        Normalizations, BeforeValidator(_same_for_both_sides, Normalization | Normalizations)
    ] = Field(
        Normalizations(),
        description="Unicode normalization, one for both sides or one for each: none (identity), "
        "NFKC (nfkc), or NFKC with lower-casing (nfkc_cf).",
    )
    reuse: AnyPath | None = Field(
        None,
        description="Run folder, or output folder of `seq2seq vocab`, whose vocabulary is used "
        "instead of learning one; kind and normalization are then ignored.",
    )
    max_sentences: Annotated[int, Field(gt=100, le=1_000_000_000)] = Field(
        1_000_000,
        description="Maximum number of lines to learn the vocabulary from; a larger training text "
        "is sampled at random.",
    )

    @property
    def most_entries(self) -> int:
        """`vocab_size` as a number."""
        assert self.vocab_size != "auto", "resolved before a vocabulary is learnt"
        return self.vocab_size

    @field_validator("min_character_frequency")
    @classmethod
    def _kind_has_characters(cls, frequency: int | str, info: ValidationInfo) -> int | str:
        if info.data.get("kind") == "word" and frequency not in ("auto", 1):
            raise ValueError("kind word has no character entries: leave it at auto")
        return frequency

    @field_validator("split_digits")
    @classmethod
    def _kind_has_subwords(cls, split_digits: bool, info: ValidationInfo) -> bool:
        kind = info.data.get("kind")
        if split_digits and kind not in (None, *SUBWORDS):
            raise ValueError(f"kind {kind} does not split numbers: choose bpe or unigram")
        return split_digits

    @field_validator("user_defined_symbols")
    @classmethod
    def _symbols_are_valid(cls, symbols: tuple[str, ...]) -> tuple[str, ...]:
        for number, symbol in enumerate(symbols):
            if symbol in symbols[:number]:
                raise ValueError(f"{symbol!r} is listed twice")
            if not symbol or _NO_SYMBOL.search(symbol):
                raise ValueError(
                    f"{symbol!r} cannot be a symbol: it is empty, contains white space or ▁, or is "
                    "already a special token"
                )
        return symbols
