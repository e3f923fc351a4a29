"""Write data/parsing: English sentences and what they mean, as formulas of logic.

Each line is `sentence<TAB>formula`, both split into words at spaces. A formula is about six times
as long as its sentence. It has an event for every verb and an entity for every noun, which are
named by the positions of these words, from 0:

    the cat saw Emma .
    definite ( x 1 ) AND cat ( x 1 ) AND see ( e 2 ) AND agent ( e 2 , x 1 ) AND ...

The facts are in the order of the words that they are about. Sentences are active or passive, with
one to three noun phrases, which may have a place ("the cup on the table"), and with up to two
levels of clauses ("Emma said that ..."). The same words have different roles in different
sentences: the subject of a passive is its theme, and a recipient stands before the theme or after
"to". Sentences have at most 20 words. None occurs twice in the three files together, and every word
of valid and test occurs in train. The same seed gives the same bytes.

The idea is that of COGS (Kim and Linzen 2020); grammar, words and formulas are our own.

    python data/make_parsing.py [folder]
    python data/make_parsing.py --large folder

The large corpus has 24,155 sentences to train on, of at most 11 words, and 21 nouns for each one of
the small corpus: cup, big-cup, old-cup and so on. A formula has 44 words on average, and all
together have 681 different ones.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

from tsv_splits import cut, parser_of, write_splits

SEED = 1


class Corpus(NamedTuple):
    """What the two corpora differ in."""

    sizes: dict[str, int]  # in sentences
    longest: int  # words of a sentence
    attributes: tuple[str, ...] = ()  # of nouns, the first part of their names


SMALL = Corpus({"train": 5_000, "valid": 300, "test": 500}, longest=20)
LARGE = Corpus(
    {"train": 24_155, "valid": 1_000, "test": 1_000},
    longest=11,
    attributes=(
        *("", "big-", "small-", "old-", "new-", "red-", "blue-", "green-", "white-", "black-"),
        *("gray-", "clean-", "pretty-", "ugly-", "tall-", "short-", "wet-", "dry-", "heavy-"),
        *("light-", "dear-"),
    ),
)

NAMES = ("Emma", "Liam", "Mia", "Noah", "Ava", "Paul", "Nora", "Tom", "Lena", "Max")
PERSONS = ("girl", "boy", "teacher", "doctor", "farmer", "king", "guest", "driver", "baker", "cat")
THINGS = ("cup", "book", "cake", "box", "lamp", "shoe", "coin", "rose", "key", "letter")
PLACES = ("table", "chair", "shelf", "bed", "car", "garden", "house", "boat", "bench", "stage")
PREPOSITIONS = ("on", "in", "beside")
# The past tense and the participle of each verb.
INTRANSITIVE = {
    "sleep": ("slept", "slept"),
    "laugh": ("laughed", "laughed"),
    "run": ("ran", "run"),
    "wait": ("waited", "waited"),
}
TRANSITIVE = {
    "see": ("saw", "seen"),
    "find": ("found", "found"),
    "clean": ("cleaned", "cleaned"),
    "draw": ("drew", "drawn"),
    "lose": ("lost", "lost"),
    "hold": ("held", "held"),
}
DITRANSITIVE = {
    "give": ("gave", "given"),
    "show": ("showed", "shown"),
    "send": ("sent", "sent"),
    "sell": ("sold", "sold"),
}
CLAUSAL = {
    "say": ("said", "said"),
    "think": ("thought", "thought"),
    "know": ("knew", "known"),
    "hope": ("hoped", "hoped"),
}


class Sentence:
    """A sentence that is being written, and the facts that it states."""

    def __init__(self, rng: random.Random, attributes: Sequence[str] = ()) -> None:
        self._rng = rng
        self._attributes = attributes
        self.words: list[str] = []
        self._facts: list[tuple[int, str]] = []  # with the position of the word that each is about

    def formula(self) -> str:
        """The facts in the order of their words."""
        in_order = sorted(self._facts, key=lambda fact: fact[0])
        return " AND ".join(fact for _, fact in in_order)

    def clause(self, most_clauses: int) -> str:
        """Write a clause; return its event."""
        kinds = [self._intransitive, self._transitive, self._transitive, self._passive]
        kinds += [self._ditransitive, self._passive_ditransitive]
        if most_clauses and self._rng.random() < 0.25:
            return self._clausal(most_clauses)
        return self._rng.choice(kinds)()

    def _intransitive(self) -> str:
        agent = self._person()
        event = self._verb(INTRANSITIVE)
        return self._roles(event, agent=agent)

    def _transitive(self) -> str:
        agent = self._person()
        event = self._verb(TRANSITIVE)
        return self._roles(event, agent=agent, theme=self._anything())

    def _passive(self) -> str:
        theme = self._anything()
        event = self._verb(TRANSITIVE, is_passive=True)
        if self._rng.random() < 0.5:
            self.words.append("by")
            return self._roles(event, agent=self._person(), theme=theme)
        return self._roles(event, theme=theme)

    def _ditransitive(self) -> str:
        agent = self._person()
        event = self._verb(DITRANSITIVE)
        if self._rng.random() < 0.5:
            recipient = self._person()
            return self._roles(event, agent=agent, theme=self._thing(), recipient=recipient)
        theme = self._thing()
        self.words.append("to")
        return self._roles(event, agent=agent, theme=theme, recipient=self._person())

    def _passive_ditransitive(self) -> str:
        theme = self._thing()
        event = self._verb(DITRANSITIVE, is_passive=True)
        self.words.append("to")
        return self._roles(event, theme=theme, recipient=self._person())

    def _clausal(self, most_clauses: int) -> str:
        agent = self._person()
        event = self._verb(CLAUSAL)
        self.words.append("that")
        return self._roles(event, agent=agent, content=self.clause(most_clauses - 1))

    def _verb(self, verbs: dict[str, tuple[str, str]], *, is_passive: bool = False) -> str:
        """Write a verb; return its event."""
        verb = self._rng.choice(list(verbs))
        past, participle = verbs[verb]
        self.words += ["was", participle] if is_passive else [past]
        event = f"e {len(self.words) - 1}"
        self._state(event, f"{verb} ( {event} )")
        return event

    def _roles(self, event: str, **roles: str) -> str:
        """State who does what in an event, and return it."""
        for role in sorted(roles):
            self._state(event, f"{role} ( {event} , {roles[role]} )")
        return event

    def _anything(self) -> str:
        return self._thing() if self._rng.random() < 0.5 else self._person()

    def _person(self) -> str:
        if self._rng.random() < 0.4:
            self.words.append(self._rng.choice(NAMES))
            return self.words[-1]
        return self._noun_phrase(PERSONS)

    def _thing(self) -> str:
        return self._noun_phrase(THINGS)

    def _noun_phrase(self, nouns: Sequence[str], most_places: int = 2) -> str:
        """Write a noun with an article, and perhaps where it is; return its entity."""
        article, noun = self._rng.choice(("a", "the")), self._rng.choice(nouns)
        if self._attributes:
            noun = self._rng.choice(self._attributes) + noun
        self.words += [article, noun]
        entity = f"x {len(self.words) - 1}"
        if article == "the":
            self._state(entity, f"definite ( {entity} )")
        self._state(entity, f"{noun} ( {entity} )")
        if most_places and self._rng.random() < 0.15:
            preposition = self._rng.choice(PREPOSITIONS)
            self.words.append(preposition)
            place = self._noun_phrase(PLACES, most_places - 1)
            self._state(entity, f"{preposition} ( {entity} , {place} )")
        return entity

    def _state(self, subject: str, fact: str) -> None:
        self._facts.append((int(subject.split()[1]), fact))


def draw_pair(rng: random.Random, attributes: Sequence[str] = ()) -> tuple[str, str]:
    """A sentence and its formula."""
    sentence = Sentence(rng, attributes)
    sentence.clause(most_clauses=2)
    return " ".join([*sentence.words, "."]), sentence.formula()


def make_splits(seed: int = SEED, corpus: Corpus = SMALL) -> dict[str, list[tuple[str, str]]]:
    """All three files as (sentence, formula) pairs; no sentence occurs twice."""
    rng = random.Random(seed)
    formula_of: dict[str, str] = {}
    while len(formula_of) < sum(corpus.sizes.values()):
        sentence, formula = draw_pair(rng, corpus.attributes)
        if len(sentence.split()) <= corpus.longest:
            assert formula_of.setdefault(sentence, formula) == formula, "two formulas"
    pairs = list(formula_of.items())
    return cut(pairs, corpus.sizes)


def check_splits(splits: dict[str, list[tuple[str, str]]], corpus: Corpus = SMALL) -> None:
    """Assert what the module's docstring promises."""
    assert {name: len(pairs) for name, pairs in splits.items()} == corpus.sizes
    sentences = [sentence for pairs in splits.values() for sentence, _ in pairs]
    assert len(set(sentences)) == len(sentences), "a sentence occurs twice"
    for side in (0, 1):
        seen = {word for pair in splits["train"] for word in pair[side].split()}
        held_out = (pair for name in ("valid", "test") for pair in splits[name])
        used = {word for pair in held_out for word in pair[side].split()}
        assert used <= seen, f"not in train: {used - seen}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the sentences, check them and write them."""
    parser = parser_of("parsing")
    parser.add_argument("--large", action="store_true", help="write the large corpus")
    options = parser.parse_args(arguments)
    corpus = LARGE if options.large else SMALL
    splits = make_splits(corpus=corpus)
    check_splits(splits, corpus)
    write_splits(options.folder, splits, "sentences")


if __name__ == "__main__":
    main()
