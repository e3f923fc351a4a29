"""`seq2seq init`: analyzes a text, and chooses the options of a first run."""

import math
import os
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from seq2seq_cli import plugins
from seq2seq_cli.commands.init.split import split, split_files
from seq2seq_cli.config.languages import languages_in_names
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.presets import PRESETS, Choice, Choices, as_tree, commented_yaml, preset_for
from seq2seq_cli.config.schema import FEWEST_BATCHES, Config
from seq2seq_cli.config.text import DataConfig, ParallelText
from seq2seq_cli.config.types import SIDES, PresetName, TokenizerKind
from seq2seq_cli.console import counted, printable
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import write_atomic
from seq2seq_cli.paths import check_utf8
from seq2seq_cli.text.corpus import (
    BadLineError,
    CorpusCounts,
    count_pairs,
    features_in,
    read_entries,
)
from seq2seq_cli.text.features import feature_names
from seq2seq_cli.text.scripts import CONTROL, REPLACEMENT, main_scripts, script_of
from seq2seq_cli.text.sentences import CLOSING, MARKS
from seq2seq_cli.tokenizers.training_text import MAX_LINE_BYTES, sample
from seq2seq_cli.tokenizers.vocabulary import num_pieces

Task = Literal["spelling", "formulas", "sentences"]

# The quickstart, for users without a clone: links to `configs/` and `data/`, and files in a wheel.
_EXAMPLE = Path(__file__).parent / "example"

_HELD_OUT = 1_000  # maximum number of pairs to hold out
_HELD_OUT_SHARE = 20  # hold out at most one pair in this many
_SAMPLE = 10_000  # lines in which scripts and words are counted
_BYTES_OF_A_TOKEN = 4  # approximately, for subwords in any script
_SMALLEST_BATCH = 512  # tokens
_MOST_LENGTH = 4_000  # of `data.max_length`, in tokens
_MAX_LENGTH: int = DataConfig.model_fields["max_length"].default

# Scripts without spaces between words: the maximum mean length of words. Longer strings between
# spaces are sentences, for which BLEU needs another tokenization.
_LONGEST_WORDS = {"Kana": 9, "Han": 6, "Thai": 14, "Lao": 14}
_LONGEST_WORDS |= {"Khmer": 14, "Myanmar": 14, "Tibetan": 14}
_BLEU_TOKENIZE = dict.fromkeys(_LONGEST_WORDS, "char") | {"Han": "zh"}

# A side of single words: spelling, pronunciation, transliteration, inflection.
_MOST_WORDS = 1.5  # per line
_FEW_WORDS = 3  # per line, if the other side is words or symbols: forms have auxiliaries
_MOST_SENTENCES = 0.1  # share of lines that end in punctuation
_LONGEST_SYMBOLS = 3  # characters with the space between them, in the mean: such as phones
_MARKS = ".|_-"  # that separate symbols in some texts, where this program expects spaces

# A side of formulas: few words, which occur again and again, also in the same line.
_MOST_ONCE = 0.001  # share of its words that occur once in the text
_MOST_DISTINCT = 0.45  # share of a line's words that differ; about 0.9 in sentences

# Passes over the text, by the examples in configs/; a string is learned in more of them.
_EPOCHS: dict[Task, int] = {"spelling": 50, "formulas": 18}
_FORMULAS: Choices = {  # as configs/parsing.yaml
    "model.layers": Choice(2, "formulas follow their sources closely"),
    "model.dropout": Choice(0.1, "every word is frequent"),
    "training.warmup_steps": Choice(100),
}


@dataclass(frozen=True)
class Side:
    """Properties of a sample of one side, averaged over lines."""

    words: float
    characters: float
    sentences: float  # share of lines that end in punctuation
    not_nfkc: float  # share of lines that NFKC changes
    scripts: list[str]  # the main ones, the most frequent first
    types: int  # different words
    once: float  # share of words that occur once
    distinct: float  # share of words that differ from others of their line
    longest: tuple[int, int]  # words and characters of the longest lines
    separated: str = ""  # an example, if words look like symbols between marks, as k.æ.t

    @property
    def unspaced_script(self) -> str | None:
        """The main script that is written without spaces between words, if any."""
        scripts = _LONGEST_WORDS.keys() & {*self.scripts}
        return max(scripts, key=_LONGEST_WORDS.__getitem__, default=None)

    @property
    def is_run_together(self) -> bool:
        script = self.unspaced_script
        return script is not None and self.characters > _LONGEST_WORDS[script] * self.words

    def is_words(self, most: float = _MOST_WORDS) -> bool:
        is_sentences = self.sentences > _MOST_SENTENCES or self.is_run_together
        return self.words <= most and not is_sentences

    @property
    def is_symbols(self) -> bool:
        return self.words > _MOST_WORDS and self.characters <= _LONGEST_SYMBOLS * self.words

    @property
    def is_closed(self) -> bool:
        """True if new text has hardly any words that are not here."""
        return self.once <= _MOST_ONCE

    @property
    def is_formal(self) -> bool:
        return self.is_closed and self.distinct <= _MOST_DISTINCT

    def __str__(self) -> str:
        scripts = " and ".join(self.scripts) or "no letters"
        return f"{self.words:.1f} words and {self.characters:.1f} characters per line; {scripts}"


