"""Write data/kana: words in Japanese kana and their Hepburn romanisation, a task for characters.

Each line is `kana<TAB>romaji`. The words are invented but pronounceable, 2 to 6 morae long, half in
hiragana and half in katakana. The romanisation follows rules and never a dictionary, so there is
exactly one answer, and `to_romaji` below is the whole truth about it (modified Hepburn):

* one kana, one syllable: し → shi, つ → tsu, ふ → fu, ぢ → ji, づ → zu
* a small や, ゆ or よ joins the kana before it: きゃ → kya, しゅ → shu, じょ → jo
* katakana spells foreign syllables with small vowels: ティ → ti, ファ → fa, チェ → che
* a small っ doubles the next consonant, and ch becomes tch: がっこう → gakkō, まっちゃ → matcha
* ん is n, but n' before a vowel or y: しんよう → shin'yō, しんぶん → shinbun
* hiragana writes a long vowel with a second vowel: ああ → ā, うう → ū, ええ → ē, おお and おう → ō;
  いい stays ii and えい stays ei
* katakana writes it with ー, which puts a macron on every vowel: コーヒー → kōhī; there, and only
  there, a second vowel stays a letter: ソウル → souru, バレエ → baree
* a vowel is lengthened once, from left to right: おうう → ōu

Every word and every romanisation occurs once in the three files together, and every kana of valid
and test occurs in train. The same seed gives the same bytes.

    python data/make_kana.py [folder]
"""

import random
from collections.abc import Sequence

from tsv_splits import cut, parse_folder, write_splits

SEED = 1
SIZES = {"train": 5_000, "valid": 300, "test": 300}
LENGTH_WEIGHTS = {2: 1, 3: 4, 4: 5, 5: 3, 6: 2}  # morae: how often

# Hiragana rows; the spellings follow in the same order.
PLAIN_ROWS = (
    ("あいうえお", "a i u e o"),
    ("かきくけこ", "ka ki ku ke ko"),
    ("さしすせそ", "sa shi su se so"),
    ("たちつてと", "ta chi tsu te to"),
    ("なにぬねの", "na ni nu ne no"),
    ("はひふへほ", "ha hi fu he ho"),
    ("まみむめも", "ma mi mu me mo"),
    ("やゆよ", "ya yu yo"),
    ("らりるれろ", "ra ri ru re ro"),
    ("わ", "wa"),
    ("がぎぐげご", "ga gi gu ge go"),
    ("ざじずぜぞ", "za ji zu ze zo"),
    ("だぢづでど", "da ji zu de do"),
    ("ばびぶべぼ", "ba bi bu be bo"),
    ("ぱぴぷぺぽ", "pa pi pu pe po"),
)
# A kana of the i column and what it becomes before a small ya, yu or yo.
GLIDES = {
    "き": "ky", "し": "sh", "ち": "ch", "に": "ny", "ひ": "hy", "み": "my", "り": "ry",
    "ぎ": "gy", "じ": "j", "び": "by", "ぴ": "py",
}  # fmt: skip
FOREIGN = {
    "ティ": "ti", "ディ": "di", "トゥ": "tu", "ドゥ": "du",
    "ファ": "fa", "フィ": "fi", "フェ": "fe", "フォ": "fo",
    "ウィ": "wi", "ウェ": "we", "ウォ": "wo",
    "シェ": "she", "ジェ": "je", "チェ": "che",
    "ツァ": "tsa", "ヴァ": "va", "ヴィ": "vi", "ヴェ": "ve", "ヴォ": "vo",
}  # fmt: skip

MACRONS = {"a": "ā", "i": "ī", "u": "ū", "e": "ē", "o": "ō"}
HIRAGANA_LENGTHENING = {"aa": "ā", "uu": "ū", "ee": "ē", "oo": "ō", "ou": "ō"}
# Which vowel a hiragana word adds to make the vowel before it long, as often as listed.
HIRAGANA_SECOND_VOWEL = {"a": "あ", "i": "い", "u": "う", "e": "いいえ", "o": "うううお"}
DOUBLED_IN_HIRAGANA = "kstcp"  # first letters of the syllables that may follow a small tsu
DOUBLED_IN_KATAKANA = DOUBLED_IN_HIRAGANA + "bdfgj"


def to_katakana(hiragana: str) -> str:
    """The same kana in the other script; Unicode keeps the two blocks 96 code points apart."""
    return "".join(chr(ord(kana) + 96) for kana in hiragana)


def hiragana_syllables() -> dict[str, str]:
    """Every hiragana syllable, of one kana or of two, with its spelling."""
    syllables: dict[str, str] = {}
    for kana, spellings in PLAIN_ROWS:
        syllables.update(zip(kana, spellings.split(), strict=True))
    for kana, consonant in GLIDES.items():
        for small, vowel in zip("ゃゅょ", "auo", strict=True):
            syllables[kana + small] = consonant + vowel
    return syllables


