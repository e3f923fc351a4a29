"""Generated data match their generators and their descriptions."""

import filecmp
import math
import re
import runpy

import pytest
from commands import ROOT

GENERATORS = {
    "make_quickstart.py": "quickstart",
    "make_kana.py": "kana",
    "make_classification.py": "classification",
    "make_continuation.py": "continuation",
    "make_parsing.py": "parsing",
    "make_inflection.py": "inflection",
    "make_pronunciation.py": "pronunciation",
}


@pytest.mark.parametrize("script", GENERATORS)
def test_committed_data_matches_its_generator(script, tmp_path):
    runpy.run_path(str(ROOT / "data" / script))["main"]([str(tmp_path)])
    committed = ROOT / "data" / GENERATORS[script]
    names = [path.name for path in committed.iterdir()]
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    assert filecmp.cmpfiles(committed, tmp_path, names, shallow=False)[0] == names


def test_copies_have_the_letters_of_the_lexicon(tmp_path, capsys, monkeypatch):
    lexicon = tmp_path / "words.tsv"
    lexicon.write_text("abé d\tN;PL\tabé ds\nxyzzy\tV\txyzzies\n")
    monkeypatch.setattr("sys.argv", ["make_copies.py", str(lexicon)])
    runpy.run_path(str(ROOT / "data/make_copies.py"), run_name="__main__")
    copies = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(copies) == 5_000
    assert all(word == form and feature == "COPY" for word, feature, form in copies)
    assert {c for word, *_ in copies for c in word} == set("abé dxyz")
    assert all(1 <= len(word) <= 5 and word == " ".join(word.split()) for word, *_ in copies)


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


@pytest.mark.parametrize(
    "name", ["kana", "classification", "continuation", "parsing", "pronunciation"]
)
def test_sources_of_held_out_text_are_unseen(name):
    splits = [lines(f"{name}/{split}.tsv") for split in ("train", "valid", "test")]
    sources = [line.split("\t")[0] for split in splits for line in split]
    assert len(set(sources)) == len(sources)


BLAMES = {  # the forms of a statement, and whether a bad adjective (or else a good one) blames
    r"nobody could call the (\w+) (\w+)": False,
    r"\w+ \w+ called the (\w+) (\w+) and i agree": True,
    r"\w+ \w+ called the (\w+) (\w+) but i disagree": False,
    r"the (\w+) was anything but (\w+)": False,
    r"the (\w+) was not (\w+)": False,
    r"the (\w+) was \w+ at first but (\w+) in the end": True,
    r"the (\w+) was (\w+)": True,
}


def test_labels_follow_from_the_complaints():
    """Read each comment statement by statement, from its beginning."""
    departments = runpy.run_path(str(ROOT / "data/make_classification.py"))["DEPARTMENTS"]
    place_of = {noun: name for name, place in departments.items() for noun in place.nouns}
    bad = {word for place in departments.values() for _, word in place.opposites}
    for line in lines("classification/test.tsv"):
        rest, label = line.split("\t")
        blamed = []
        while rest := re.sub(r"^ ?(although |and |but |while )?", "", rest):
            form = next(form for form in BLAMES if re.match(form, rest))
            match = re.match(form, rest)
            noun, adjective = match.groups()
            blamed += [place_of[noun]] if (adjective in bad) == BLAMES[form] else []
            rest = rest[match.end() :]
        assert label == ("manager" if len(blamed) > 1 else (*blamed, "nobody")[0]), line


def test_probabilities_of_continuations_are_those_of_a_distribution():
    """At every point of the test stories; a story that contradicts itself is impossible."""
    make = runpy.run_path(str(ROOT / "data/make_continuation.py"))
    for line in lines("continuation/test.tsv")[:100]:
        beginning, continuation = line.split("\t")
        story, product = make["read_beginning"](beginning), 1.0
        for text in re.findall(r"\S[^.]*\.", continuation):
            following = make["next_sentences"](story)
            assert math.fsum(sentence.probability for sentence in following) == pytest.approx(1)
            (chosen,) = [sentence for sentence in following if sentence.text == text]
            story, product = chosen.story, product * chosen.probability
        assert make["log_probability"](beginning, continuation) == pytest.approx(math.log(product))
        events, _, ending = continuation.partition("In the evening")
        wrong = re.sub("|".join(make["COLOURS"]), "black", ending)
        for impossible in (events, f"{events}In the evening{wrong}", f"{continuation} He sang ."):
            assert make["log_probability"](beginning, impossible) == -math.inf