@dataclass(frozen=True)
class NewRun:
    """What to write: the answers to the questions of `seq2seq init`."""

    config: Path
    train: ParallelText
    valid: ParallelText | None
    sizes: dict[str, int]  # pairs to hold out, by part: valid, test

    @property
    def _splits(self) -> dict[str, dict[str, Path]]:
        """The files to write next to the config, by part and side."""
        has_parts = any(self.sizes.values())
        return split_files(self.config.with_suffix(""), self.sizes) if has_parts else {}

    def existing_files(self) -> list[Path]:
        """Return the files that would be overwritten.

        Raises UserError if the text itself is among them, if its folder would hold them, or if the
        config cannot name it.
        """
        for text in (self.valid, None if self._splits else self.train):
            for path in text.files if text is not None else ():
                check_utf8(path)
        written = [self.config, *(path for part in self._splits.values() for path in part.values())]
        existing = [path for path in written if path.exists()]
        texts = [text for text in (self.train, self.valid) if text is not None]
        folder = self.config.with_suffix("")
        paths = (path for text in texts for corpus in text.corpora for path in corpus.paths)
        if self._splits and os.path.realpath(folder) in {os.path.realpath(str(p)) for p in paths}:
            raise UserError(f"{folder} is part of the text: choose another --output")
        for path in existing:
            if any(path.samefile(file) for text in texts for file in text.files):
                raise UserError(f"{path} is part of the text: choose another --output")
        return existing

    def write(self, text: "Text", preset: PresetName, hours: float) -> tuple[list[Path], Config]:
        """Write the config, and parts of the text if pairs are held out; return files and config.

        `hours` greater than 0 limits the training time. Raises UserError if the text has too few
        pairs to hold some out, or if nothing can be trained from it.
        """
        train, valid, files, limits = self.train, self.valid, [], dict[str, Choice]()
        if 0 < hours < math.inf:
            limits = within_hours(choose(text, preset, train, None), hours)
        if parts := self._splits:
            pairs = split(train, self.config.with_suffix(""), self.sizes)
            text = replace(text, counts=CorpusCounts(lines=pairs["train"]))
            files = [path for part in parts.values() for path in part.values()]
            features = "2" if train.has_features else None
            train = text_of(list(parts["train"].values()), features=features)
            if "valid" in parts:
                valid = text_of(list(parts["valid"].values()), features=features)
        chosen = choose(text, preset, train, valid) | limits
        if (languages := languages_in_names(self.train.corpora[0])) is not None:
            chosen["data.languages"] = Choice(languages._asdict(), "from the names of the text")
        self.config.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.config, config_text(text, preset, chosen, self.config).encode())
        return [*files, self.config], load_config(self.config, is_given_now=True)


