"""A language model that predicts the next token, with causal attention of one and of four heads.

A decoder-only model is an encoder under a causal mask: self-attention in which no position sees a
later one (Vaswani et al. 2017, section 3.2.3), so that every position of a sentence can be
trained to predict its next word at once. The sentences need a memory: the verb agrees with the
first noun, while the noun before the verb misleads ("the cats near the dog sleep"). A bigram
model, which knows the last word only, cannot know the number.

    python examples/language_model.py

B sentences, T positions, D d_model, V vocabulary.
"""

import math
import random
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq_cli.config.schema import ModelConfig
from seq2seq_cli.model.attention import causal_mask
from seq2seq_cli.model.layers import EncoderLayer
from seq2seq_cli.model.packing import Padded
from seq2seq_cli.model.positions import sinusoidal_positions

NOUNS = ["dog", "cat", "bird", "child"]
PLURALS = ["dogs", "cats", "birds", "children"]
PLACES = ["near", "behind", "with"]
VERBS = ["sleep", "run", "sing", "jump"]
ADVERBS = ["now", "here", "often"]
BEGIN, END = "<s>", "."
VOCABULARY = [BEGIN, END, "the", *NOUNS, *PLURALS, *PLACES, *VERBS, *ADVERBS]
VOCABULARY += [f"{verb}s" for verb in VERBS]
WORDS = 9  # of every sentence: <s> the NOUN PLACE the NOUN VERB ADVERB .


def write_sentence(rng: random.Random) -> list[str]:
    is_plural = rng.random() < 0.5
    noun, other = rng.choice(PLURALS if is_plural else NOUNS), rng.choice(NOUNS + PLURALS)
    verb = rng.choice(VERBS) + ("" if is_plural else "s")
    return [BEGIN, "the", noun, rng.choice(PLACES), "the", other, verb, rng.choice(ADVERBS), END]


# Each choice among n equal possibilities costs ln n nats, and no model can do better than that.
CHOICES = (8, len(PLACES), 8, len(VERBS), len(ADVERBS))
LEAST_LOSS = sum(map(math.log, CHOICES)) / (WORDS - 1)  # nats per token


def agrees(words: list[str]) -> bool:
    """Whether it is a sentence of the language."""
    kinds = [{"the"}, {*NOUNS, *PLURALS}, {*PLACES}, {"the"}, {*NOUNS, *PLURALS}]
    verbs = set(VERBS) if words[2] in PLURALS else {f"{verb}s" for verb in VERBS}
    kinds += [verbs, {*ADVERBS}, {END}]
    return all(word in kind for word, kind in zip(words[1:], kinds, strict=True))


class LanguageModel(nn.Module):
    """embedding + position → causal self-attention, feed-forward → logits of the next word."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        config = ModelConfig(d_model=32, heads=heads, d_ff=64, dropout=0.0)
        self.embedding = nn.Embedding(len(VOCABULARY), config.d_model)
        self.layer = EncoderLayer(config)
        self.projection = nn.Linear(config.d_model, len(VOCABULARY))

    def forward(self, ids_BT: Tensor, is_causal: bool = True) -> Tensor:
        """Return the logits_BTV of the word after each position."""
        length, layout = ids_BT.size(1), Padded(torch.ones_like(ids_BT, dtype=torch.bool))
        x_BTD = self.embedding(ids_BT)
        x_BTD = x_BTD + sinusoidal_positions(0, length, x_BTD.size(-1))
        mask = causal_mask(length, length, ids_BT.device) if is_causal else None
        logits_BTV: Tensor = self.projection(self.layer(x_BTD, layout, mask))
        return logits_BTV


# The text, shifted by one, is its own label. The loss is the mean over all positions.
def loss_of(model: LanguageModel, ids_BT: Tensor) -> Tensor:
    """Return the cross-entropy in nats per token."""
    return F.cross_entropy(model(ids_BT[:, :-1]).flatten(0, 1), ids_BT[:, 1:].flatten())


def train(model: LanguageModel, ids_BT: Tensor, updates: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(updates):
        loss = loss_of(model, ids_BT[torch.randint(len(ids_BT), (64,))])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def bigram_loss(training_BT: Tensor, held_out_BT: Tensor) -> float:
    """Return the loss of counted bigrams, add-one smoothing, in nats per token."""
    counts_VV = torch.ones(len(VOCABULARY), len(VOCABULARY))
    for row in training_BT.tolist():
        for pair in pairwise(row):
            counts_VV[pair] += 1
    log_probs_VV = (counts_VV / counts_VV.sum(dim=1, keepdim=True)).log()
    return -log_probs_VV[held_out_BT[:, :-1], held_out_BT[:, 1:]].mean().item()


# Generation: the model's distribution after the last word, one word drawn, and again.
@torch.no_grad()
def sample(model: LanguageModel, count: int) -> list[list[str]]:
    ids_BT = torch.zeros(count, 1, dtype=torch.int64)
    while ids_BT.size(1) < WORDS:
        next_B1 = torch.multinomial(model(ids_BT)[:, -1].softmax(dim=-1), 1)
        ids_BT = torch.cat([ids_BT, next_B1], dim=1)
    return [[VOCABULARY[id_] for id_ in row] for row in ids_BT.tolist()]


@torch.no_grad()
def change_of_logits(model: LanguageModel, ids_BT: Tensor, is_causal: bool) -> list[str]:
    """Return by how much the logits of each position change with the word at position 5."""
    changed_BT = ids_BT.clone()
    changed_BT[:, 5] = (ids_BT[:, 5] + 1) % len(VOCABULARY)
    change_BTV = (model(changed_BT, is_causal) - model(ids_BT, is_causal)).abs()
    return [f"{change:.2f}" for change in change_BTV.amax(dim=(0, 2)).tolist()]


def main() -> None:
    torch.set_num_threads(1)  # tensors as small as these get slower with more
    torch.manual_seed(0)
    rng = random.Random(1)
    sentences = [write_sentence(rng) for _ in range(1_200)]
    ids_BT = torch.tensor([[VOCABULARY.index(word) for word in words] for words in sentences])
    training_BT, held_out_BT = ids_BT[:1_000], ids_BT[1_000:]
    print("loss on held-out sentences, nats per token")
    print(f"  bigrams            {bigram_loss(training_BT, held_out_BT):.3f}")
    for heads in (1, 4):
        model = LanguageModel(heads)
        train(model, training_BT, updates=150)
        print(f"  {heads}-head attention   {loss_of(model, held_out_BT).item():.3f}")
    print(f"  least possible     {LEAST_LOSS:.3f}")

    sampled = sample(model, 200)
    print(f"\nsampled, {sum(map(agrees, sampled)) / 2:.1f}% in agreement with the grammar")
    for words in sampled[:4]:
        print("  ", " ".join(words[1:]))

    print("\nchange of the logits at positions 0 to 8 if the word at position 5 changes")
    print("  causal mask ", *change_of_logits(model, held_out_BT, is_causal=True))
    print("  without mask", *change_of_logits(model, held_out_BT, is_causal=False))


if __name__ == "__main__":
    main()
