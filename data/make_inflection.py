"""Write data/inflection: words of an invented language, their features and the inflected forms.

Each line is `lemma<TAB>features<TAB>form`, such as `kurat`, `N;PL;PSS1;LOC`, `kuratlarımda`. The
endings are joined as in Turkish:

* vowel harmony: A in an ending is a after the back vowels a, ı, o, u, and e after e, i, ö, ü; I is
  ı, i, u or ü, back or front and rounded or not as the last vowel
* a final p, t, k or ç becomes b, d, ğ or c before a vowel: `kurat`, `kuradım`
* d becomes t after a voiceless consonant: `kuratta`, `gelide`
* y stands between two vowels: `geliyi`

Nouns have number, perhaps a possessor, and a case; verbs have tense, person and number. The names
of features are those of UniMorph. No lemma is in two of the files. The same seed gives the same
bytes.

    python data/make_inflection.py [folder]
"""

import random
from collections.abc import Sequence

from tsv_splits import parse_folder, write_splits

SEED = 1
SIZES = {"train": 4_000, "valid": 300, "test": 500}
FORMS_OF_A_LEMMA = 4

BACK, FRONT, ROUNDED = "aıou", "eiöü", "oöuü"
VOWELS = BACK + FRONT
ONSETS, CODAS = "bdgklmnprstvyz", "lmnrptkçsz"
VOICELESS = "pçtkfhsş"
VOICED = {"p": "b", "t": "d", "k": "ğ", "ç": "c"}
CASES = {"NOM": "", "ACC": "(y)I", "DAT": "(y)A", "LOC": "dA", "ABL": "dAn"}
POSSESSORS = {"": "", "PSS1": "(I)m", "PSS2": "(I)n"}
TENSES = {"PST": "dI", "FUT": "(y)AcAk", "COND": "sA"}
PERSONS = {"1;SG": "(I)m", "2;SG": "(I)n", "3;SG": "", "3;PL": "lAr"}


def join(word: str, ending: str) -> str:
    """The word with an ending, in which A and I follow the vowels before, and d the consonant.

    A letter in brackets is there only where its like would meet otherwise: y between vowels, I
    between consonants.
    """
    if ending.startswith("("):
        optional, ending = ending[1], ending[3:]
        ends_in_vowel = word[-1] in VOWELS
        if ends_in_vowel == (optional == "y"):
            ending = optional + ending
    if ending[:1] in ("A", "I"):
        word = f"{word[:-1]}{VOICED.get(word[-1], word[-1])}"
    if ending.startswith("d") and word[-1] in VOICELESS:
        ending = "t" + ending[1:]
    for letter in ending:
        last = [vowel for vowel in word if vowel in VOWELS][-1]
        if letter == "A":
            letter = "a" if last in BACK else "e"
        elif letter == "I":
            pair = "uü" if last in ROUNDED else "ıi"
            letter = pair[0] if last in BACK else pair[1]
        word += letter
    return word


def draw_lemma(rng: random.Random) -> str:
    """A word of two or three syllables, all with back or all with front vowels."""
    vowels = rng.choice((BACK, FRONT))
    syllables = [rng.choice(ONSETS) + rng.choice(vowels) for _ in range(rng.randint(2, 3))]
    return "".join((*syllables, rng.choice(("", *CODAS))))


def draw_form(rng: random.Random, lemma: str, is_noun: bool) -> tuple[str, str]:
    """Features and the form that has them."""
    if is_noun:
        number, possessor = rng.choice(("SG", "PL")), rng.choice(list(POSSESSORS))
        case = rng.choice(list(CASES))
        endings = ["lAr" if number == "PL" else "", POSSESSORS[possessor], CASES[case]]
        features = ["N", number, possessor, case]
    else:
        tense, person = rng.choice(list(TENSES)), rng.choice(list(PERSONS))
        endings, features = [TENSES[tense], PERSONS[person]], ["V", tense, person]
    form = lemma
    for ending in filter(None, endings):
        form = join(form, ending)
    return ";".join(filter(None, features)), form


def make_splits(seed: int = SEED) -> dict[str, list[tuple[str, str, str]]]:
    """All three files as rows of lemma, features and form."""
    rng = random.Random(seed)
    lemmas: set[str] = set()
    splits: dict[str, list[tuple[str, str, str]]] = {}
    for name, size in SIZES.items():
        rows: list[tuple[str, str, str]] = []
        while len(rows) < size:
            lemma, is_noun = draw_lemma(rng), rng.random() < 0.6
            if lemma in lemmas:
                continue
            lemmas.add(lemma)
            forms = dict(draw_form(rng, lemma, is_noun) for _ in range(FORMS_OF_A_LEMMA))
            rows += [(lemma, features, form) for features, form in forms.items()]
        splits[name] = rows[:size]
    return splits


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the words and write them."""
    folder = parse_folder("inflection", arguments)
    splits = make_splits()
    write_splits(folder, splits, "forms")


if __name__ == "__main__":
    main()
