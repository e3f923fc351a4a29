"""The parts of the text audit: scripts of characters, and duplicate lines."""

import random

import pytest

from seq2seq_cli.console import table
from seq2seq_cli.text.corpus import Pair
from seq2seq_cli.text.leakage import LineHashes
from seq2seq_cli.text.scripts import (
    CONTROL,
    lacks_capitals,
    looks_like_mojibake,
    looks_split,
    looks_tokenized,
    script_of,
    truncate_for_terminal,
)


@pytest.mark.parametrize(
    ("characters", "expected"),
    [
        ("aßéﬁＡ", "Latin"),
        ("жЁ", "Cyrillic"),
        ("あアｱー", "Kana"),
        ("漢々", "Han"),
        ("한", "Hangul"),
        ("ب", "Arabic"),
        ("\x00\x85\u2028\ufeff", CONTROL),
        ("1 .\t€😀µ", None),
    ],
)
def test_script_of_letters(characters: str, expected: str | None):
    assert [script_of(c) for c in characters] == [expected] * len(characters)


@pytest.mark.parametrize("text", ["Ärger", "It’s “so", "naïve", "привет", "garçon", "über"])
@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_mojibake_is_detected(text: str, encoding: str):
    assert not looks_like_mojibake(text)
    assert looks_like_mojibake(text.encode("utf-8").decode(encoding))


@pytest.mark.parametrize("text", ["NÃO", "„Gruß“", "déjà\xa0»", "Âge", "Ñandú", "Åre", "plain"])
def test_accented_text_is_not_mistaken_for_mojibake(text: str):
    assert not looks_like_mojibake(text)


@pytest.mark.parametrize(
    ("text", "is_tokenized"),
    [
        ("Two men , one old .", True),
        ("I can 't see it", True),
        ("他 来 了 。", True),
        ("Two men, one old.", False),
        ("I can't see it ...", False),
        ("Où est-il ?", False),
        ("It costs .5 dollars", False),
    ],
)
def test_tokenized_text_is_detected(text: str, is_tokenized: bool):
    assert looks_tokenized(text) == is_tokenized


@pytest.mark.parametrize(
    ("text", "is_split"),
    [
        ("un@@ related", True),
        ("▁un related ▁words", True),
        ("it is ▁un related", True),
        ("user@@example me@home @@ mine@@", False),
        ("load ▁▂▃ snake_case _private_", False),
    ],
)
def test_text_in_subwords_is_detected(text: str, is_split: bool):
    assert looks_split(text) == is_split


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("two men see a dog", True),
        ("два человека видят собаку", True),
        ("Two men see a dog", False),
        ("very good", False),
        ("ეს არის ჩემი სახლი", False),
        ("他 来 了 吗 ?", False),
        ("मैं रोज wifi चलाता हूँ", False),
        ("i like the word नमस्ते", True),
    ],
)
def test_lower_case_is_detected(text: str, lacks: bool):
    assert lacks_capitals(text) == lacks


def test_truncated_text_fits_its_width():
    assert truncate_for_terminal("short", 72) == "short"
    assert truncate_for_terminal("x" * 100, 10) == "x" * 9 + "…"
    assert truncate_for_terminal("漢" * 100, 10) == "漢" * 4 + "…"
    assert truncate_for_terminal("a\x1b[0m\u202e", 72) == r"a\x1b[0m\u202e"


def test_duplicates_match_a_naive_search():
    generator = random.Random(1)
    texts = [
        [Pair(*generator.choices("abcdefgh", k=2)) for _ in range(length)] for length in (30, 12)
    ]
    one, other = LineHashes(), LineHashes()
    for fingerprints, pairs in zip((one, other), texts, strict=True):
        for pair in pairs:
            fingerprints.add(None if pair.src == "a" else pair)
    train, held_out = ([p if p.src != "a" else None for p in pairs] for pairs in texts)
    sources = [pair and pair.src for pair in train]
    again = [n for n, s in enumerate(sources) if s and s in sources[:n]]
    found = one.repeated()
    assert found.sources.count == len(again) > 2
    assert found.sources.examples == [(n + 1, sources.index(sources[n]) + 1) for n in again[:2]]
    assert found.pairs.count == len([n for n, p in enumerate(train) if p and p in train[:n]]) > 0
    overlap = other.found_in(one)
    assert overlap.sources.count == len([p for p in held_out if p and p.src in sources]) > 0
    assert overlap.pairs.count == len([p for p in held_out if p and p in train]) > 0


def test_duplicates_ignore_case_width_and_white_space():
    one, other = LineHashes(), LineHashes()
    one.add(Pair("Groß  ist\u00a0es", "It is BIG"))
    other.add(Pair("GROSS ist es ", "it is ｂｉｇ"))
    assert other.found_in(one).pairs.count == 1


def test_columns_of_a_table_are_aligned_on_the_terminal():
    names = ["plain", "漢字", "byte\udcff", "e\u0301", "ที่นี่", "हिन्दी", "か\u3099"]
    lines = table([[name, "1"] for name in names]).split("\n")
    assert lines == [
        "plain       1",
        "漢字        1",
        r"byte\udcff  1",
        "e\u0301           1",
        "ที่นี่          1",
        "हिन्दी       1",
        "か\u3099          1",
    ]
