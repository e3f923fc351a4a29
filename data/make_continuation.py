"""Write data/continuation: beginnings of little stories and their continuations.

Each line is `beginning<TAB>continuation`. In the beginning two people with a thing each meet:

    Nora had a red kite . Tom had a blue drum . They met at the lake .

In one to four events they give each other things, swap, laugh, sing or dance. The last sentence
says who has what, so a language model has to keep track from the first word to the last:

    Tom gave Nora the blue drum . He sang . In the evening Tom had nothing and Nora had the red kite
    and the blue drum .

`next_sentences` lists every sentence that can come next with its probability. Stories are drawn
from it, and no two sentences of a list have the same text, so the probability of a continuation is
exactly the product of the probabilities of its sentences (`log_probability`). No model can predict
continuations better in the mean: this is the lower bound of the loss, the entropy of the generator
as estimated on those lines.

No beginning occurs twice in the three files together. As whole pairs are left out by their
beginning alone, continuations keep their distribution. Full stops are words of their own. The same
seed gives the same bytes.

    python data/make_continuation.py [folder]
"""

import math
import random
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tsv_splits import cut, parse_folder, write_splits

SEED = 1
SIZES = {"train": 5_000, "valid": 200, "test": 500}

PRONOUNS = {
    "Nora": "She", "Lucy": "She", "Emma": "She", "Clara": "She",
    "Tom": "He", "Felix": "He", "Otto": "He", "Max": "He",
}  # fmt: skip
THINGS = ("kite", "drum", "boat", "ball", "mask", "lamp")
COLOURS = ("red", "blue", "green", "yellow", "white")
PLACES = ("lake", "market", "station", "bridge")
MOODS = ("laughed", "sang", "danced")
MOST_EVENTS = 4
END = 0.3  # the probability that the story ends after an event, if it may go on
KINDS = {"give": 3.0, "swap": 2.0, "mood": 2.0}  # events: how often, where possible
BEGINNING = re.compile(
    r"(\w+) had a (\w+) (\w+) \. (\w+) had a (\w+) (\w+) \. They met at the \w+ \."
)


class Story(NamedTuple):
    """What is true at a point of a story; person 0 and thing 0 are those named first."""

    names: tuple[str, str]
    things: tuple[str, str]
    colours: tuple[str, str]
    owners: tuple[int, int] = (0, 1)  # the person who has each thing
    last_named: int | None = None  # whom "he" or "she" means in the next sentence
    num_events: int = 0
    is_over: bool = False


class Sentence(NamedTuple):
    """A sentence that can come next, and what is true after it."""

    text: str
    probability: float
    story: Story


def gifts(story: Story) -> Iterator[tuple[str, Story]]:
    """Every owner gives each thing to the other person."""
    for thing, owner in enumerate(story.owners):
        giver, taker = story.names[owner], story.names[1 - owner]
        text = f"{giver} gave {taker} the {story.colours[thing]} {story.things[thing]} ."
        owners = [1 - owner if other == thing else story.owners[other] for other in (0, 1)]
        yield text, story._replace(owners=(owners[0], owners[1]), last_named=owner)


def swaps(story: Story) -> Iterator[tuple[str, Story]]:
    """They swap, if each has one thing."""
    first, second = story.owners
    if first != second:
        yield "They swapped .", story._replace(owners=(second, first), last_named=None)


def moods(story: Story) -> Iterator[tuple[str, Story]]:
    """The person of the sentence before does something that changes nothing."""
    if story.last_named is not None:
        pronoun = PRONOUNS[story.names[story.last_named]]
        for mood in MOODS:
            yield f"{pronoun} {mood} .", story


EVENTS = {"give": gifts, "swap": swaps, "mood": moods}