@dataclass(frozen=True)
class Text:
    """A training text: the number of its pairs and the properties of its sides."""

    counts: CorpusCounts
    src: Side
    tgt: Side
    bytes_of_longer_side: int
    features: float  # per source, in the mean
    most_features: int  # of a source
    reason_unreadable: str = ""  # why the first such line cannot be read

    @property
    def held_out(self) -> int:
        """The suggested number of pairs to hold out for validation, and again for tests."""
        return min(_HELD_OUT, self.counts.pairs // _HELD_OUT_SHARE)

    @property
    def task(self) -> Task:
        """What its targets are: words or symbols of words or symbols, formulas, or sentences."""
        src, tgt = self.src, self.tgt
        if tgt.is_symbols:
            is_spelling = src.is_words(_FEW_WORDS)
        else:
            is_spelling = tgt.is_words(_FEW_WORDS) and (src.is_symbols or src.is_words())
        return "spelling" if is_spelling else "formulas" if tgt.is_formal else "sentences"

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the rows of the summary, each with a label."""
        dropped = f"{self.counts.empty:,} with an empty side, {self.counts.bad:,} unreadable"
        yield "training text", f"{counted(self.counts.pairs, 'pair')}; dropped: {dropped}"
        if self.reason_unreadable:
            yield "unreadable", f"the first: {self.reason_unreadable}"
        yield "source", str(self.src)
        yield "target", str(self.tgt)
        for name, side in (("source", self.src), ("target", self.tgt)):
            if side.separated:
                yield (
                    "note",
                    f"the {name} looks like symbols with a separator, such as "
                    f"{printable(side.separated)}; separate them with spaces, so that each symbol "
                    "is one token",
                )


def text_of(
    files: Sequence[Path], fields: Sequence[str] | None = None, features: str | None = None
) -> ParallelText:
    """Return two files, or one file of pairs with the fields of its sides, as a text.

    Raises UserError for other files, and for a file of pairs that lacks its fields.
    """
    if len(files) > 2:
        raise UserError(f"a text is one file of pairs, or two files; {len(files)} are given")
    names = ("pairs",) if len(files) == 1 else ("src", "tgt")
    given = dict(zip(names, files, strict=True))
    return ParallelText.of(is_given_now=True, fields=fields, features=features, **given)


def look_at(given: ParallelText) -> Text:
    """Read a text, whose features and unreadable lines are looked at in a second pass.

    Raises UserError if it has no pairs or only very long ones, files of different lengths, no
    features where there should be some, and if most lines cannot be read, with the reason.
    """
    counts = CorpusCounts()
    num_bytes = num_features = most_features = 0
    longest = [(0, 0), (0, 0)]  # in words and characters, by side

    def lines() -> Iterator[str]:
        nonlocal num_bytes, num_features, most_features
        for pair in count_pairs(given, "skip", counts):
            num_bytes += max(len(pair.src.encode()), len(pair.tgt.encode()))
            features = len(feature_names(pair.features))
            num_features, most_features = num_features + features, max(most_features, features)
            for side, text in enumerate((pair.src, pair.tgt)):
                words, characters = longest[side]
                longest[side] = max(words, len(text.split())), max(characters, len(text))
            yield f"{pair.src}\n{pair.tgt}"

    sampled = [line.split("\n") for line in sample(lines(), _SAMPLE)]
    if not sampled:
        raise UserError(
            f"all pairs of {given.name} have more than {MAX_LINE_BYTES:,} characters: is the text "
            "split into lines?"
        )
    features_in(given, "skip")  # or there are none
    errors = (entry for entry in read_entries(given) if isinstance(entry, BadLineError))
    first = next(errors) if counts.bad else None
    if first is not None and counts.bad > counts.lines / 2:
        raise first
    src, tgt = (_side([pair[side] for pair in sampled], longest[side]) for side in (0, 1))
    features = num_features / counts.pairs
    return Text(counts, src, tgt, num_bytes, features, most_features, str(first or ""))


def _side(lines: Sequence[str], longest: tuple[int, int]) -> Side:
    letters = Counter(filter(None, (script_of(letter) for line in lines for letter in set(line))))
    del letters[CONTROL], letters[REPLACEMENT]
    words = Counter(word for line in lines for word in line.split())
    num_words = max(1, words.total())
    ends = [line.strip().rstrip(CLOSING)[-1:] for line in lines]
    separated = ""
    for mark in _MARKS:  # are most lines words of symbols that it separates?
        apart = [line for line in lines if mark in line.strip(f"{mark} ") and " " not in line]
        symbols = sum(len(line.split(mark)) for line in apart)
        if len(apart) > len(lines) / 2 and sum(map(len, apart)) <= _LONGEST_SYMBOLS * symbols:
            separated = separated or apart[0]
    return Side(
        words=words.total() / len(lines),
        characters=sum(map(len, lines)) / len(lines),
        sentences=sum(end in MARKS for end in ends if end) / len(lines),
        not_nfkc=sum(not unicodedata.is_normalized("NFKC", line) for line in lines) / len(lines),
        scripts=main_scripts(letters),
        types=len(words),
        once=list(words.values()).count(1) / num_words,
        distinct=sum(len(set(line.split())) for line in lines) / num_words,
        longest=longest,
        separated=separated,
    )


def choose_preset(asked: str | None, num_pairs: int) -> PresetName:
    """Return the preset with this name, or else the one for this many pairs."""
    if asked is not None and asked not in PRESETS:
        raise UserError(f"--preset {asked}: unknown preset (valid: {', '.join(PRESETS)})")
    return preset_for(num_pairs) if asked is None else asked


def choose(
    text: Text, preset: PresetName, train: ParallelText, valid: ParallelText | None
) -> dict[str, Choice]:
    """Return the options of a first run: the preset's, adapted to the text."""
    chosen = {"data.train": Choice(_as_given(train), counted(text.counts.pairs, "pair"))}
    if valid is not None:
        chosen["data.valid"] = Choice(_as_given(valid))
    if text.counts.bad:
        reason = f"{text.counts.bad:,} lines cannot be read"
        chosen["data.on_bad_line"] = Choice("skip", reason)
    if text.task != "sentences" and (longest := _longest(text)) > _MAX_LENGTH:
        reason = "the longest string, in tokens"
        if longest > _MOST_LENGTH:
            reason = f"the longest string has {longest:,} tokens, but attention costs their square"
        chosen["data.max_length"] = Choice(min(longest, _MOST_LENGTH), reason)
    chosen |= _tokenizer(text)
    chosen |= PRESETS[preset].choices
    if text.task == "formulas":
        chosen |= _FORMULAS
    if text.task == "spelling" and text.tgt.is_symbols:
        chosen["model.ngrams"] = Choice(
            6, "parts of words have embeddings, too; 1 if it is to be exported"
        )
    wanted = chosen["training.tokens_per_batch"].value
    fitting = _num_tokens(text) // FEWEST_BATCHES // 128 * 128
    if fitting < wanted:
        fitting = min(wanted, max(_SMALLEST_BATCH, fitting))
        reason = f"about {FEWEST_BATCHES} batches per epoch; {wanted:,} in the preset {preset}"
        chosen["training.tokens_per_batch"] = Choice(fitting, reason)
        lr = chosen["training.lr"].value
        reason = f"{lr:g} in the preset, for the smaller batch (Malladi et al. 2022)"
        chosen["training.lr"] = Choice(float(f"{lr * math.sqrt(fitting / wanted):.1e}"), reason)
    if text.task != "sentences":
        chosen = _in_epochs(chosen, text)
    return chosen | _validation(text)


def _in_epochs(chosen: Choices, text: Text) -> dict[str, Choice]:
    """Return options of a run of strings, whose length follows the amount of text."""
    batches = max(1, _num_tokens(text) // chosen["training.tokens_per_batch"].value)
    updates = max(batches, FEWEST_BATCHES) * _EPOCHS[text.task]
    reason = f"about {updates:,} updates; more text takes more"
    length = {"training.max_epochs": Choice(math.ceil(updates / batches), reason)}
    return length | {name: x for name, x in chosen.items() if name != "training.max_steps"}


def within_hours(chosen: Choices, hours: float) -> dict[str, Choice]:
    """Return the options to change for a run that ends after this many hours.

    Times some updates on this machine. Raises UserError as `train` does.
    """
    from seq2seq_cli.commands.check.check import time_updates  # imports torch
    from seq2seq_cli.commands.dry_run import dry_run

    pace = dry_run(time_updates, Config.model_validate(as_tree(chosen)))
    share = min(1.0, hours * 3_600 / pace.seconds_to_the_end) if pace else 1.0
    steps = chosen.get("training.max_steps")
    count, unit = (
        (steps.value, "updates") if steps else (chosen["training.max_epochs"].value, "epochs")
    )
    reason = f"time for about {int(share * count):,} of {count:,} {unit} here" if share < 1 else ""
    return {"training.max_hours": Choice(hours, reason), **less_dropout(chosen, share)}


def less_dropout(chosen: Choices, share: float) -> dict[str, Choice]:
    """Return the dropout of a run that makes this share of the preset's updates, if it differs.

    A much shorter run trains better with less dropout (benchmarks/time_to_quality.md).
    """
    if share >= 1 / 2:
        return {}
    dropout = chosen["model.dropout"].value
    reason = f"half of the preset's {dropout:g}: a short run trains better with less"
    return {"model.dropout": Choice(dropout / 2, reason)}


def _num_tokens(text: Text) -> int:
    """Estimate the number of tokens on the longer side, with the end of each line."""
    if text.task == "sentences":
        return text.bytes_of_longer_side // _BYTES_OF_A_TOKEN
    src, tgt = (
        _in_tokens(text, side, side.words, side.characters) for side in (text.src, text.tgt)
    )
    return int(text.counts.pairs * (max(text.features + src, tgt) + 1))


def _longest(text: Text) -> int:
    """Return the number of tokens of the longest string, with its end and features."""
    src, tgt = (_in_tokens(text, side, *side.longest) for side in (text.src, text.tgt))
    return int(max(text.most_features + src, tgt)) + 1


def _in_tokens(text: Text, side: Side, words: float, characters: float) -> float:
    """Return which of two lengths a side has in tokens, in a task of strings."""
    return words if text.task == "formulas" or side.is_symbols else 1 + characters  # ▁


def _tokenizer(text: Text) -> dict[str, Choice]:
    if text.task == "spelling":
        kinds: dict[str, TokenizerKind] = {
            side: "word" if getattr(text, side).is_symbols else "char" for side in SIDES
        }
        reason = f"{text.src.words:.1f} words per source line: single words"
        kind, size = Choice("char", reason), Choice("auto", "every character")
        if "word" in kinds.values():
            reason = "letters; symbols separated by spaces, such as phones"
            kind = Choice(kinds, reason)
            size = Choice("auto", "every character and every symbol")
    elif text.task == "formulas":
        src: TokenizerKind = "word" if text.src.is_closed else "bpe"
        reason = f"targets are formulas: {text.tgt.types:,} different words, all frequent"
        kind = Choice({"src": src, "tgt": "word"} if src == "bpe" else "word", reason)
        size = Choice("auto", "every word" if src == "word" else "every word of the target")
    else:
        kind = Choice("bpe", "no word is out of vocabulary")
        pieces = num_pieces("bpe", text.counts.pairs)
        pairs = counted(text.counts.pairs, "pair")
        reason = f"{pieces:,} pieces for {pairs}, plus bytes and characters"
        size = Choice("auto", reason)
    chosen = {"tokenizer.kind": kind, "tokenizer.vocab_size": size}
    if text.task == "formulas":
        chosen["tokenizer.shared"] = Choice(False, "formulas have words of their own")
    elif text.src.scripts and text.tgt.scripts and not {*text.src.scripts} & {*text.tgt.scripts}:
        chosen["tokenizer.shared"] = Choice(False, "source and target have different scripts")
    if text.src.not_nfkc and text.task == "sentences":  # NFKC could make x² and x2 equal
        reason = f"{text.src.not_nfkc:.2%} of the source lines have ligatures, full-width letters …"
        chosen["tokenizer.normalization"] = Choice({"src": "nfkc", "tgt": "identity"}, reason)
    if text.task == "spelling" and "Hangul" in {*text.src.scripts} - {*text.tgt.scripts}:
        reason = "decomposes Korean syllables into letters"
        chosen["tokenizer.normalization"] = Choice({"src": "nfd", "tgt": "identity"}, reason)
    return chosen


def _validation(text: Text) -> dict[str, Choice]:
    if text.task != "sentences":
        target, rate, unit = "word", "cer", "characters"
        if text.tgt.is_symbols:
            rate, unit = "symbol_error_rate", "symbols"
        if text.task == "formulas":
            target, rate, unit = "formula", "symbol_error_rate", "words"
        return {
            "validation.metric": Choice("exact_match", f"a {target} is right or wrong"),
            "validation.metrics": Choice([rate], f"error rate of {unit}"),
        }
    script = text.tgt.unspaced_script
    if script and (text.tgt.is_run_together or text.tgt.words <= _MOST_WORDS):
        reason = f"{script} has no spaces between words"
        return {"validation.bleu_tokenize": Choice(_BLEU_TOKENIZE[script], reason)}
    return {}


def config_text(text: Text, preset: PresetName, chosen: dict[str, Choice], path: Path) -> str:
    """Return the config to write to a path; comments at the top describe the text."""
    limits = plugins.load("export", "limits")
    head = [
        f"Written by seq2seq init from the preset {preset}, for {PRESETS[preset].description}.",
        f"Source: {text.src}.",
        f"Target: {text.tgt}.",
        f"Exports: {limits.exports_text(limits.exports(Config.model_validate(as_tree(chosen))))}.",
        "All other options have the defaults of configs/reference.yaml.",
    ]
    schema = Path("configs/schema.json")
    from_config = Path(os.path.relpath(schema, path.parent)).as_posix()
    return commented_yaml(head, chosen, from_config if schema.is_file() else None)


def _as_given(text: ParallelText) -> dict[str, Any]:
    """Return the options of the text's corpus, with columns as numbers."""

    def as_number(field: str) -> int | str:
        return int(field) if field.isascii() and field.isdecimal() else field

    given = text.corpora[0].model_dump(mode="json", exclude_defaults=True)
    if fields := given.get("fields"):
        given["fields"] = [as_number(field) for field in fields]
    if "features" in given:
        given["features"] = as_number(given["features"])
    return given


def example_files(folder: Path) -> dict[Path, bytes]:
    """Return the files that `init --example` writes to a folder, with their content."""
    sources = [*(_EXAMPLE / "configs").iterdir(), *(_EXAMPLE / "data/quickstart").iterdir()]
    return {folder / path.relative_to(_EXAMPLE): path.read_bytes() for path in sorted(sources)}