HIRAGANA = hiragana_syllables()
KATAKANA = {to_katakana(kana): spelling for kana, spelling in HIRAGANA.items()} | FOREIGN
SYLLABLES = HIRAGANA | KATAKANA


def split_syllables(word: str) -> list[str]:
    """Cut a word into syllables of two kana where possible, and single kana elsewhere."""
    parts: list[str] = []
    while word:
        size = 2 if word[:2] in SYLLABLES else 1
        parts.append(word[:size])
        word = word[size:]
    return parts


def double_consonant(spelling: str) -> str:
    """The spelling after a small tsu: ka → kka, chi → tchi."""
    return ("t" if spelling.startswith("ch") else spelling[0]) + spelling


def to_romaji(word: str) -> str:
    """Romanise one word by the rules in the module's docstring."""
    romaji = ""
    doubled = False
    after_n = False
    for part in split_syllables(word):
        if part in "っッ":
            doubled = True
        elif part in "んン":
            romaji += "n"
        elif part == "ー":
            romaji = romaji[:-1] + MACRONS[romaji[-1]]
        elif part in HIRAGANA and romaji[-1:] + HIRAGANA[part] in HIRAGANA_LENGTHENING:
            romaji = romaji[:-1] + HIRAGANA_LENGTHENING[romaji[-1] + HIRAGANA[part]]
        else:
            spelling = double_consonant(SYLLABLES[part]) if doubled else SYLLABLES[part]
            romaji += "'" * (after_n and spelling[0] in "aiueoy") + spelling
            doubled = False
        after_n = part in "んン"
    return romaji


def lengthening(rng: random.Random, last: str, is_hiragana: bool) -> str:
    """The kana that makes the vowel of the syllable before it long."""
    return rng.choice(HIRAGANA_SECOND_VOWEL[SYLLABLES[last][-1]]) if is_hiragana else "ー"


def random_syllable(rng: random.Random, syllables: dict[str, str], first_letters: str) -> str:
    """A syllable whose spelling begins with one of the letters; any letter if there are none.

    One in four has two kana: there are many of them, but words use them less.
    """
    wanted_size = 2 if rng.random() < 0.25 else 1
    fitting = [
        kana
        for kana, spelling in syllables.items()
        if len(kana) == wanted_size and (not first_letters or spelling[0] in first_letters)
    ]
    return rng.choice(fitting)


def random_word(rng: random.Random) -> str:
    """An invented word in one script that Japanese phonology allows."""
    lengths, weights = list(LENGTH_WEIGHTS), list(LENGTH_WEIGHTS.values())
    length = rng.choices(lengths, weights)[0]
    is_hiragana = rng.random() < 0.5
    syllables = HIRAGANA if is_hiragana else KATAKANA
    doubled_letters = DOUBLED_IN_HIRAGANA if is_hiragana else DOUBLED_IN_KATAKANA
    morae = [random_syllable(rng, syllables, "")]
    while len(morae) < length:
        is_after_syllable = morae[-1] in syllables
        kind = rng.choices(["syllable", "n", "long", "doubled"], [68, 10, 14, 8])[0]
        if kind == "n" and is_after_syllable:
            morae.append("ん" if is_hiragana else "ン")
        elif kind == "long" and is_after_syllable:
            morae.append(lengthening(rng, morae[-1], is_hiragana))
        elif kind == "doubled" and is_after_syllable and len(morae) + 2 <= length:
            morae.append("っ" if is_hiragana else "ッ")
            morae.append(random_syllable(rng, syllables, doubled_letters))
        else:
            morae.append(random_syllable(rng, syllables, ""))
    return "".join(morae)


def make_splits(seed: int = SEED) -> dict[str, list[tuple[str, str]]]:
    """All three files as (kana, romaji) pairs; no word and no romanisation occurs twice."""
    rng = random.Random(seed)
    word_of: dict[str, str] = {}
    while len(word_of) < sum(SIZES.values()):
        word = random_word(rng)
        word_of.setdefault(to_romaji(word), word)
    pairs = [(word, romaji) for romaji, word in word_of.items()]
    return cut(pairs, SIZES)


def check_splits(splits: dict[str, list[tuple[str, str]]]) -> None:
    """Assert what the module's docstring promises."""
    assert {name: len(pairs) for name, pairs in splits.items()} == SIZES
    pairs = [pair for name in SIZES for pair in splits[name]]
    assert len({kana for kana, _ in pairs}) == len(pairs), "a word occurs twice"
    assert len({romaji for _, romaji in pairs}) == len(pairs), "a romanisation occurs twice"
    seen = {kana for word, _ in splits["train"] for kana in word}
    used = {kana for name in ("valid", "test") for word, _ in splits[name] for kana in word}
    assert used <= seen, f"not in train: {used - seen}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the words, check them and write them."""
    folder = parse_folder("kana", arguments)
    splits = make_splits()
    check_splits(splits)
    write_splits(folder, splits, "words")


if __name__ == "__main__":
    main()