def endings(story: Story) -> Iterator[tuple[str, Story]]:
    """Who has what, beginning with either person."""
    has = []
    for person, name in enumerate(story.names):
        owned = [
            f"the {colour} {thing}"
            for thing, colour, owner in zip(story.things, story.colours, story.owners, strict=True)
            if owner == person
        ]
        has.append(f"{name} had {' and '.join(owned) or 'nothing'}")
    for first, second in (has, reversed(has)):
        yield f"In the evening {first} and {second} .", story._replace(is_over=True)


def next_sentences(story: Story) -> list[Sentence]:
    """Every sentence that can come next; the probabilities sum to 1, or the story is over."""
    if story.is_over:
        return []
    end = {0: 0.0, MOST_EVENTS: 1.0}.get(story.num_events, END)
    choices = [(end, list(endings(story)))]
    possible = {kind: list(events(story)) for kind, events in EVENTS.items()}
    total = sum(KINDS[kind] for kind, events in possible.items() if events)
    for kind, events in possible.items():
        after = [(text, new._replace(num_events=story.num_events + 1)) for text, new in events]
        choices.append(((1 - end) * KINDS[kind] / total, after))
    return [
        Sentence(text, share / len(sentences), new)
        for share, sentences in choices
        for text, new in sentences
        if share > 0
    ]


def read_beginning(text: str) -> Story:
    """The story after its beginning."""
    match = BEGINNING.fullmatch(text)
    assert match, f"not a beginning: {text}"
    first, colour, thing, second, other_colour, other_thing = match.groups()
    return Story((first, second), (thing, other_thing), (colour, other_colour))


def log_probability(beginning: str, continuation: str) -> float:
    """The generator's log-probability of a continuation, in nats; -inf if it is impossible."""
    story, total = read_beginning(beginning), 0.0
    for text in re.findall(r"[^.]+\.?", continuation):
        possible = {sentence.text: sentence for sentence in next_sentences(story)}
        if text.strip() not in possible:
            return -math.inf
        total += math.log(possible[text.strip()].probability)
        story = possible[text.strip()].story
    return total if story.is_over else -math.inf


def draw_beginning(rng: random.Random) -> str:
    """Two people, two things, a place."""
    first, second = rng.sample(list(PRONOUNS), 2)
    thing, other_thing = rng.sample(THINGS, 2)
    return (
        f"{first} had a {rng.choice(COLOURS)} {thing} . "
        f"{second} had a {rng.choice(COLOURS)} {other_thing} . "
        f"They met at the {rng.choice(PLACES)} ."
    )


def draw_continuation(rng: random.Random, beginning: str) -> str:
    """Sentences until the story is over."""
    story, texts = read_beginning(beginning), []
    while sentences := next_sentences(story):
        (sentence,) = rng.choices(sentences, [s.probability for s in sentences])
        texts.append(sentence.text)
        story = sentence.story
    return " ".join(texts)


def make_splits(seed: int = SEED) -> dict[str, list[tuple[str, str]]]:
    """All three files as (beginning, continuation) pairs; no beginning occurs twice."""
    rng = random.Random(seed)
    continuation_of: dict[str, str] = {}
    while len(continuation_of) < sum(SIZES.values()):
        beginning = draw_beginning(rng)
        if beginning not in continuation_of:
            continuation_of[beginning] = draw_continuation(rng, beginning)
    pairs = list(continuation_of.items())
    return cut(pairs, SIZES)


def check_splits(splits: dict[str, list[tuple[str, str]]]) -> None:
    """Assert what the module's docstring promises."""
    assert {name: len(pairs) for name, pairs in splits.items()} == SIZES
    beginnings = [beginning for pairs in splits.values() for beginning, _ in pairs]
    assert len(set(beginnings)) == len(beginnings), "a beginning occurs twice"
    assert all(math.isfinite(log_probability(*pair)) for pair in splits["test"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the stories, check them and write them."""
    folder = parse_folder("continuation", arguments)
    splits = make_splits()
    check_splits(splits)
    write_splits(folder, splits, "stories")


if __name__ == "__main__":
    main()
