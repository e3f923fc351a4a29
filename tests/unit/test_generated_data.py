"""The quickstart and kana data match their generators and their descriptions."""

import filecmp
import re
import runpy

import pytest
from commands import ROOT

GENERATORS = {"make_quickstart.py": "quickstart", "make_kana.py": "kana"}


@pytest.mark.parametrize("script", GENERATORS)
def test_committed_data_matches_its_generator(script, tmp_path):
    runpy.run_path(str(ROOT / "data" / script))["main"]([str(tmp_path)])
    committed = ROOT / "data" / GENERATORS[script]
    names = [path.name for path in committed.iterdir()]
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    assert filecmp.cmpfiles(committed, tmp_path, names, shallow=False)[0] == names


def lines(name: str) -> list[str]:
    return (ROOT / "data" / name).read_text(encoding="utf-8").splitlines()


def words_of(text: list[str]) -> set[str]:
    return set(re.findall(r"\w+", " ".join(text)))


@pytest.mark.parametrize("held_out", ["valid", "test"])
def test_quickstart_test_sentences_are_unseen_but_their_words_are_not(held_out):
    for side in ("de", "en"):
        train, unseen = lines(f"quickstart/train.{side}"), lines(f"quickstart/{held_out}.{side}")
        assert (len(train), len(unseen)) == (5_000, 200)
        assert not set(train) & set(unseen)
        assert words_of(unseen) <= words_of(train)


def test_kana_romanization():
    to_romaji = runpy.run_path(str(ROOT / "data" / "make_kana.py"))["to_romaji"]
    expected = {
        "きゃ": "kya",
        "まっち": "matchi",
        "しんよう": "shin'yō",
        "ティー": "tī",
        "かっぱ": "kappa",
    }
    assert {kana: to_romaji(kana) for kana in expected} == expected
