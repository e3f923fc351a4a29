"""Baselines and the lower bound for configs/classification.yaml and configs/continuation.yaml.

python benchmarks/strings.py [--stories FILE]

Classification: accuracy of the most frequent label, and of logistic regression on the words of a
comment, and on its pairs of adjacent words too. Continuation: loss and perplexity of n-gram
models, whose history reaches back into the beginning, and of the generator itself. With --stories,
a file of continuations of the test beginnings, line by line: the share of lines that the generator
can write, which are those without a contradiction.

Letters: N comments, W words, C classes.
"""

import argparse
import math
import runpy
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

DATA = Path(__file__).parent.parent / "data"
LONGEST_NGRAM = 5
WEIGHT_DECAY = 1e-4  # of 1e-5, 1e-4 and 1e-3 the best on the validation text

Pairs = list[tuple[str, str]]


def read(name: str) -> Pairs:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return [(src, tgt) for src, tgt in (line.split("\t") for line in lines)]


# ---- Classification ----


def most_frequent_label(train: Pairs, test: Pairs) -> float:
    """Accuracy in percent."""
    ((label, _),) = Counter(label for _, label in train).most_common(1)
    return 100 * sum(actual == label for _, actual in test) / len(test)


def features_of(comment: str, longest: int) -> list[str]:
    """All sequences of up to `longest` adjacent words."""
    words = comment.split()
    return [
        " ".join(words[start : start + length])
        for length in range(1, longest + 1)
        for start in range(len(words) - length + 1)
    ]


def counts_NW(comments: Iterable[str], columns: dict[str, int], longest: int) -> Tensor:
    """How often each feature that has a column occurs in each comment."""
    rows = []
    for comment in comments:
        row_W = torch.zeros(len(columns))
        for feature in features_of(comment, longest):
            if feature in columns:
                row_W[columns[feature]] += 1
        rows.append(row_W)
    return torch.stack(rows)


def logistic_regression(train: Pairs, test: Pairs, longest: int) -> float:
    """Accuracy in percent of multinomial logistic regression on counts of word sequences."""
    features = sorted({f for comment, _ in train for f in features_of(comment, longest)})
    columns = {feature: column for column, feature in enumerate(features)}
    classes = sorted({label for _, label in train})
    x_NW, unseen_NW = (
        counts_NW((comment for comment, _ in pairs), columns, longest) for pairs in (train, test)
    )
    y_N, actual_N = (
        torch.tensor([classes.index(label) for _, label in pairs]) for pairs in (train, test)
    )
    model = torch.nn.Linear(len(columns), len(classes))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        penalty = WEIGHT_DECAY * model.weight.square().sum()
        total = F.cross_entropy(model(x_NW), y_N) + penalty
        total.backward()
        return total

    optimizer.step(loss)
    return 100 * float((model(unseen_NW).argmax(dim=-1) == actual_N).float().mean())


# ---- Continuation ----


def story_words(beginning: str, continuation: str) -> tuple[list[str], int]:
    """The words of a story with its end, and how many of them are the beginning."""
    return [*beginning.split(), *continuation.split(), "</s>"], len(beginning.split())


class NgramModel:
    """Interpolated n-grams (Witten and Bell 1991, method C): with h' = h without its first word,

    p(w | h) = (count(h w) + types(h) p(w | h')) / (count(h) + types(h)).
    """

    def __init__(self, texts: Sequence[Sequence[str]], order: int) -> None:
        self.order = order
        self.num_words = len({word for text in texts for word in text})
        self.counts: dict[tuple[str, ...], Counter[str]] = {}
        for text in texts:
            for place, word in enumerate(text):
                for size in range(min(order, place + 1)):
                    history = tuple(text[place - size : place])
                    self.counts.setdefault(history, Counter())[word] += 1

    def probability(self, word: str, history: tuple[str, ...]) -> float:
        shorter = self.probability(word, history[1:]) if history else 1 / self.num_words
        if history not in self.counts:
            return shorter
        seen = self.counts[history]
        return (seen[word] + len(seen) * shorter) / (seen.total() + len(seen))

    def log_probability(self, beginning: str, continuation: str) -> float:
        words, start = story_words(beginning, continuation)
        return sum(
            math.log(self.probability(words[i], tuple(words[max(0, i - self.order + 1) : i])))
            for i in range(start, len(words))
        )


def losses(pairs: Pairs, log_probability: Callable[[str, str], float]) -> tuple[float, float]:
    """Nats per story and per word of the continuation, its end included."""
    total = -sum(log_probability(*pair) for pair in pairs)
    num_words = sum(len(continuation.split()) + 1 for _, continuation in pairs)
    return total / len(pairs), total / num_words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stories", type=Path, help="continuations of the test beginnings")
    given = parser.parse_args()
    generator = runpy.run_path(str(DATA / "make_continuation.py"))["log_probability"]
    test = read("continuation/test.tsv")
    if given.stories:
        written = given.stories.read_text(encoding="utf-8").splitlines()
        beginnings = [beginning for beginning, _ in test]
        scores = [generator(*pair) for pair in zip(beginnings, written, strict=True)]
        print(f"possible stories: {100 * sum(map(math.isfinite, scores)) / len(scores):.1f} %")
        return
    comments = read("classification/train.tsv"), read("classification/test.tsv")
    print("| classification | accuracy, % |\n|---|--:|")
    print(f"| most frequent label | {most_frequent_label(*comments):.1f} |")
    print(f"| logistic regression on words | {logistic_regression(*comments, 1):.1f} |")
    print(f"| the same on words and pairs of words | {logistic_regression(*comments, 2):.1f} |")
    texts = [story_words(*pair)[0] for pair in read("continuation/train.tsv")]
    models = {
        f"{n}-grams": NgramModel(texts, n).log_probability for n in range(1, 1 + LONGEST_NGRAM)
    }
    print("\n| continuation | nats per story | nats per word | perplexity |\n|---|--:|--:|--:|")
    for name, log_probability in {**models, "the generator": generator}.items():
        per_story, per_word = losses(test, log_probability)
        print(f"| {name} | {per_story:.2f} | {per_word:.4f} | {math.exp(per_word):.3f} |")


if __name__ == "__main__":
    main()
