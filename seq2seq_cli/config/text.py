"""The sections `data` and `tokenizer` of a config: the text of a run, and how it becomes ids."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapSerializer,
    WrapValidator,
    field_validator,
    model_validator,
)

from seq2seq_cli.config.types import (
    FREE_ON_RESUME,
    SIDES,
    TOKENIZER_KINDS,
    AutoOrPositiveInt,
    AutoOrVocabSize,
    BySide,
    Direction,
    Normalization,
    OnBadLine,
    OnResume,
    Section,
    TokenizerKind,
)
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.paths import expanded, files_by_varying_part, files_of, is_remote, remote_path

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")

# Formats of a file of pairs, with the fields of source and target if none are named. A .zip is the
# Moses format of OPUS.
PAIRS_FORMATS: dict[str, tuple[str, str] | None] = {
    ".tsv": ("1", "2"),
    ".jsonl": ("src", "tgt"),
    ".tmx": None,
    ".zip": None,
}

SUBWORDS = tuple(kind for kind, facts in TOKENIZER_KINDS.items() if facts.has_subwords)
MOST_WHOLE_TOKENS = 50_000  # words or characters that `vocab_size: auto` allows (Luong et al. 2015)

# White space, SentencePiece's sign for it, and SentencePiece's special tokens.
_NO_SYMBOL = re.compile(r"[\s▁\ufdd0\ufdd1]|^(<pad>|<unk>|<s>|</s>|<0x[0-9A-F]{2}>)$")


def _is_given_now(info: ValidationInfo) -> bool:
    """True for a config that the user gives now, not one that is read from a run folder."""
    return bool(info.context and info.context.get("is_given_now"))


def _expanded(path: Path, info: ValidationInfo) -> Path:
    return expanded(path) if _is_given_now(info) and not is_remote(path) else path


def _as_text_path(given: Any, as_path: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Path:
    """Accept a path, or a URL of fsspec; one of a run folder may need packages that are missing."""
    if isinstance(given, str):
        try:
            if remote := remote_path(given):
                return remote
        except UserError as error:
            if _is_given_now(info):
                raise ValueError(str(error)) from None
        return cast(Path, as_path(given))
    return given if is_remote(given) else cast(Path, as_path(given))


class MissingFile(ValueError):
    """A text file that the config names does not exist."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"there is no file {path}")
        self.path = path


def _must_be_files(path: Path, info: ValidationInfo) -> Path:
    """Check that text files exist, except in a run folder, which may outlive its text."""
    if not _is_given_now(info):
        return path
    try:
        are_files = all(file.is_file() for file in files_of(path))
        is_folder, exists = path.is_dir(), path.exists()
    except Exception as error:  # of the library of a remote file system, whatever it is
        if not is_remote(path):
            raise
        raise ValueError(f"cannot read {path}: {short(str(error))}") from None
    if not are_files:
        if is_folder:
            raise ValueError(f"the folder {path} has no files")
        if not exists:
            raise MissingFile(path)
        raise ValueError(
            f"{path} is a stream, but training reads its text several times: write it to a file"
        )
    return path


def _as_written(path: Path, info: SerializationInfo) -> Path | str:
    return str(path) if info.mode == "json" else path


AnyPath = Annotated[Path, Field(strict=False), AfterValidator(_expanded)]
TextFile = Annotated[
    Path,
    Field(strict=False),
    WrapValidator(_as_text_path),
    AfterValidator(_expanded),
    AfterValidator(_must_be_files),
    PlainSerializer(_as_written),
]


def is_symbol(text: str) -> bool:
    """True if a text can be an entry of a vocabulary."""
    return bool(text) and not _NO_SYMBOL.search(text)


def _must_be_a_symbol(symbol: str) -> str:
    if not is_symbol(symbol):
        raise ValueError(
            f"{symbol!r} cannot be a symbol: it is empty, contains white space or ▁, or is "
            "already a special token"
        )
    return symbol


TagText = Annotated[str, AfterValidator(_must_be_a_symbol)]

_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")


def is_language(code: str) -> bool:
    """True if a text has the form of a language code (BCP 47)."""
    return _LANGUAGE.fullmatch(code) is not None


