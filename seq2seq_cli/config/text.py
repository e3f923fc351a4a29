"""The section `data` of a config: the text of a run."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    WrapSerializer,
    field_validator,
    model_validator,
)

from seq2seq_cli.config.text_files import TextFile, is_given_now
from seq2seq_cli.config.tokenizer import TagText
from seq2seq_cli.config.types import Direction, Free, OnBadLine, OnResume, Section
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.paths import files_by_varying_part, files_of, is_remote

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")

# Formats of a file of pairs, with the fields of source and target if none are named. A .zip is the
# Moses format of OPUS.
PAIRS_FORMATS: dict[str, tuple[str, str] | None] = {
    ".tsv": ("1", "2"),
    ".jsonl": ("src", "tgt"),
    ".tmx": None,
    ".zip": None,
}

_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")


def is_language(code: str) -> bool:
    """Return True if a text has the form of a language code (BCP 47)."""
    return _LANGUAGE.fullmatch(code) is not None


def _must_be_a_language(code: str) -> str:
    if not is_language(code):
        raise ValueError(
            f"{short(repr(code))} is not a language code such as de, pt-BR or zh-Hans (BCP 47)"
        )
    return code


LanguageCode = Annotated[str, AfterValidator(_must_be_a_language)]


def _two_fields(given: Any) -> Any:
    """Accept a list of two names or numbers."""
    if given is None:
        return None
    is_pair = isinstance(given, list | tuple) and len(given) == 2
    if not is_pair or any(type(name) not in (str, int) or name == "" for name in given):
        raise ValueError(
            f"must be a list of two names, of source and target, not {short(repr(given))}"
        )
    if str(given[0]) == str(given[1]):
        raise ValueError(f"source and target are both {short(str(given[0]))}")
    return str(given[0]), str(given[1])


def _a_field(given: Any) -> Any:
    """Accept a name or a number."""
    if given is not None and (type(given) not in (str, int) or given == ""):
        raise ValueError(f"must be one name or number, not {short(repr(given))}")
    return None if given is None else str(given)


def without_compression(name: str) -> str:
    """Return the name of a file without `.gz` and the like."""
    return next((name.removesuffix(end) for end in COMPRESSIONS if name.endswith(end)), name)


def format_of(path: Path) -> str:
    """Return the suffix of a file's name without `.gz` and the like; of pairs, their format."""
    return Path(without_compression(path.name)).suffix


def format_of_pairs(path: Path) -> str | None:
    """Return the format of a file of pairs, or of such files in a folder or of a pattern."""
    if format_of(path) in PAIRS_FORMATS:
        return format_of(path)
    formats = map(format_of, files_of(path))
    return next((name for name in formats if name in PAIRS_FORMATS), None)


