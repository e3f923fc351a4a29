"""A text classifier: self-attention, mean pooling, a linear layer.

The sentences are small reviews. Whether "good" is praise depends on the word before it ("was
good", "was not good"), and another clause may contain a "not" that does not matter. A classifier
that averages word vectors cannot decide this: it knows which words occur, not which belong
together. Attention lets a word's vector take up other words before the average (Vaswani et al.
2017, eq. 1).

    python examples/text_classifier.py

B sentences, T positions, D d_model, C classes, H heads, K size of one head, 1 a dimension kept for
broadcasting.
"""

import random

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq_cli.model.attention import AttentionLog, MultiHeadAttention, padding_mask
from seq2seq_cli.model.packing import Padded
from seq2seq_cli.model.positions import sinusoidal_positions

PAD = 0
THINGS = ["the film", "the soup", "the room", "the music", "the book", "the beach"]
OTHERS = ["we did wait long", "we did stay late", "they did ask us", "she did come too"]
GOOD, BAD = ("good", "great", "lovely"), ("bad", "awful", "boring")
LABELS = ("negative", "positive")


def write_review(rng: random.Random) -> tuple[str, int]:
    """Return a review and its label."""
    is_good_word, is_negated = rng.random() < 0.5, rng.random() < 0.5
    word = rng.choice(GOOD if is_good_word else BAD)
    negation = " not" if is_negated else rng.choice(["", " very"])
    opinion = f"{rng.choice(THINGS)} was{negation} {word}"
    other = rng.choice(OTHERS)
    if rng.random() < 0.5:
        other = other.replace("did", "did not")
    clauses = rng.choice([[opinion], [opinion, other], [other, opinion]])
    return " and ".join(clauses) + " .", int(is_good_word != is_negated)


def write_reviews(count: int, rng: random.Random) -> list[tuple[str, int]]:
    """Return different reviews, sorted only by chance."""
    reviews: dict[str, int] = {}
    while len(reviews) < count:
        text, label = write_review(rng)
        reviews[text] = label
    return list(reviews.items())


class Classifier(nn.Module):
    """embedding + position → (attention) → masked mean → linear."""

    def __init__(self, vocabulary: int, d_model: int, heads: int) -> None:
        """Without heads, the classifier averages word vectors."""
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, d_model, padding_idx=PAD)
        self.attention = (
            MultiHeadAttention(d_model, heads, bias=True, dropout=0.0) if heads else None
        )
        self.linear = nn.Linear(d_model, len(LABELS))

    def forward(self, ids_BT: Tensor, attention_log: AttentionLog | None = None) -> Tensor:
        """Return logits_BC."""
        mask_B11T, layout = padding_mask(ids_BT, PAD), Padded(ids_BT != PAD)
        x_BTD = self.embedding(ids_BT)
        x_BTD = x_BTD + sinusoidal_positions(0, ids_BT.size(1), x_BTD.size(-1))
        if self.attention:
            x_BTD = x_BTD + self.attention(x_BTD, layout, mask_B11T, attention_log=attention_log)
        # The mean of the words only. A mean over all positions would depend on how much padding
        # the longest sentence of the batch happens to cause.
        is_word_BT1 = mask_B11T[:, 0, 0, :, None]
        mean_BD = (x_BTD * is_word_BT1).sum(dim=1) / is_word_BT1.sum(dim=1)
        logits_BC: Tensor = self.linear(mean_BD)
        return logits_BC


def to_batch(reviews: list[tuple[str, int]], vocabulary: list[str]) -> tuple[Tensor, Tensor]:
    """Return padded ids_BT and labels_B."""
    id_of = {word: 1 + number for number, word in enumerate(vocabulary)}
    rows = [torch.tensor([id_of[word] for word in text.split()]) for text, _ in reviews]
    ids_BT = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    return ids_BT, torch.tensor([label for _, label in reviews])


def train(model: Classifier, ids_BT: Tensor, labels_B: Tensor, updates: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(updates):
        chosen_B = torch.randint(len(ids_BT), (64,))
        loss = F.cross_entropy(model(ids_BT[chosen_B]), labels_B[chosen_B])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@torch.no_grad()
def accuracy(model: Classifier, ids_BT: Tensor, labels_B: Tensor) -> float:
    is_right_B: Tensor = model(ids_BT).argmax(dim=-1) == labels_B
    return is_right_B.float().mean().item()


@torch.no_grad()
def show_attention(model: Classifier, text: str, vocabulary: list[str]) -> None:
    """Print the attention of the opinion word, one line for each head."""
    words, log = text.split(), AttentionLog()
    ids_1T, _ = to_batch([(text, 0)], vocabulary)
    probability = model(ids_1T, log).softmax(dim=-1)[0, 1]
    print(f"\n{text!r}: positive with probability {probability:.3f}; weights of each head")
    (query,) = [i for i, word in enumerate(words) if word in GOOD + BAD]
    print("  from", words[query], "to  ", *(f"{word:>6}" for word in words))
    for head, row in enumerate(log[0].weights_BHQM[0, :, query].tolist()):
        print(f"  head {head}{'':{len(words[query])}}   ", *(f"{weight:6.2f}" for weight in row))


def main() -> None:
    torch.set_num_threads(1)  # tensors as small as these get slower with more
    torch.manual_seed(0)
    reviews = write_reviews(1_500, random.Random(1))
    training, held_out = reviews[:1_200], reviews[1_200:]
    vocabulary = sorted({word for text, _ in reviews for word in text.split()})
    test_ids_BT, test_labels_B = to_batch(held_out, vocabulary)
    share = test_labels_B.float().mean().item()
    print(f"{len(held_out)} reviews that are not in the training text, {share:.0%} positive")
    for name, heads in (("mean of word vectors", 0), ("attention, then mean", 2)):
        model = Classifier(1 + len(vocabulary), d_model=32, heads=heads)
        train(model, *to_batch(training, vocabulary), updates=250)
        print(f"  accuracy, {name}: {accuracy(model, test_ids_BT, test_labels_B):.1%}")

    text = "the soup was not good and we did not wait long ."
    show_attention(model, text, vocabulary)
    ids_1T, _ = to_batch([(text, 0)], vocabulary)
    padded_1T = F.pad(ids_1T, (0, 5), value=PAD)
    change = (model(padded_1T) - model(ids_1T)).abs().max().item()
    print(f"\nlargest change of the logits by five positions of padding: {change:.1e}")


if __name__ == "__main__":
    main()