def _must_be_a_language(code: str) -> str:
    if not is_language(code):
        raise ValueError(f"{code!r} is no language code such as de, pt-BR or zh-Hans (BCP 47)")
    return code


LanguageCode = Annotated[str, AfterValidator(_must_be_a_language)]


def _two_fields(given: Any) -> Any:
    """Accept a list of two names or numbers."""
    if given is None:
        return None
    is_pair = isinstance(given, list | tuple) and len(given) == 2
    if not is_pair or any(type(name) not in (str, int) or name == "" for name in given):
        raise ValueError(f"must be a list of two names, of source and target, not {given!r}")
    if str(given[0]) == str(given[1]):
        raise ValueError(f"source and target are both {given[0]}")
    return str(given[0]), str(given[1])


def _a_field(given: Any) -> Any:
    """Accept a name or a number."""
    if given is not None and (type(given) not in (str, int) or given == ""):
        raise ValueError(f"must be one name or number, not {given!r}")
    return None if given is None else str(given)


def without_compression(name: str) -> str:
    """Return the name of a file without `.gz` and the like."""
    return next((name.removesuffix(end) for end in COMPRESSIONS if name.endswith(end)), name)


class Corpus(Section):
    """Parallel text: two files with corresponding lines, or one file of pairs."""

    src: TextFile | None = Field(
        None,
        description="File of source sentences, one per line; may be compressed (.gz, .bz2, .xz, "
        ".zst). A folder or a pattern such as text/*.de.gz stands for all its files.",
    )
    tgt: TextFile | None = Field(
        None,
        description="File of target sentences; line n is the translation of line n of src; may be "
        "compressed. A folder or a pattern has the same names as that of src, as text/*.en.gz.",
    )
    pairs: TextFile | None = Field(
        None,
        description="File of sentence pairs, instead of src and tgt: .tsv, .jsonl (an object on "
        "each line) or .tmx, all of which may be compressed, or a .zip of OPUS in Moses format; or "
        "several, as a folder or a pattern such as text/*.tsv.gz. All paths of text may be URLs of "
        "fsspec, such as s3://bucket/text/*.tsv.gz.",
    )
    fields: Annotated[
        tuple[str, str] | None, BeforeValidator(_two_fields, list[str | int] | None)
    ] = Field(
        None,
        description="Where source and target are in pairs. .tsv: the numbers of their columns, "
        "[1, 2] if left out; .jsonl: their keys or paths of keys, as [translation.de, "
        "translation.en], [src, tgt] if left out; .tmx and .zip, which require it: their "
        "languages, as [de, en].",
    )
    features: Annotated[str | None, BeforeValidator(_a_field, str | int | None)] = Field(
        None,
        description="Where features of the source are, such as V;PST of a lemma to inflect: the "
        "number of a column of .tsv, a key of .jsonl, or 2 if lines of src have them after a tab. "
        "They are separated by ; or | or , or spaces (but no comma inside of parentheses), and "
        "each is one token, before those of the text.",
    )
    tag: TagText | None = Field(
        None,
        description="Tag that is put before every source sentence, as one token of its own, which "
        "becomes part of the vocabulary: the target language, the domain, or that the source is "
        "back-translated; null: none.",
    )
    weight: Annotated[float, Field(gt=0, le=10_000)] = Field(
        1.0,
        description="How many times an epoch goes through this corpus, on average: 2 is twice, "
        "0.5 is another half in each epoch. For data.train only.",
    )

    @field_validator("pairs")
    @classmethod
    def _known_format(cls, pairs: Path | None, info: ValidationInfo) -> Path | None:
        files: tuple[Path, ...] = ()
        if pairs is not None and (_is_given_now(info) or pairs.suffix):
            files = files_of(pairs) if _is_given_now(info) else (pairs,)
        for path in files:
            if not _has_known_format(path):
                raise ValueError(
                    f"{path} must be a .tsv, .jsonl, .tmx or .zip file (the first three may be "
                    ".gz, .bz2, .xz or .zst)"
                )
            if _format_of(path) != _format_of(files[0]):
                raise ValueError(f"{files[0]} and {path} have different formats: give one of them")
        return pairs

    @model_validator(mode="after")
    def _one_way(self, info: ValidationInfo) -> Self:
        given = {name for name in ("src", "tgt", "pairs") if getattr(self, name) is not None}
        if given not in ({"src", "tgt"}, {"pairs"}):
            raise ValueError("needs src and tgt, or pairs alone")
        if not _is_given_now(info) and self.pairs and not _has_known_format(self.pairs):
            return self  # a folder, whose files say their format: it may be gone
        if _is_given_now(info):
            self._check_that_files_correspond()
        if self.pairs is None and self.fields:
            raise ValueError("fields are those of pairs: leave them out with src and tgt")
        if self.pairs and not self.field_names:
            raise ValueError(
                f"{self.pairs} needs its two languages: fields: [de, en] in a config, --fields de "
                "en on the command line"
            )
        if self.features:
            self._check_features(self.features)
        columns = self.all_fields if self.format == ".tsv" else ()
        if any(not re.fullmatch("[1-9][0-9]{0,3}", column) for column in columns):
            raise ValueError(
                "fields and features of a .tsv file are the numbers of its columns, as [1, 2]"
            )
        return self

    def _check_that_files_correspond(self) -> None:
        """Of two patterns or folders, each file of one has a counterpart in the other."""
        if self.src is None or self.tgt is None:
            return
        src, tgt = map(files_by_varying_part, (self.src, self.tgt))
        for path, file in (*src.items(), *tgt.items()):
            if max(len(src), len(tgt)) > 1 and not (path in src and path in tgt):
                other = self.tgt if path in src else self.src
                raise ValueError(f"{file} has no counterpart among the files of {other}")

    def _check_features(self, features: str) -> None:
        if self.format not in (None, ".tsv", ".jsonl"):
            raise ValueError("features are those of .tsv, .jsonl or src: leave them out")
        if self.pairs is None and features != "2":
            raise ValueError("features of src are its second column, after a tab: features: 2")
        if features in self.field_names:
            raise ValueError(
                f"features are those of source or target ({features}): name all three, as fields: "
                "[1, 3] and features: 2 in a config, --fields 1 3 --features 2 on the command line"
            )

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths as they are given: one of pairs, or those of source and target."""
        return tuple(path for path in (self.src, self.tgt, self.pairs) if path is not None)

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for part in self.parts() for path in part.paths)

    def parts(self) -> "list[Corpus]":
        """Return the corpora that this one consists of, each of one file, or of two."""
        given = {name: path for name in ("src", "tgt", "pairs") if (path := getattr(self, name))}
        rows = zip(*map(files_of, given.values()), strict=False)
        parts = [dict(zip(given, row, strict=True)) for row in rows]
        return [self.model_copy(update=part) for part in parts]

    @property
    def format(self) -> str | None:
        """The format of `pairs`, a key of `PAIRS_FORMATS`; None for two files."""
        if self.pairs is None:
            return None
        is_named = _has_known_format(self.pairs)
        return _format_of(self.pairs if is_named else files_of(self.pairs)[0])

    @property
    def field_names(self) -> tuple[str, ...]:
        """The fields of source and target, given or by default; empty if there are none."""
        return self.fields or (PAIRS_FORMATS.get(self.format) if self.format else None) or ()

    @property
    def all_fields(self) -> tuple[str, ...]:
        """The fields of source and target, and then those of features, if there are any."""
        return self.field_names + ((self.features,) if self.features else ())

    @property
    def options(self) -> list[str]:
        """What decides beside the files which pairs are read; empty if nothing is given."""
        fields = [f"fields={json.dumps(self.fields)}"] if self.fields else []
        given = {"features": self.features, "tag": self.tag}
        return fields + [f"{name}={value}" for name, value in given.items() if value]

    @property
    def forms(self) -> list[str]:
        """The extensions that say how each file is read: .gz, .tsv, .jsonl.gz or none."""
        return [
            (self.format or "") + path.name.removeprefix(without_compression(path.name))
            for path in self.files
        ]


def _format_of(pairs: Path) -> str:
    name = pairs.name if pairs.name.endswith(".zip") else without_compression(pairs.name)
    return Path(name).suffix


def _has_known_format(pairs: Path) -> bool:
    return _format_of(pairs) in PAIRS_FORMATS


class ParallelText(NamedTuple):
    """Corpora that are read one after the other, in one direction or in both."""

    corpora: tuple[Corpus, ...]
    direction: Direction = "forward"

    @classmethod
    def of(cls, **corpus: Any) -> "ParallelText":
        """Return the text of one corpus, given by its options."""
        return cls((Corpus.model_validate(corpus),))

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for corpus in self.corpora for path in corpus.files)

    @property
    def name(self) -> str:
        """The paths of the text as they are given, for messages."""
        return " and ".join(str(path) for corpus in self.corpora for path in corpus.paths)

    @property
    def tags(self) -> list[str]:
        return list(dict.fromkeys(corpus.tag for corpus in self.corpora if corpus.tag))

    @property
    def options(self) -> list[str]:
        """What decides beside the files which pairs are read; empty if nothing is given."""
        return [option for corpus in self.corpora for option in corpus.options] + self._turned

    @property
    def forms(self) -> list[str]:
        """How each file is read; with its content this determines the pairs."""
        forms = [form for corpus in self.corpora for form in (*corpus.forms, *corpus.options)]
        return forms + self._turned

    @property
    def _turned(self) -> list[str]:
        return [] if self.direction == "forward" else [f"direction={self.direction}"]

    @property
    def has_features(self) -> bool:
        return any(corpus.features for corpus in self.corpora)

    @property
    def num_directions(self) -> int:
        """How many times every pair is read and counted."""
        return 2 if self.direction == "both" else 1

    def with_tag(self, tag: str | None) -> "ParallelText":
        """Return the text with a tag for the corpora that have none."""
        corpora = [c if c.tag else c.model_copy(update={"tag": tag}) for c in self.corpora]
        return self._replace(corpora=tuple(corpora))

    def in_folder(self, folder: Path) -> "ParallelText":
        """Return the text with its relative paths starting from a folder."""
        corpora = []
        for corpus in self.corpora:
            files = {name: getattr(corpus, name) for name in ("src", "tgt", "pairs")}
            moved = {
                name: path if is_remote(path) else folder / path
                for name, path in files.items()
                if path is not None
            }
            corpora.append(corpus.model_copy(update=moved))
        return self._replace(corpora=tuple(corpora))

    def once(self) -> "ParallelText":
        """Return the text in one direction, in which every sentence is still there."""
        return self._replace(direction="forward") if self.direction == "both" else self


def _one_or_several(given: Any) -> Any:
    if isinstance(given, list | tuple):
        if not given:
            raise ValueError("needs at least one corpus")
        return tuple(given)
    return (given,)


def _as_given(corpora: Any, dump: SerializerFunctionWrapHandler) -> Any:
    dumped = dump(corpora)
    return dumped[0] if len(dumped) == 1 else dumped


# One corpus is written as such, several are a list.
Corpora = Annotated[
    tuple[Corpus, ...],
    BeforeValidator(_one_or_several, Corpus | list[Corpus]),
    WrapSerializer(_as_given),
]


class Languages(Section):
    """The languages of src and tgt, whatever the direction of training."""

    on_resume: ClassVar[OnResume] = "free"

    src: LanguageCode = Field(description="Language code of src.")
    tgt: LanguageCode = Field(description="Language code of tgt.")


class DataConfig(Section):
    train: Corpora = Field(description="Parallel text to train on: a corpus, or a list of several.")
    valid: Corpora | None = Field(
        None,
        description="Held-out parallel text to validate on, given like train; null: no validation.",
    )
    direction: Direction = Field(
        "forward",
        description="Direction of train and valid. reverse: from tgt to src, for back-translation; "
        "both: each pair in both directions, to pre-train with, which needs a shared vocabulary.",
    )
    sampling_temperature: Annotated[float, Field(ge=1, le=10_000)] | None = Field(
        None,
        description="Temperature T of sampling from several corpora, instead of weights: an epoch "
        "has as many pairs as all corpora, of which a share in proportion to n^(1/T) comes from a "
        "corpus of n pairs. 1 is the same as null, all pairs once; large values give every corpus "
        "the same share.",
    )
    max_length: Annotated[int, Field(gt=0, le=1_000_000)] = Field(
        256,
        description="Maximum number of tokens on either side of a training pair; longer pairs are "
        "dropped and counted. Longer sentences to translate are split into segments.",
    )
    on_bad_line: OnBadLine = Field(
        "error",
        description="What to do with a line that is not valid UTF-8, TSV or JSON, or a unit of TMX "
        "without both languages: stop with an error, or skip and count it.",
    )
    languages: Languages | None = Field(
        None,
        description="Language codes of src and tgt (BCP 47), as {src: de, tgt: en}: what seq2seq "
        "serve and exports call them. null: those of file names such as train.de, or none.",
        json_schema_extra=FREE_ON_RESUME,
    )

    @field_validator("valid")
    @classmethod
    def _held_out_text_has_no_weights(cls, valid: Corpora | None) -> Corpora | None:
        if any(corpus.weight != 1 for corpus in valid or ()):
            raise ValueError("weight is for data.train: every held-out pair is scored once")
        return valid

    @field_validator("direction")
    @classmethod
    def _tags_and_features_have_a_direction(
        cls, direction: Direction, info: ValidationInfo
    ) -> Direction:
        corpora = (*info.data.get("train", ()), *(info.data.get("valid") or ()))
        if direction != "forward" and any(corpus.features for corpus in corpora):
            raise ValueError("features are those of the source: leave direction at forward")
        if direction == "both" and any(corpus.tag for corpus in corpora):
            raise ValueError(
                "both excludes tags, which stand for one direction: list the corpora of each "
                "direction in data.train instead"
            )
        return direction

    @field_validator("sampling_temperature")
    @classmethod
    def _weights_or_temperature(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and any(corpus.weight != 1 for corpus in info.data.get("train", ())):
            raise ValueError("give either sampling_temperature or the weights of corpora")
        return value


def _same_for_both_sides(value: Any) -> Any:
    return value if isinstance(value, dict | BaseModel) else {"src": value, "tgt": value}


def _differs(value: Any, default: str) -> bool:
    """True if the sides of an option are given different values."""
    sides = dict(_same_for_both_sides(value))
    return bool(sides.get("src", default) != sides.get("tgt", default))


class Normalizations(Section):
    """`normalization: nfkc` is short for `normalization: {src: nfkc, tgt: nfkc}`."""

    on_resume: ClassVar[OnResume] = "fixed"

    src: Normalization = Field("identity", description="Unicode normalization of the source.")
    tgt: Normalization = Field(
        "identity",
        description="Unicode normalization of the target; references are normalized too before "
        "they are scored.",
    )


class Kinds(BySide[TokenizerKind]):
    """`kind: char` is short for `kind: {src: char, tgt: char}`."""

    src: TokenizerKind = Field("bpe", description="Kind of token of the source.")
    tgt: TokenizerKind = Field("bpe", description="Kind of token of the target.")


class VocabSizes(BySide[AutoOrVocabSize]):
    """`vocab_size: 8000` is short for `vocab_size: {src: 8000, tgt: 8000}`."""

    src: AutoOrVocabSize = Field("auto", description="Maximum vocabulary size of the source.")
    tgt: AutoOrVocabSize = Field("auto", description="Maximum vocabulary size of the target.")

    def resolve(self, sizes: "VocabSizes") -> "VocabSizes":
        """Return the sizes with these in place of `auto`."""
        src, tgt = (sizes.of(side) if self.of(side) == "auto" else self.of(side) for side in SIDES)
        return VocabSizes(src=src, tgt=tgt)


class TokenizerConfig(Section):
    on_resume: ClassVar[OnResume] = "fixed"

    kind: Annotated[Kinds, BeforeValidator(_same_for_both_sides, TokenizerKind | Kinds)] = Field(
        Kinds(),
        description="Kind of token: word, char, bpe or unigram; one for both sides, or one for "
        "each, such as {src: char, tgt: word}.",
    )
    vocab_size: Annotated[
        VocabSizes, BeforeValidator(_same_for_both_sides, AutoOrVocabSize | VocabSizes)
    ] = Field(
        VocabSizes(),
        description="Maximum vocabulary size, one for both sides or one for each; it is smaller if "
        "the text has fewer tokens. auto: for bpe and unigram by the number of pairs (1,000 pieces "
        "for 4,000 pairs, 8,000 from 30,000 to a million, 32,000 for 4.5 million) beside bytes and "
        f"characters; for char and word all, at most {MOST_WHOLE_TOKENS:,}; a run keeps the number "
        "it has found.",
    )
    shared: bool = Field(
        True,
        description="Use one vocabulary for source and target; left out, it is false if their "
        "kinds or sizes differ.",
    )
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
    graphemes: bool = Field(
        False,
        description="Make a character with its combining marks one token, such as t͡ or ผู้, where "
        "kind is char; otherwise each of its code points is one. Combinations without an entry in "
        "the vocabulary are split.",
    )
    normalization: Annotated[
        Normalizations, BeforeValidator(_same_for_both_sides, Normalization | Normalizations)
    ] = Field(
        Normalizations(),
        description="Unicode normalization, one for both sides or one for each: none (identity), "
        "NFKC (nfkc), NFKC with lower-casing (nfkc_cf), or NFD (nfd), which takes characters "
        "apart: a Korean syllable into its letters, ä into a and its dots.",
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

    @model_validator(mode="before")
    @classmethod
    def _different_vocabularies_are_not_shared(cls, given: Any) -> Any:
        if isinstance(given, dict) and "shared" not in given:
            kind, size = (given.get(name) for name in ("kind", "vocab_size"))
            if _differs(kind, "bpe") or _differs(size, "auto"):
                return {**given, "shared": False}
        return given

    @field_validator("shared")
    @classmethod
    def _shared_vocabulary_has_one_kind_and_size(cls, shared: bool, info: ValidationInfo) -> bool:
        for name in ("kind", "vocab_size"):
            sides = info.data.get(name)
            if shared and sides is not None and sides.src != sides.tgt:
                raise ValueError(
                    f"the sides differ in their {name}: leave shared out, or give both the same"
                )
        return shared

    @field_validator("min_character_frequency")
    @classmethod
    def _kind_has_characters(cls, frequency: int | str, info: ValidationInfo) -> int | str:
        kind = info.data.get("kind")
        if kind == Kinds(src="word", tgt="word") and frequency not in ("auto", 1):
            raise ValueError("kind word has no character entries: leave it at auto")
        return frequency

    @field_validator("split_digits")
    @classmethod
    def _kind_has_subwords(cls, split_digits: bool, info: ValidationInfo) -> bool:
        kind = info.data.get("kind")
        if split_digits and kind is not None and not {kind.src, kind.tgt} & {*SUBWORDS}:
            raise ValueError("kinds char and word do not split numbers: choose bpe or unigram")
        return split_digits

    @field_validator("graphemes")
    @classmethod
    def _kind_has_graphemes(cls, graphemes: bool, info: ValidationInfo) -> bool:
        kind = info.data.get("kind")
        if graphemes and kind is not None and "char" not in (kind.src, kind.tgt):
            raise ValueError("graphemes are characters: choose kind char")
        return graphemes

    @field_validator("user_defined_symbols")
    @classmethod
    def _symbols_are_valid(cls, symbols: tuple[str, ...]) -> tuple[str, ...]:
        for number, symbol in enumerate(symbols):
            if symbol in symbols[:number]:
                raise ValueError(f"{symbol!r} is listed twice")
            _must_be_a_symbol(symbol)
        return symbols

    def with_symbols(self, symbols: Iterable[str]) -> "TokenizerConfig":
        """Return the section with further `user_defined_symbols`, those that it has left out."""
        every = tuple(dict.fromkeys([*self.user_defined_symbols, *symbols]))
        return self.model_copy(update={"user_defined_symbols": every})
