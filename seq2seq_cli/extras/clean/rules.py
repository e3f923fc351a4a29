"""Rules for pairs that do not belong into training text; `check` and `distill` use them, too.

A batch of pairs is measured in bulk, with an array operation for all characters at once. Shapes: N
pairs, C characters of one side (each line ends in a line feed), K kinds of characters.
"""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import regex
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

from seq2seq_cli.text.corpus import Pair
from seq2seq_cli.text.leakage import normalized
from seq2seq_cli.text.scripts import CONTROL, MOJIBAKE, REPLACEMENT, main_scripts, script_of

Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]

_SPACE, _OTHER, _DIGIT, _MARK = "space", "other", "digit", "mark"
_NO_LETTERS = (_SPACE, _OTHER, _DIGIT, CONTROL, REPLACEMENT, _MARK)
_SPACELESS = {"Han", "Kana", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan"}  # scripts
_CHARACTERS_OF_A_WORD = 2  # in them; Chinese words have about 1.6, Thai ones about 4
_SHORT = 10  # characters added to both lengths, as ratios of short sentences vary
_CHARACTER_RUN = 10
_LONGEST_PERIOD = 10  # words that repeat together
_SIGNIFICANT_DIGITS = 3  # of numbers that are hardly ever written as words, at least

_MARKUP = re.compile(
    r"</?[A-Za-z][^<>\n]{0,200}>|&(?:[A-Za-z]{2,8}|#\d{2,6});|\{\{|\}\}|=\"|\*\*\*"
)
_ADDRESS = re.compile(r"https?://|www\.|@[\w-]{1,63}\.\w")
_NUMBER = re.compile(r"\d++(?:[.,:'’\u00a0\u202f\u066b\u066c\uff0e\uff1a]\d++)*+")
# Of 12 500, but not of 2019 300; also a comma that ends clauses (Arabic, full-width). They are
# looked for first, as they are found fast.
_SPACE_IN_NUMBER = re.compile(r"[ \u2009\u060c\uff0c](?=\d{3}(?!\d))(?<=\d.)(?<!\d{4}.)")
_NO_DIGIT = re.compile(r"\D")
_NUMBER_OR_WORD = regex.compile(rf"{_NUMBER.pattern}|[\p{{L}}\p{{N}}][\p{{L}}\p{{N}}\p{{M}}]*+")
_NUMBER_OR_CHARACTER = re.compile(r"\d+|.")


class Limits(NamedTuple):
    """The thresholds of the rules."""

    max_words: int = 150
    max_word_length: int = 40
    min_letters: float = 0.5
    min_script: float = 0.5
    max_ratio: float = 3.0
    max_similarity: float = 0.9
    max_repeats: int = 3
    min_numbers: float = 0.5


class Profile(NamedTuple):
    """What is usual in a text."""

    ratio: float  # target characters for one of the source, in the median
    scripts: tuple[Collection[str], Collection[str]]  # of source and target; empty: any


class Characters:
    """A table of the kinds of characters, filled as they occur."""

    def __init__(self) -> None:
        self.names = list(_NO_LETTERS)
        self._unknown = 255
        self._kinds = np.full(0x110000, self._unknown, np.uint8)

    def kinds(self, codes_C: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
        """Return for each code point an index of `names`."""
        kinds_C = self._kinds[codes_C]
        if (new := codes_C[kinds_C == self._unknown]).size:
            for code in np.unique(new).tolist():
                self._kinds[code] = self._kind_of(chr(code))
            kinds_C = self._kinds[codes_C]
        return kinds_C

    def having(self, names: Collection[str]) -> Mask:
        """Return for each kind whether it is one of these; K."""
        return np.array([name in names for name in self.names])

    def _kind_of(self, character: str) -> int:
        name = _SPACE if character == "\n" else script_of(character)
        if name is None and character.isspace():
            name = _SPACE
        elif name is None and unicodedata.category(character).startswith("M"):
            name = _MARK
        elif name is None:
            name = _DIGIT if character.isdecimal() else _OTHER
        if name not in self.names:
            if len(self.names) == self._unknown:
                return self.names.index(_OTHER)
            self.names.append(name)
        return self.names.index(name)


class Side:
    """One side of a batch of pairs."""

    def __init__(self, lines: Sequence[str], characters: Characters) -> None:
        self.lines = [line.replace("\n", " ") for line in lines]
        self.text = "".join(f"{line}\n" for line in self.lines)
        self.characters = characters
        codes_C = _codes(self.text)
        kinds_C = characters.kinds(codes_C)
        self._ends = np.flatnonzero(codes_C == ord("\n"))
        num_kinds = len(characters.names)
        lengths = np.diff(self._ends, prepend=-1)
        self._line_C = np.repeat(np.arange(len(lines)), lengths)
        self.counts_NK = np.bincount(
            self._line_C * num_kinds + kinds_C, minlength=num_kinds * len(lines)
        ).reshape(len(lines), num_kinds)
        self.length_N: Counts = lengths - self.count(_SPACE)  # characters but white space
        self.letters_N: Counts = self.counts_NK[:, len(_NO_LETTERS) :].sum(1)
        is_space_C = kinds_C == characters.names.index(_SPACE)
        is_start_C = np.diff(is_space_C, prepend=True) & ~is_space_C
        self.words_N: Counts = np.bincount(self._line_C[is_start_C], minlength=len(lines))
        is_spaceless_K = characters.having(_SPACELESS)
        self.spaceless_N: Counts = self.counts_NK[:, is_spaceless_K].sum(1)  # letters
        self.words_N += self.spaceless_N // _CHARACTERS_OF_A_WORD
        is_break_C = is_space_C | is_spaceless_K[kinds_C]
        self.longest_N: Counts = self._longest_gap(np.flatnonzero(is_break_C))
        self._is_run_C = (codes_C[1:] == codes_C[:-1]) & ~is_space_C[1:]

    def count(self, name: str) -> Counts:
        """Return how many characters of a kind each line has; N."""
        return self.counts_NK[:, self.characters.names.index(name)]

    def share_N(self, names: Collection[str]) -> npt.NDArray[np.float64]:
        """Return the share of letters in these scripts, 1 for lines without letters."""
        letters_NK = self.counts_NK[:, len(_NO_LETTERS) :]
        of_them = self.characters.having(names)[len(_NO_LETTERS) : self.counts_NK.shape[1]]
        total, wanted = letters_NK.sum(1), letters_NK[:, of_them].sum(1)
        return np.where(total == 0, 1.0, wanted / np.maximum(total, 1))

    def letters_by_script(self) -> "Counter[str]":
        """Return how many letters of each script there are."""
        names = self.characters.names[len(_NO_LETTERS) :]
        counts = self.counts_NK[:, len(_NO_LETTERS) :].sum(0).tolist()
        return Counter(dict(zip(names, counts, strict=False)))

    @functools.cached_property
    def character_run_N(self) -> Mask:
        """Whether a line has the same character more than ten times in a row."""
        ends = np.flatnonzero(np.append(~self._is_run_C, True))
        runs = np.diff(ends, prepend=-1)
        return self._mask(self._line_C[ends[runs > _CHARACTER_RUN]])

    @functools.cached_property
    def keys(self) -> list[str]:
        """The lines as they are compared: without case, width and spaces, letters and digits only.

        Of a line without letters and digits, all characters are compared.
        """
        keys = self._letters_and_digits.replace(" ", "").split("\n")[:-1]
        pairs = zip(keys, self.lines, strict=True)
        return [key or normalized(line).replace(" ", "") for key, line in pairs]

    @functools.cached_property
    def words(self) -> list[str]:
        """The letters and digits of each line, with spaces for all else."""
        return self._letters_and_digits.split("\n")[:-1]

    @functools.cached_property
    def _letters_and_digits(self) -> str:
        codes_C = _codes(unicodedata.normalize("NFKC", self.text).casefold())
        kinds_C = self.characters.kinds(codes_C)
        is_other_K = self.characters.having({_SPACE, _OTHER, CONTROL, REPLACEMENT})
        is_other_C = is_other_K[kinds_C] & (codes_C != ord("\n"))
        spaced_C = np.where(is_other_C, np.uint32(ord(" ")), codes_C)
        return spaced_C.tobytes().decode("utf-32-le", "surrogatepass")

    def having(self, pattern: re.Pattern[str]) -> Mask:
        """Return which lines have a match of a pattern, which matches no line feed; N."""
        positions = [match.start() for match in pattern.finditer(self.text)]
        return self._mask(self._line_C[positions] if positions else [])

    def _longest_gap(self, breaks: Counts) -> Counts:
        """Return the longest stretch without a break in each line; line feeds are breaks."""
        gaps = np.diff(breaks, prepend=-1) - 1
        last = np.searchsorted(breaks, self._ends)
        first = np.concatenate([[0], last[:-1] + 1])
        return np.asarray(np.maximum.reduceat(gaps, first)) if len(gaps) else gaps

    def _mask(self, lines: Any) -> Mask:
        mask = np.zeros(len(self.lines), np.bool_)
        mask[lines] = True
        return mask


class Batch:
    """Some pairs, measured; `limits` and `profile` are what the rules compare with."""

    def __init__(
        self, pairs: Sequence[Pair], characters: Characters, limits: Limits, profile: Profile
    ) -> None:
        self.pairs = pairs
        self.limits = limits
        self.profile = profile
        self.src = Side([pair.src for pair in pairs], characters)
        self.tgt = Side([pair.tgt for pair in pairs], characters)
        self.is_left_N = np.ones(len(pairs), np.bool_)  # for rules that look at one after another

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.src, self.tgt

    def where(self, is_wanted: Callable[[int], bool], among_N: Mask) -> Mask:
        """Return which pairs that are left, among some, have a property."""
        found = np.zeros(len(self.pairs), np.bool_)
        for i in np.flatnonzero(among_N & self.is_left_N).tolist():
            found[i] = is_wanted(i)
        return found


def judge(batch: Batch, rules: "Sequence[Rule]") -> npt.NDArray[np.uint8]:
    """Return for each pair the number of the first rule that rejects it, from 1, or 0."""
    verdicts_N = np.zeros(len(batch.pairs), np.uint8)
    for number, rule in enumerate(rules, 1):
        verdicts_N[rule.rejects(batch) & batch.is_left_N] = number
        batch.is_left_N = verdicts_N == 0
    return verdicts_N


def profile_of(pairs: Sequence[Pair], characters: Characters) -> Profile:
    """Return what is usual in some pairs."""
    batch = Batch(pairs, characters, Limits(), Profile(1.0, ((), ())))
    src, tgt = batch.sides
    is_filled = (src.length_N > 0) & (tgt.length_N > 0)
    ratios = tgt.length_N[is_filled] / src.length_N[is_filled]
    scripts = [main_scripts(side.letters_by_script()) for side in batch.sides]
    return Profile(float(np.median(ratios)) if len(ratios) else 1.0, (scripts[0], scripts[1]))


def _either(rejects: Callable[[Side, Limits], Mask]) -> Callable[[Batch], Mask]:
    """Return a rule for pairs from a rule for one side."""
    return lambda batch: rejects(batch.src, batch.limits) | rejects(batch.tgt, batch.limits)


def is_copy(batch: Batch) -> Mask:
    """Compare letters and digits; a form with features may equal its lemma."""
    src, tgt = batch.sides
    at_least = batch.limits.max_similarity
    similarity_N = process.cpdist(
        src.keys, tgt.keys, scorer=Levenshtein.normalized_similarity, score_cutoff=at_least
    )
    has_features = np.array([bool(pair.features) for pair in batch.pairs], np.bool_)
    # Rounded, as the package returns float32.
    return (similarity_N >= np.float32(at_least)) & (src.letters_N > 0) & ~has_features


def _lacks_script(batch: Batch) -> Mask:
    shares = [
        side.share_N(scripts) if scripts else np.ones(len(batch.pairs))
        for side, scripts in zip(batch.sides, batch.profile.scripts, strict=True)
    ]
    return np.asarray(np.minimum(*shares) < batch.limits.min_script)


def is_ratio_outlier(batch: Batch) -> Mask:
    src, tgt = batch.sides
    ratio_N = (tgt.length_N + _SHORT) / (src.length_N * batch.profile.ratio + _SHORT)
    return np.asarray(np.maximum(ratio_N, 1 / ratio_N) > batch.limits.max_ratio)


def _has_few_letters(side: Side, limits: Limits) -> Mask:
    letters_N = side.letters_N + side.count(_MARK)
    return np.asarray(letters_N < limits.min_letters * side.length_N)


def is_repetitive(batch: Batch, side: Side) -> Mask:
    most = batch.limits.max_repeats

    def repeats(i: int) -> bool:
        if side.spaceless_N[i] * 2 > side.letters_N[i]:
            characters = _NUMBER_OR_CHARACTER.findall(side.keys[i])
            return _repeats_in_a_row(characters, _CHARACTERS_OF_A_WORD, most)
        words = side.words[i].split()
        if len(set(words)) > len(words) - most:  # which is faster than to find numbers
            return False
        return _repeats_in_a_row(_NUMBER_OR_WORD.findall(side.lines[i].casefold()), 1, most)

    return side.character_run_N | batch.where(repeats, side.words_N > most)


def _repeats_in_a_row(units: Sequence[str], word: int, most: int) -> bool:
    """Return True if 1 to 10 words, each of `word` units, occur over `most` times in a row."""
    if len(set(units)) > len(units) - most * word:
        return False
    longest = min(_LONGEST_PERIOD * word, len(units) // (most + 1))
    for period in range(word, longest + 1):
        equal = 0
        for unit, before in zip(units[period:], units, strict=False):
            equal = equal + 1 if unit == before else 0
            if equal == most * period:
                return True
    return False


def _has_other_numbers(batch: Batch) -> Mask:
    src, tgt = batch.sides

    def differ(i: int) -> bool:
        lines = [side.lines[i] for side in batch.sides]
        if not have_other(lines):
            return False
        joined = [_SPACE_IN_NUMBER.sub("", line) for line in lines]  # 12 500 may be one number
        return joined == lines or have_other(joined)

    def have_other(lines: Sequence[str]) -> bool:
        one, other = (Counter(_numbers(line)) for line in lines)
        equal = (one & other).total()
        only = [list((one - other).elements()), list((other - one).elements())]
        if not all(only):  # the other side may have 20 and 5,000 as words, but hardly 1984
            only = [[n for n in side if len(n.rstrip("0")) >= _SIGNIFICANT_DIGITS] for side in only]
        return 2 * equal < batch.limits.min_numbers * (2 * equal + sum(map(len, only)))

    return batch.where(differ, (src.count(_DIGIT) > 0) | (tgt.count(_DIGIT) > 0))


def _numbers(text: str) -> list[str]:
    """Return the numbers in a text, without separators and leading zeros."""
    numbers = [_NO_DIGIT.sub("", number) for number in _NUMBER.findall(text)]
    if not text.isascii():  # digits of other scripts
        numbers = ["".join(str(unicodedata.decimal(c)) for c in number) for number in numbers]
    return [number.lstrip("0") for number in numbers]


class Rule(NamedTuple):
    """Why a pair is rejected."""

    meaning: str  # with {names} of Limits
    rejects: Callable[[Batch], Mask]


# From cheap to dear; a pair is counted for the first rule that rejects it. Names after a rule say
# whose threshold it has: OpusCleaner's filters as mozilla/translations uses them, the hard rules of
# bitextor/bicleaner-hardrules, or the defaults of Helsinki-NLP/OpusFilter.
RULES: dict[str, Rule] = {
    "empty": Rule("an empty side", _either(lambda side, _: side.length_N == 0)),
    "control": Rule(
        "control characters or inner byte-order marks",
        _either(lambda side, _: side.count(CONTROL) > 0),
    ),
    "replaced": Rule(
        "U+FFFD, which replaces lost characters",
        _either(lambda side, _: side.count(REPLACEMENT) > 0),
    ),
    "mojibake": Rule(
        "UTF-8 that was decoded as Latin-1", _either(lambda side, _: side.having(MOJIBAKE))
    ),
    "words": Rule(  # Mozilla
        "over {max_words} words", _either(lambda side, limits: side.words_N > limits.max_words)
    ),
    "word_length": Rule(  # OpusFilter
        "a word over {max_word_length} characters",
        _either(lambda side, limits: side.longest_N > limits.max_word_length),
    ),
    "markup": Rule(  # Bicleaner's boilerplate
        "tags, entities or templates", _either(lambda side, _: side.having(_MARKUP))
    ),
    "letters": Rule(  # Mozilla
        "under {min_letters:.0%} letters", _either(_has_few_letters)
    ),
    "script": Rule("under {min_script:.0%} of the letters in the side's scripts", _lacks_script),
    "ratio": Rule(  # Bicleaner, there of the lengths themselves
        "a length ratio over {max_ratio:g} times off the median", is_ratio_outlier
    ),
    "copy": Rule(  # OpusFilter, there of the longest common substring
        "sides that are equal by {max_similarity:.0%}", is_copy
    ),
    "addresses": Rule(  # Mozilla
        "a web or e-mail address on one side only",
        lambda batch: batch.src.having(_ADDRESS) ^ batch.tgt.having(_ADDRESS),
    ),
    "repetition": Rule(  # OpusFilter, there 2
        "words over {max_repeats} times in a row",
        lambda batch: is_repetitive(batch, batch.src) | is_repetitive(batch, batch.tgt),
    ),
    "numbers": Rule(  # OpusFilter
        "under {min_numbers:.0%} equal numbers", _has_other_numbers
    ),
}


def meaning_of(rule: str) -> str:
    """Return why a rule rejects a pair, with its default limits."""
    return RULES[rule].meaning.format_map(Limits()._asdict())


class RejectionCounter:
    """Counts the pairs that the rules reject with their default limits.

    The first pairs say what is usual in the text.
    """

    def __init__(self, first_pairs: Sequence[Pair]) -> None:
        self._counts = Counter[str]()
        self._characters = Characters()
        self._profile = profile_of(first_pairs, self._characters)

    def add(self, pairs: Sequence[Pair]) -> list[str]:
        """Count pairs; return for each the rule that rejects it, or ""."""
        if not pairs:
            return []
        batch = Batch(pairs, self._characters, Limits(), self._profile)
        names = ["", *RULES]
        found = [names[number] for number in judge(batch, list(RULES.values())).tolist()]
        self._counts.update(filter(None, found))
        return found

    def by_rule(self) -> dict[str, int]:
        """Return the counts, without zeros, in the order of the rules."""
        return {name: self._counts[name] for name in RULES if name in self._counts}


def _codes(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