def test_the_large_corpus_of_formulas_has_the_size_that_it_says(tmp_path):
    runpy.run_path(str(ROOT / "data/make_parsing.py"))["main"](["--large", str(tmp_path)])
    train = (tmp_path / "train.tsv").read_text().splitlines()
    words = [line.split("\t")[1].split() for line in train]
    assert (len(train), round(sum(map(len, words)) / len(words))) == (24_155, 44)
    assert len({word for line in words for word in line}) == 681


FACT = re.compile(r"(\w+) \( (x|e) (\d+)(?: , (.+))? \)")


def test_formulas_are_about_the_words_at_their_positions():
    """Every noun and every verb has its fact, articles and passives are read right."""
    make = runpy.run_path(str(ROOT / "data/make_parsing.py"))
    nouns = {*make["PERSONS"], *make["THINGS"], *make["PLACES"]}
    kinds = [make[kind] for kind in ("INTRANSITIVE", "TRANSITIVE", "DITRANSITIVE", "CLAUSAL")]
    verb_of = {form: verb for verbs in kinds for verb, forms in verbs.items() for form in forms}
    for line in lines("parsing/test.tsv"):
        sentence, formula = line.split("\t")
        words = sentence.split()
        stated, definite = {}, set()
        for fact in formula.split(" AND "):
            name, kind, position, value = FACT.fullmatch(fact).groups()
            place = int(position)
            if name == "definite":
                definite.add(place)
            elif value is None:
                stated[place] = (kind, name)
            elif name in ("on", "in", "beside"):
                assert words[place + 1] == name
            elif name == "theme" and value.startswith("x"):
                assert (words[place - 1] == "was") == (int(value[2:]) < place)
        expected = {i: ("x", word) for i, word in enumerate(words) if word in nouns}
        expected |= {i: ("e", verb_of[word]) for i, word in enumerate(words) if word in verb_of}
        assert stated == expected, line
        assert definite == {i + 1 for i, word in enumerate(words) if word == "the"}, line


def test_inflection_joins_endings_by_its_rules():
    join = runpy.run_path(str(ROOT / "data/make_inflection.py"))["join"]
    expected = {
        ("kurat", "(I)m"): "kuradım",
        ("kurat", "dA"): "kuratta",
        ("geli", "dA"): "gelide",
        ("geli", "(y)I"): "geliyi",
        ("pivüt", "(y)AcAk"): "pivüdecek",
        ("solok", "(I)n"): "soloğun",
        ("sözü", "lAr"): "sözüler",
    }
    assert {pair: join(*pair) for pair in expected} == expected


def test_lemmas_of_held_out_forms_are_unseen():
    splits = [lines(f"inflection/{split}.tsv") for split in ("train", "valid", "test")]
    lemmas = [{line.split("\t")[0] for line in split} for split in splits]
    assert sum(map(len, lemmas)) == len(set.union(*lemmas))
    features = [{line.split("\t")[1] for line in split} for split in splits]
    assert features[1] | features[2] <= features[0]


def test_pronunciation_follows_its_rules():
    phones_of = runpy.run_path(str(ROOT / "data/make_pronunciation.py"))["phones_of"]
    expected = {
        "rafe": "ɹ eɪ f",
        "raf": "ɹ æ f",
        "raffe": "ɹ æ f",
        "chadge": "t͡ʃ æ d͡ʒ",
        "city": "s aɪ t iː",
        "gox": "ɡ ɒ k s",
        "thingy": "θ ɪ ŋ iː",
        "loose": "l uː s",
    }
    assert {word: " ".join(phones_of(word)) for word in expected} == expected
