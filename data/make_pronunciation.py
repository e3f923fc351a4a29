"""Write data/pronunciation: invented words, and their phones separated by spaces.

Each line is `word<TAB>phones`, such as `chadge`, `t͡ʃ æ d͡ʒ`. Spelling is read as in English, but
without
exceptions; a letter is read by what stands around it:

* `sh`, `ch`, `th`, `ph`, `ng`, `ck` are ʃ, t͡ʃ, θ, f, ŋ, k; `x` is two phones, k s
* `c` is s, and `g` is d͡ʒ, before e and i; otherwise they are k and ɡ; `dge` at the end is d͡ʒ
* `ee`, `oo`, `ai`, `ou` are iː, uː, eɪ, aʊ
* a vowel is long before a single consonant that a vowel follows, even a silent one: `rafe` is
  ɹ eɪ f, `raf` ɹ æ f, `raffe` ɹ æ f; a double consonant is one phone
* `e` at the end is silent, `y` is iː there and j elsewhere

No word occurs twice in the three files together. The same seed gives the same bytes.

    python data/make_pronunciation.py [folder]
"""

import random
import re
from collections.abc import Sequence

from tsv_splits import cut, parse_folder, write_splits

SEED = 1
SIZES = {"train": 4_000, "valid": 300, "test": 500}

SHORT = {"a": "æ", "e": "ɛ", "i": "ɪ", "o": "ɒ", "u": "ʌ"}
LONG = {"a": "eɪ", "e": "iː", "i": "aɪ", "o": "əʊ", "u": "juː"}
PAIRS = {"ee": "iː", "oo": "uː", "ai": "eɪ", "ou": "aʊ"}
DIGRAPHS = {"sh": "ʃ", "ch": "t͡ʃ", "th": "θ", "ph": "f", "ng": "ŋ", "ck": "k"}
CONSONANTS = {letter: letter for letter in "bdfhklmnpstvwz"}
CONSONANTS |= {"j": "d͡ʒ", "r": "ɹ", "y": "j"}
ONSETS = (*"bdfghjklmnprstvwyz", "c", "sh", "ch", "th", "ph", "st", "pl", "tr", "gr", "cl")
CODAS = (*"bdfglmnprst", "", "", "sh", "ch", "th", "ng", "ck", "x", "ll", "ss", "tt", "nt", "st")
ENDINGS = ("", "", "", "e", "y", "dge")
NUCLEI = (*"aeiou", *"aeiou", *PAIRS)

# What can be read next, the first that fits: the letters, and what must follow them.
_GRAPHEMES = re.compile(
    r"dge$|ee|oo|ai|ou|sh|ch|th|ph|ng|ck|(?P<double>[bcdfghjklmnprstvwyz])(?P=double)|e$|y$|."
)
_OPENS = re.compile(r"(?!(?:ng|ck|x))(?:sh|ch|th|ph|[bcdfghjklmnprstvwz])[aeiouy]")


def phones_of(word: str) -> list[str]:
    """The phones of a word, by the rules above."""
    phones: list[str] = []
    place = 0
    while place < len(word):
        match = _GRAPHEMES.match(word, place)
        assert match is not None, "the last alternative reads any letter"
        letters, rest = match[0], word[match.end() :]
        phones += _read(letters, rest, is_end=not rest, is_first=place == 0)
        place = match.end()
    return phones


def _read(letters: str, rest: str, *, is_end: bool, is_first: bool) -> list[str]:
    """The phones of the letters, before the rest of the word."""
    if letters == "dge":
        return ["d͡ʒ"]
    if letters in PAIRS:
        return [PAIRS[letters]]
    if letters in DIGRAPHS:
        return [DIGRAPHS[letters]]
    letter = letters[0]
    if letters == "e" and is_end and not is_first:
        return []
    if letters == "y" and is_end:
        return ["iː"]
    if letter in SHORT:
        return [LONG[letter] if _OPENS.match(rest) else SHORT[letter]]
    if letter == "x":
        return ["k", "s"]
    if letter in "cg":
        soft, hard = {"c": ("s", "k"), "g": ("d͡ʒ", "ɡ")}[letter]
        return [soft if rest[:1] in ("e", "i") else hard]
    return [CONSONANTS[letter]]


def draw_word(rng: random.Random) -> str:
    """One to three syllables, and an ending."""
    syllables = [
        rng.choice(ONSETS) + rng.choice(NUCLEI) + rng.choice(CODAS)
        for _ in range(rng.choice((1, 2, 2, 3)))
    ]
    return "".join(syllables) + rng.choice(ENDINGS)


def make_splits(seed: int = SEED) -> dict[str, list[tuple[str, str]]]:
    """All three files as (word, phones) pairs; no word occurs twice."""
    rng = random.Random(seed)
    words: dict[str, None] = {}
    while len(words) < sum(SIZES.values()):
        words[draw_word(rng)] = None
    pairs = [(word, " ".join(phones_of(word))) for word in words]
    return cut(pairs, SIZES)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the words and write them."""
    folder = parse_folder("pronunciation", arguments)
    splits = make_splits()
    write_splits(folder, splits, "words")


if __name__ == "__main__":
    main()