class Corpus(Section):
    """Parallel text: two files with corresponding lines, or one file of pairs."""

    src: TextFile | None = None
    """File of source sentences, one per line; may be compressed (.gz, .bz2, .xz, .zst). A folder or
    a pattern such as text/*.de.gz stands for all its files."""
    tgt: TextFile | None = None
    """File of target sentences; line n is the translation of line n of src; may be compressed. A
    folder or a pattern, such as text/*.en.gz, has a file for each file of src."""
    pairs: TextFile | None = None
    """File of sentence pairs, instead of src and tgt: .tsv, .jsonl (one object per line) or .tmx,
    possibly compressed, or a .zip in the Moses format of OPUS. A folder or a pattern such as
    text/*.tsv.gz stands for all its files. src, tgt and pairs may also be fsspec URLs, such as
    s3://bucket/text/*.tsv.gz."""
    fields: Annotated[
        tuple[str, str] | None, BeforeValidator(_two_fields, list[str | int] | None)
    ] = None
    """Source and target fields of pairs. .tsv: column numbers, by default [1, 2]; .jsonl: keys or
    paths of keys such as [translation.de, translation.en], by default [src, tgt]; .tmx and .zip:
    languages such as [de, en], without a default."""
    features: Annotated[str | None, BeforeValidator(_a_field, str | int | None)] = None
    """Field with features of the source, such as V;PST for a lemma to inflect: a column number of
    .tsv, a key of .jsonl, or 2 if features follow a tab in the lines of src. Features are separated
    by spaces, and by ; or | or , outside of parentheses; each is one token, before the text."""
    tag: TagText | None = None
    """Tag to prepend to every source sentence, as one token, which is added to the vocabulary: for
    the target language, the domain, or back-translated text; null: no tag."""
    weight: Annotated[float, Field(gt=0, le=10_000)] = 1.0
    """Average number of passes over this corpus per epoch; with 0.5, each epoch uses half of the
    corpus, and the next one the other half. For data.train only."""

    @field_validator("pairs")
    @classmethod
    def _known_format(cls, pairs: Path | None, info: ValidationInfo) -> Path | None:
        files = files_of(pairs) if pairs is not None and is_given_now(info) else ()
        for path in files:
            if format_of(path) not in PAIRS_FORMATS:
                raise ValueError(unknown_format(path))
            if format_of(path) != format_of(files[0]):
                raise ValueError(f"{files[0]} and {path} have different formats: give one of them")
        return pairs

    @model_validator(mode="after")
    def _one_way(self, info: ValidationInfo) -> Self:
        given = {name for name in ("src", "tgt", "pairs") if getattr(self, name) is not None}
        if given not in ({"src", "tgt"}, {"pairs"}):
            raise ValueError("needs src and tgt, or pairs alone")
        if not is_given_now(info) and self.pairs and format_of(self.pairs) not in PAIRS_FORMATS:
            return self  # a folder whose files had a format: it may no longer exist
        if is_given_now(info) and self.src and self.tgt:
            try:
                _counterparts(self.src, self.tgt)
            except UserError as error:
                raise ValueError(str(error)) from None
        if self.pairs is None and self.fields:
            raise ValueError("fields are for pairs: leave them out with src and tgt")
        if self.pairs and not self.field_names:
            raise ValueError(
                f"{self.pairs} needs its two languages: fields: [de, en] in a config, --fields de "
                "en on the command line"
            )
        if self.features and self.format not in (None, ".tsv", ".jsonl"):
            raise ValueError("only .tsv, .jsonl and src have features: leave features out")
        if self.features and self.pairs is None and self.features != "2":
            raise ValueError("features of src are its second column, after a tab: features: 2")
        if self.features in self.field_names:
            raise ValueError(
                f"features have the field of source or target ({short(self.features)}): name all "
                "three, as fields: [1, 3] and features: 2 in a config, or --fields 1 3 --features 2"
            )
        columns = self.all_fields if self.format == ".tsv" else ()
        if any(not re.fullmatch("[1-9][0-9]{0,3}", column) for column in columns):
            raise ValueError(
                "fields and features of a .tsv file are the numbers of its columns, such as [1, 2]"
            )
        return self

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths as given: one for pairs, or two for source and target."""
        return tuple(path for path in (self.src, self.tgt, self.pairs) if path is not None)

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for part in self.parts() for path in part.paths)

    def parts(self) -> "list[Corpus]":
        """Return a corpus for each file of pairs, or each source and target file.

        Raises UserError if a source or target file has no counterpart.
        """
        if self.src and self.tgt:
            rows = _counterparts(self.src, self.tgt)
            return [self.model_copy(update={"src": src, "tgt": tgt}) for src, tgt in rows]
        assert self.pairs is not None, "it was validated"
        return [self.model_copy(update={"pairs": path}) for path in files_of(self.pairs)]

    @property
    def format(self) -> str | None:
        """The format of `pairs`, a key of `PAIRS_FORMATS`; None for two files."""
        return None if self.pairs is None else format_of_pairs(self.pairs)

    @property
    def field_names(self) -> tuple[str, ...]:
        """The fields of source and target, given or by default; empty if there are none."""
        return self.fields or (PAIRS_FORMATS.get(self.format) if self.format else None) or ()

    @property
    def all_fields(self) -> tuple[str, ...]:
        """The fields of source, target and, if there are any, features."""
        return self.field_names + ((self.features,) if self.features else ())

    @property
    def options(self) -> list[str]:
        """The options that change which pairs are read from the files."""
        fields = self.fields and json.dumps(self.fields)
        given = {"fields": fields, "features": self.features, "tag": self.tag}
        return [f"{name}={value}" for name, value in given.items() if value]

    @property
    def forms(self) -> list[str]:
        """The extensions that say how each file is read: .gz, .tsv, .jsonl.gz or none."""
        return [
            (self.format or "") + path.name.removeprefix(without_compression(path.name))
            for path in self.files
        ]


def unknown_format(pairs: Path) -> str:
    """Return what is wrong with a file of pairs whose name does not tell its format."""
    return (
        f"{pairs} must be a .tsv, .jsonl, .tmx or .zip file (the first three may be .gz, .bz2, .xz "
        "or .zst)"
    )


def _counterparts(src: Path, tgt: Path) -> list[tuple[Path, Path]]:
    """Return each source file with its target file; raises UserError if a file has none.

    Of text that no longer exists, the paths are returned.
    """
    ours, theirs = files_by_varying_part(src), files_by_varying_part(tgt)
    exists = all(next(iter(files.values())).is_file() for files in (ours, theirs))
    if exists and max(len(ours), len(theirs)) > 1:
        for part, file in (*ours.items(), *theirs.items()):
            if not (part in ours and part in theirs):
                other = tgt if part in ours else src
                raise UserError(f"{file} has no counterpart among the files of {other}")
    return list(zip(ours.values(), theirs.values(), strict=False))


class ParallelText(NamedTuple):
    """Corpora that are read one after the other, in one direction or in both."""

    corpora: tuple[Corpus, ...]
    direction: Direction = "forward"

    @classmethod
    def of(cls, *, is_given_now: bool = False, **corpus: Any) -> "ParallelText":
        """Return the text of one corpus, given by its options; raises UserError for wrong ones."""
        try:
            return cls((Corpus.model_validate(corpus, context={"is_given_now": is_given_now}),))
        except ValidationError as error:
            raise UserError(str(error.errors()[0]["ctx"]["error"])) from None

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for corpus in self.corpora for path in corpus.files)

    @property
    def name(self) -> str:
        """The paths as given, for messages."""
        names = (" and ".join(dict.fromkeys(map(str, one.paths))) for one in self.corpora)
        return ", ".join(dict.fromkeys(names))

    @property
    def tags(self) -> list[str]:
        return list(dict.fromkeys(corpus.tag for corpus in self.corpora if corpus.tag))

    @property
    def is_tagged(self) -> bool:
        """True if every pair has a tag."""
        return bool(self.corpora) and all(corpus.tag for corpus in self.corpora)

    @property
    def options(self) -> list[str]:
        """The options that change which pairs are read from the files."""
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

    def of_tag(self, tag: str | None) -> "ParallelText":
        """Return the corpora that have this tag."""
        return self._replace(corpora=tuple(c for c in self.corpora if c.tag == tag))

    def in_folder(self, folder: Path) -> "ParallelText":
        """Return the text with its relative paths starting from a folder."""

        def moved(corpus: Corpus) -> Corpus:
            given = corpus.model_dump(include={"src", "tgt", "pairs"}, exclude_none=True)
            local = {name: folder / path for name, path in given.items() if not is_remote(path)}
            return corpus.model_copy(update=local)

        return self._replace(corpora=tuple(map(moved, self.corpora)))

    def once(self) -> "ParallelText":
        """Return the text in one direction, which has all of its sentences."""
        return self._replace(direction="forward") if self.direction == "both" else self


def _one_or_several(given: Any, info: ValidationInfo) -> Any:
    if isinstance(given, list | tuple):
        if not given and is_given_now(info):  # an imported run has no training text
            raise ValueError("needs at least one corpus; an imported run trains with train --from")
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

    src: LanguageCode
    """Language code of src."""
    tgt: LanguageCode
    """Language code of tgt."""


class DataConfig(Section):
    train: Corpora
    """Parallel text to train on: a corpus, or a list of several."""
    valid: Corpora | None = None
    """Held-out parallel text to validate on, given like train; null: no validation."""
    general: Corpora | None = None
    """Further held-out text, to fine-tune without forgetting: with train --from, a model that has
    become worse on it than validation.general_tolerance allows is not kept. null: none."""
    direction: Direction = "forward"
    """Direction of train and valid. reverse: from tgt to src, for back-translation; both: every
    pair in both directions, for pre-training, which needs a shared vocabulary."""
    sampling_temperature: Annotated[float, Field(ge=1, le=10_000)] | None = None
    """Temperature T for sampling from several corpora, instead of weights: an epoch has as many
    pairs as all corpora together, and a corpus of n pairs contributes in proportion to n^(1/T). 1
    is the same as null, all pairs once; large values approach equal shares."""
    max_length: Annotated[int, Field(gt=0, le=1_000_000)] = 256
    """Maximum number of tokens on each side of a training pair; longer pairs are dropped and
    counted. Longer sentences are split into segments for translation."""
    on_bad_line: OnBadLine = "error"
    """What to do with a line that is not valid UTF-8, TSV or JSON, or a TMX unit that lacks a
    language. error: stop; skip: skip and count it."""
    languages: Free[Languages | None] = None
    """Language codes of src and tgt (BCP 47), such as {src: de, tgt: en}, for seq2seq serve and
    exports. null: taken from file names such as train.de, if possible."""

    @classmethod
    def mistake(cls, option: str, value: Any, above: Mapping[str, Any]) -> str | None:
        train = above.get("train", ())
        corpora = (*train, *(above.get("valid") or ()))
        match option:
            case "general" if value and not above.get("valid"):
                return "general needs data.valid, by which the best model is chosen"
            case "valid" | "general" if any(corpus.weight != 1 for corpus in value or ()):
                return "weight is for data.train: every held-out pair is scored once"
            case "direction" if value != "forward" and any(c.features for c in corpora):
                return "features belong to the source: leave direction at forward"
            case "direction" if value == "both" and any(corpus.tag for corpus in corpora):
                return (
                    "both excludes tags, which stand for one direction: list the corpora of each "
                    "direction in data.train instead"
                )
            case "sampling_temperature" if value and any(corpus.weight != 1 for corpus in train):
                return "give either sampling_temperature or the weights of corpora"
        return None
