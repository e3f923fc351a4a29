"""The sections data and tokenizer of a config: what text there is, and how it becomes ids."""

import re
from pathlib import Path
from typing import Annotated, Any, Self

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
    Normalization,
    OnBadLine,
    Section,
    TokenizerKind,
)
from seq2seq_cli.paths import expanded

PAIRS_FORMATS = (".tsv", ".jsonl")

# Kinds that fall back to bytes, so that no character of any script is lost. Words and characters
# are closed vocabularies: what training did not see becomes <unk>.
SUBWORDS = ("bpe", "unigram")

# White space, SentencePiece's sign for it, and its other tokens.
_NO_SYMBOL = re.compile(r"[\s▁\ufdd0\ufdd1]|^(<pad>|<unk>|<s>|</s>|<0x[0-9A-F]{2}>)$")


def _is_given_now(info: ValidationInfo) -> bool:
    """Whether a user gives this config, or a run folder, which may be older or somebody else's."""
    return bool(info.context and info.context.get("is_given_now"))


def _expanded(path: Path, info: ValidationInfo) -> Path:
    return expanded(path) if _is_given_now(info) else path


def _must_be_a_file(path: Path, info: ValidationInfo) -> Path:
    """Not in a run folder, which outlives the text it was trained on."""
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
    """Parallel text: two files whose lines belong together, or one file of pairs."""

    src: TextFile | None = Field(None, description="source sentences, one a line; .gz is unpacked")
    tgt: TextFile | None = Field(None, description="target sentences; line n translates line n")
    pairs: TextFile | None = Field(
        None,
        description="instead of src and tgt: a .tsv file (source, tab, target) or a .jsonl file "
        '({"src": ..., "tgt": ...} a line); .gz is unpacked',
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
    def forms(self) -> list[str]:
        """How each of the files is read: as .gz, .tsv, .jsonl.gz or plain text."""
        known = r"(\.tsv|\.jsonl)?(\.gz)?$" if self.pairs else r"(\.gz)?$"
        return [found[0] for path in self.files if (found := re.search(known, path.name))]


class DataConfig(Section):
    train: Corpus = Field(description="parallel text to learn from")
    valid: Corpus | None = Field(
        None, description="held-out parallel text, written like train; null: none"
    )
    max_length: Annotated[int, Field(gt=0, le=1_000_000)] = Field(
        256,
        description="tokens; training pairs with a longer side are dropped and counted; a longer "
        "sentence to translate is translated in parts (lines of several sentences: see README)",
    )
    on_bad_line: OnBadLine = Field(
        "error",
        description="a line that is not valid UTF-8, TSV or JSON: stop there, or drop and count it",
    )


def _one_for_both_sides(value: Any) -> Any:
    return value if isinstance(value, dict | Normalizations) else {"src": value, "tgt": value}


class Normalizations(Section):
    """`normalization: nfkc` is short for `normalization: {src: nfkc, tgt: nfkc}`."""

    src: Normalization = Field("identity", description="normalization of the source")
    tgt: Normalization = Field(
        "identity", description="normalization of the target, which references are scored in too"
    )


class TokenizerConfig(Section):
    kind: TokenizerKind = Field("bpe", description="what a token is")
    vocab_size: Annotated[int, Field(ge=8, le=10_000_000)] = Field(
        8_000, description="entries at most, for each tokenizer; fewer when the text has no more"
    )
    shared: bool = Field(True, description="one vocabulary for both sides")
    min_character_frequency: AutoOrPositiveInt = Field(
        "auto",
        description="a character that occurs less often in the training text gets no entry: bpe "
        "and unigram spell it as bytes, char does not know it; auto: for char and word 1, else 5, "
        "or one in a million characters where that is more (1 where that would be over 2% of a "
        "small text)",
    )
    user_defined_symbols: tuple[str, ...] = Field(
        (),
        strict=False,
        description="text that is always one token and never changed by normalization: language "
        "tags, placeholders; with kind word where it stands as a word",
    )
    split_digits: bool = Field(
        False, description="each digit is a token of its own; for bpe and unigram"
    )
    normalization: Annotated[
        Normalizations, BeforeValidator(_one_for_both_sides, Normalization | Normalizations)
    ] = Field(
        Normalizations(),
        description="Unicode normalization, one for both sides or one for each; identity: "
        "none, so that translations are spelt as the training text is; nfkc_cf lower-cases too",
    )
    reuse: AnyPath | None = Field(
        None,
        description="a run folder, or one that `seq2seq vocab` made: its vocabulary is taken "
        "instead of learning one, whatever kind and normalization say",
    )
    max_sentences: Annotated[int, Field(gt=100, le=1_000_000_000)] = Field(
        1_000_000, description="lines to learn from; of more training text, a random sample"
    )

    @field_validator("min_character_frequency")
    @classmethod
    def _of_characters(cls, frequency: int | str, info: ValidationInfo) -> int | str:
        if info.data.get("kind") == "word" and frequency not in ("auto", 1):
            raise ValueError("kind word has no entries for characters: leave it at auto")
        return frequency

    @field_validator("split_digits")
    @classmethod
    def _of_subwords(cls, split_digits: bool, info: ValidationInfo) -> bool:
        kind = info.data.get("kind")
        if split_digits and kind not in (None, *SUBWORDS):
            raise ValueError(f"kind {kind} does not cut numbers: choose bpe or unigram")
        return split_digits

    @field_validator("user_defined_symbols")
    @classmethod
    def _can_be_symbols(cls, symbols: tuple[str, ...]) -> tuple[str, ...]:
        for number, symbol in enumerate(symbols):
            if symbol in symbols[:number]:
                raise ValueError(f"{symbol!r} is there twice")
            if not symbol or _NO_SYMBOL.search(symbol):
                raise ValueError(
                    f"{symbol!r} cannot be one: it is empty, holds white space or ▁, or is a token "
                    "in any case"
                )
        return symbols
