"""The section `tokenizer` of a config: how text becomes ids."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from seq2seq_cli.config.text_files import AnyPath, is_given_now
from seq2seq_cli.config.types import (
    SIDES,
    TOKENIZER_KINDS,
    AutoOrPositiveInt,
    AutoOrVocabSize,
    BySide,
    Normalization,
    OnResume,
    Section,
    TokenizerKind,
    one_for_all,
)
from seq2seq_cli.errors import short

SUBWORDS = tuple(kind for kind, facts in TOKENIZER_KINDS.items() if facts.has_subwords)
_DEFAULTS_OF_SIDES = {"kind": "bpe", "vocab_size": "auto"}  # a shared vocabulary has one for both
MOST_WHOLE_TOKENS = 50_000  # words or characters that `vocab_size: auto` allows (Luong et al. 2015)

# White space, SentencePiece's symbol for it, and SentencePiece's special tokens.
_NO_SYMBOL = re.compile(r"[\s▁\ufdd0\ufdd1]|^(<pad>|<unk>|<s>|</s>|<0x[0-9A-F]{2}>)$")


def is_symbol(text: str) -> bool:
    """Return True if a text can be an entry of a vocabulary."""
    return bool(text) and not _NO_SYMBOL.search(text)


def _must_be_a_symbol(symbol: str) -> str:
    if not is_symbol(symbol):
        raise ValueError(
            f"{short(repr(symbol))} cannot be a symbol: it is empty, contains white space or ▁, "
            "or is already a special token"
        )
    return symbol


TagText = Annotated[str, AfterValidator(_must_be_a_symbol)]

_for_both_sides = one_for_all(*SIDES)


class Normalizations(Section):
    """`normalization: nfkc` is short for `normalization: {src: nfkc, tgt: nfkc}`."""

    on_resume: ClassVar[OnResume] = "fixed"

    src: Normalization = "identity"
    """Unicode normalization of the source."""
    tgt: Normalization = "identity"
    """Unicode normalization of the target, also applied to references before scoring."""


class Kinds(BySide[TokenizerKind]):
    """`kind: char` is short for `kind: {src: char, tgt: char}`."""

    src: TokenizerKind = "bpe"
    """Kind of source tokens."""
    tgt: TokenizerKind = "bpe"
    """Kind of target tokens."""


class VocabSizes(BySide[AutoOrVocabSize]):
    """`vocab_size: 8000` is short for `vocab_size: {src: 8000, tgt: 8000}`."""

    src: AutoOrVocabSize = "auto"
    """Maximum vocabulary size of the source."""
    tgt: AutoOrVocabSize = "auto"
    """Maximum vocabulary size of the target."""

    def resolve(self, sizes: "VocabSizes") -> "VocabSizes":
        """Return the sizes with these in place of `auto`."""
        src, tgt = (sizes.of(side) if self.of(side) == "auto" else self.of(side) for side in SIDES)
        return VocabSizes(src=src, tgt=tgt)


class TokenizerConfig(Section):
    on_resume: ClassVar[OnResume] = "fixed"

    kind: Annotated[Kinds, BeforeValidator(_for_both_sides, TokenizerKind | Kinds)] = Kinds()
    """Kind of tokens: word, char, bpe or unigram; one for both sides or one for each, such as {src:
    char, tgt: word}. Imported and trimmed runs have spm_vocab, which is reused, never learned."""
    vocab_size: Annotated[
        VocabSizes, BeforeValidator(_for_both_sides, AutoOrVocabSize | VocabSizes)
    ] = Field(
        VocabSizes(),
        description="Maximum vocabulary size, one for both sides or one for each; smaller if the "
        "text has fewer different tokens. auto: for bpe and unigram, all bytes and characters plus "
        "1,000 pieces (4,000 pairs), 8,000 (30,000 to a million) or 32,000 (4.5 million); for char "
        f"and word, all tokens, at most {MOST_WHOLE_TOKENS:,}. A resumed run keeps the number.",
    )
    shared: bool = True
    """Use one vocabulary for source and target; by default false if their kinds or sizes differ."""
    min_character_frequency: AutoOrPositiveInt = "auto"
    """Minimum number of occurrences of a character in the training text for a vocabulary entry; for
    rarer ones bpe and unigram fall back to bytes, char to <unk>. auto: 1 for char and word; for bpe
    and unigram 5 or, if greater, a millionth of the text's characters (1 if that would remove more
    than 2% of a small text)."""
    user_defined_symbols: tuple[str, ...] = Field((), strict=False)
    """Strings that are always one token and never normalized, such as language tags and
    placeholders; with kind word only between spaces, and other words that contain one are
    unknown."""
    split_digits: bool = False
    """Split numbers into digits (bpe and unigram only): 0 to 9, also full-width; name others in
    user_defined_symbols."""
    graphemes: bool = False
    """For kind char: tokens are grapheme clusters, a character with its combining marks such as t͡
    or ผู้, rather than code points. Clusters outside of the vocabulary are split."""
    normalization: Annotated[
        Normalizations, BeforeValidator(_for_both_sides, Normalization | Normalizations)
    ] = Normalizations()
    """Unicode normalization, one for both sides or one for each: none (identity), NFKC (nfkc), NFKC
    and case folding (nfkc_cf), or NFD (nfd), which decomposes characters: a Korean syllable into
    its letters, ä into a and its dots."""
    reuse: AnyPath | None = None
    """Run folder, or output folder of `seq2seq vocab`, whose vocabulary to use instead of learning
    one; the other options here are then ignored, but kind says how strings are scored, and
    vocab_size and user_defined_symbols must fit the vocabulary."""
    max_sentences: Annotated[int, Field(gt=100, le=1_000_000_000)] = 1_000_000
    """Maximum number of lines to learn the vocabulary from; larger training texts are sampled."""

    @model_validator(mode="before")
    @classmethod
    def _different_vocabularies_are_not_shared(cls, given: Any) -> Any:
        if isinstance(given, dict) and "shared" not in given:
            for name, default in _DEFAULTS_OF_SIDES.items():
                sides = dict(_for_both_sides(given.get(name)))
                if sides.get("src", default) != sides.get("tgt", default):
                    return {**given, "shared": False}
        return given

    @model_validator(mode="after")
    def _can_be_learned(self, info: ValidationInfo) -> Self:
        if (
            is_given_now(info)
            and self.reuse is None
            and "spm_vocab" in (self.kind.src, self.kind.tgt)
        ):
            raise ValueError(
                "kind spm_vocab cannot be learned: reuse the vocabulary of an imported or trimmed "
                "run (tokenizer.reuse, or train --from)"
            )
        return self

    @classmethod
    def mistake(cls, option: str, value: Any, above: Mapping[str, Any]) -> str | None:
        kind: Kinds | None = above.get("kind")
        kinds: set[str] = {*SUBWORDS, "char"} if kind is None else {kind.src, kind.tgt}
        match option:
            case "shared" if value:
                for name in _DEFAULTS_OF_SIDES:
                    if (sides := above.get(name)) is not None and sides.src != sides.tgt:
                        return (
                            f"the sides differ in their {name}: leave shared out, or give both the "
                            "same"
                        )
            case "min_character_frequency" if kinds == {"word"} and value not in ("auto", 1):
                return "kind word has no character entries: leave it at auto"
            case "user_defined_symbols":
                for number, symbol in enumerate(value):
                    if symbol in value[:number]:
                        return f"{short(repr(symbol))} is listed twice"
                    _must_be_a_symbol(symbol)
            case "split_digits" if value and not kinds & {*SUBWORDS}:
                return "kinds char and word do not split numbers: choose bpe or unigram"
            case "graphemes" if value and "char" not in kinds:
                return "graphemes are characters: choose kind char"
        return None

    def with_symbols(self, symbols: Iterable[str]) -> "TokenizerConfig":
        """Return the section with these symbols added to `user_defined_symbols`."""
        every = tuple(dict.fromkeys([*self.user_defined_symbols, *symbols]))
        return self.model_copy(update={"user_defined_symbols": every})
