"""Write data/classification: comments of hotel guests, and the department that must act on each.

Each line is `comment<TAB>label`. A comment makes one to three statements about different
departments, and each statement is praise or a complaint. The label follows from the complaints:

* kitchen, service, cleaning or reception: the only department that is complained about
* manager: several departments are complained about
* nobody: none is

Counting words does not help, because every form of a statement occurs with praise and with
complaints, and with good and with bad adjectives:

* "the soup was cold", and with the opposite meaning "the soup was not cold", "the soup was anything
  but cold", "nobody could call the soup cold"
* "the soup was cold at first but warm in the end" is praise, the reverse a complaint
* "my friend called the soup cold and i agree" is a complaint, "but i disagree" praise

Statements are joined by "and" or, where praise and complaint meet, by "but", "while" or "although".
Labels are drawn with equal probability. Comments are in lower case without punctuation, no comment
occurs twice in the three files together, and every word of valid and test occurs in train. The same
seed gives the same bytes.

    python data/make_classification.py [folder]
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

from tsv_splits import cut, parse_folder, write_splits

SEED = 1
SIZES = {"train": 4_000, "valid": 300, "test": 600}
LABELS = ("kitchen", "service", "cleaning", "reception", "manager", "nobody")


class Department(NamedTuple):
    """What guests comment on, and the adjectives of praise and complaint, in opposite pairs."""

    nouns: tuple[str, ...]
    opposites: tuple[tuple[str, str], ...]


DEPARTMENTS = {
    "kitchen": Department(
        ("soup", "breakfast", "coffee", "dinner"),
        (("warm", "cold"), ("tasty", "bland"), ("good", "bad")),
    ),
    "service": Department(
        ("waiter", "barman", "waitress", "porter"),
        (("friendly", "rude"), ("quick", "slow"), ("good", "bad")),
    ),
    "cleaning": Department(
        ("room", "bathroom", "carpet", "pool"),
        (("clean", "dirty"), ("spotless", "dusty"), ("good", "bad")),
    ),
    "reception": Department(
        ("bill", "invoice", "booking", "receipt"),
        (("correct", "wrong"), ("complete", "incomplete"), ("good", "bad")),
    ),
}
REPORTERS = ("my friend", "my sister", "our guide")
CONTRASTS = ("but", "while")


def statement(rng: random.Random, department: str, is_complaint: bool) -> str:
    """One clause about a department; its form tells nothing about `is_complaint`."""
    nouns, opposites = DEPARTMENTS[department]
    noun = rng.choice(nouns)
    good, bad = rng.choice(opposites)
    meant, opposite = (bad, good) if is_complaint else (good, bad)
    reporter = rng.choice(REPORTERS)
    return rng.choice(
        (
            f"the {noun} was {meant}",
            f"the {noun} was not {opposite}",
            f"the {noun} was anything but {opposite}",
            f"nobody could call the {noun} {opposite}",
            f"the {noun} was {opposite} at first but {meant} in the end",
            f"{reporter} called the {noun} {meant} and i agree",
            f"{reporter} called the {noun} {opposite} but i disagree",
        )
    )


def join(rng: random.Random, statements: Sequence[tuple[str, bool]]) -> str:
    """The statements with conjunctions; each is a clause and whether it is a complaint."""
    text, was_complaint = statements[0]
    if len(statements) > 1 and statements[1][1] != was_complaint and rng.random() < 0.3:
        text = f"although {text} {statements[1][0]}"
        was_complaint, statements = statements[1][1], statements[1:]
    for clause, is_complaint in statements[1:]:
        conjunction = "and" if is_complaint == was_complaint else rng.choice(CONTRASTS)
        text += f" {conjunction} {clause}"
        was_complaint = is_complaint
    return text


def draw_comment(rng: random.Random) -> tuple[str, str]:
    """A comment and its label."""
    label = rng.choice(LABELS)
    count = rng.choice((2, 2, 3) if label == "manager" else (1, 1, 2, 2, 3))
    departments = rng.sample(list(DEPARTMENTS), count)
    if label == "manager":
        blamed = set(departments[: rng.randint(2, count)])
    elif label == "nobody":
        blamed = set()
    else:
        others = [name for name in departments if name != label]
        departments, blamed = [label, *others[: count - 1]], {label}
    rng.shuffle(departments)
    statements = [(statement(rng, name, name in blamed), name in blamed) for name in departments]
    return join(rng, statements), label


def make_splits(seed: int = SEED) -> dict[str, list[tuple[str, str]]]:
    """All three files as (comment, label) pairs; no comment occurs twice."""
    rng = random.Random(seed)
    label_of: dict[str, str] = {}
    while len(label_of) < sum(SIZES.values()):
        comment, label = draw_comment(rng)
        assert label_of.setdefault(comment, label) == label, "a comment has two labels"
    pairs = list(label_of.items())
    return cut(pairs, SIZES)


def check_splits(splits: dict[str, list[tuple[str, str]]]) -> None:
    """Assert what the module's docstring promises."""
    assert {name: len(pairs) for name, pairs in splits.items()} == SIZES
    comments = [comment for pairs in splits.values() for comment, _ in pairs]
    assert len(set(comments)) == len(comments), "a comment occurs twice"
    seen = {word for comment, _ in splits["train"] for word in comment.split()}
    used = {w for name in ("valid", "test") for comment, _ in splits[name] for w in comment.split()}
    assert used <= seen, f"not in train: {used - seen}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the comments, check them and write them."""
    folder = parse_folder("classification", arguments)
    splits = make_splits()
    check_splits(splits)
    write_splits(folder, splits, "comments")


if __name__ == "__main__":
    main()
