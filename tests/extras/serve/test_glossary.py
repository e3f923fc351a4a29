"""Glossaries: the fast search finds what a naive one finds, in time that is linear in the text."""

from time import process_time

from hypothesis import given
from hypothesis import strategies as st

from seq2seq_cli.extras.serve.glossary import Glossary
from seq2seq_cli.text.words import continues_word

TEXTS = st.text(st.sampled_from("abAB_\u0301.- \n北京"), max_size=30)
TERMS = st.text(st.sampled_from("abA.  北京"), min_size=1, max_size=6).filter(str.strip)


def found_naively(text: str, glossary: dict[str, str]) -> tuple[str, ...]:
    """Look at every part of the text for every term."""

    def is_between_words(place: int) -> bool:
        around = text[max(0, place - 1) : place + 1] if place else ""
        return len(around) < 2 or not all(c == "_" or continues_word(c) for c in around)

    def written(part: str) -> str:
        return " ".join(part.split())

    ends = [place for place in range(len(text) + 1) if is_between_words(place)]
    parts = [(start, end) for start in ends for end in ends if start < end]
    found = [
        (start - end, written(text[start:end]) != written(term), start, end, number, translation)
        for start, end in parts
        if text[start:end] == text[start:end].strip()
        for number, (term, translation) in enumerate(glossary.items())
        if written(text[start:end]).casefold() == written(term).casefold()
    ]
    taken: list[range] = []
    required: dict[str, None] = {}
    for _, _, start, end, _, translation in sorted(found):
        if all(end <= other.start or other.stop <= start for other in taken):
            taken.append(range(start, end))
            required[translation] = None
    return tuple(required)


@given(TEXTS, st.lists(TERMS, max_size=8, unique=True))
def test_terms_are_those_that_a_naive_search_finds(text: str, terms: list[str]):
    glossary = {term: f"{number}" for number, term in enumerate(terms)}
    assert Glossary(glossary).required_in(text) == found_naively(text, glossary)


def test_the_longest_of_overlapping_terms_counts():
    glossary = Glossary({"red": "1", "red wine": "2", "wine glass shop": "3", "Red": "4"})
    assert glossary.required_in("a red  wine") == ("2",)
    assert glossary.required_in("red wine glass shop") == ("3", "1")
    assert glossary.required_in("RED, Red, redder, red_") == ("4", "1")
    assert Glossary({"USB": "1", "北京": "2"}).required_in("我在北京用USB线") == ("1", "2")
    assert Glossary({}).required_in("red") == ()


def test_many_terms_take_as_long_as_one():
    """Terms that begin as the text does, everywhere, and are not in it."""
    text = "a " * 2_500

    def seconds(num_terms: int) -> float:
        glossary = Glossary({f"{'a ' * 97}a{number:03}": "x" for number in range(num_terms)})
        start = process_time()
        assert glossary.required_in(text) == ()
        return process_time() - start

    assert seconds(200) < 10 * max(seconds(1), 0.01)
