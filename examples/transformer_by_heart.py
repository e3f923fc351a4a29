"""The whole Transformer learns two sentences by heart, and shows all of its attention.

The model is that of the 2017 paper: post-norm, no biases in the attention, separate embeddings. It
is trained by teacher forcing and translates by greedy search; both loops are written out. Positions
and masks are checked against their definitions (Vaswani et al. 2017, sections 3.5 and 3.2.3). The
command line does the same with `seq2seq train configs/beer.yaml`.

    python examples/transformer_by_heart.py

B sentences, S source positions, T target positions, D d_model, V target vocabulary, H heads,
1 a dimension of size one.
"""

import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from seq2seq_cli.config.schema import ModelConfig
from seq2seq_cli.model.positions import sinusoidal_positions
from seq2seq_cli.model.transformer import Transformer

FOLDER = Path(__file__).parent.parent / "data/beer"
PAD, BOS, EOS = 0, 1, 2
SPECIAL = ["<pad>", "<s>", "</s>"]
CONFIG = {
    "d_model": 64, "heads": 4, "layers": 2, "d_ff": 128, "dropout": 0.0, "norm": "post",
    "attention_bias": False, "embedding_scale": False, "tie_embeddings": False,
}  # fmt: skip


def read(name: str) -> tuple[list[str], list[list[int]]]:
    """Return the vocabulary of a file and its sentences as ids, each ending in EOS."""
    sentences = [line.split() for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]
    vocabulary = SPECIAL + sorted({word for words in sentences for word in words})
    return vocabulary, [[*map(vocabulary.index, words), EOS] for words in sentences]


# Teacher forcing: the decoder gets the right words so far, whatever it would have predicted. Its
# input is the target shifted by one, from BOS to the last word; the labels end in EOS.
def train(model: Transformer, src_BS: Tensor, labels_BT: Tensor, updates: int) -> list[float]:
    """Return the losses, in nats per token."""
    tgt_in_BT = F.pad(labels_BT[:, :-1], (1, 0), value=BOS)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(updates):
        logits_BTV = model(src_BS, tgt_in_BT)
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


# Greedy search: the most probable word is appended to the input, until it is EOS. The whole target
# is decoded again at each step. The package's own search keeps keys and values instead (KV cache).
@torch.no_grad()
def translate(model: Transformer, src: list[int], longest: int = 10) -> list[int]:
    """Return the translation as ids, from BOS to EOS."""
    tgt = [BOS]
    while tgt[-1] != EOS and len(tgt) < longest:
        logits_1TV = model(torch.tensor([src]), torch.tensor([tgt]))
        tgt.append(int(logits_1TV[0, -1].argmax()))
    return tgt


def check_positions(d_model: int) -> float:
    """Return the largest difference to PE(pos, 2i) = sin(pos / 10000^(2i/D)), cosine if odd."""
    differences: list[float] = []
    for pos, row in enumerate(sinusoidal_positions(0, 20, d_model).tolist()):
        for i in range(d_model // 2):
            angle = pos / 10_000 ** (2 * i / d_model)
            differences += [abs(row[2 * i] - math.sin(angle))]
            differences += [abs(row[2 * i + 1] - math.cos(angle))]
    return max(differences)


def check_masks(model: Transformer, src: list[int], tgt_in: list[int]) -> tuple[float, float]:
    """Return the greatest weight on a later word and the greatest weight on padding."""
    padded_1S = torch.tensor([src + 3 * [PAD]])
    attention = model.attention_weights(padded_1S, torch.tensor([tgt_in]))
    later = [weights_BHTT.triu(diagonal=1) for weights_BHTT in attention.decoder]
    on_padding = [weights[..., len(src) :] for weights in attention.encoder + attention.cross]
    greatest_later, greatest_on_padding = (
        max(weights.max().item() for weights in hidden) for hidden in (later, on_padding)
    )
    return greatest_later, greatest_on_padding


def show(weights_TS: Tensor, rows: list[str], columns: list[str]) -> None:
    print(" " * 9, *(f"{word:>7}" for word in columns))
    for word, row in zip(rows, weights_TS.tolist(), strict=True):
        print(f"{word:>9}", *(f"{weight:7.2f}" if weight else f"{'·':>7}" for weight in row))


def main() -> None:
    torch.set_num_threads(1)  # tensors as small as these get slower with more
    torch.manual_seed(0)
    (src_words, src), (tgt_words, tgt) = read("train.de"), read("train.en")
    config = ModelConfig.model_validate(CONFIG)
    model = Transformer(config, len(src_words), len(tgt_words), shared=False, pad_id=PAD)
    losses = train(model, torch.tensor(src), torch.tensor(tgt), updates=60)
    print(f"loss {losses[0]:.3f} before the first update, {losses[-1]:.3f} before the last")
    for ids in src:
        translation = " ".join(tgt_words[id_] for id_ in translate(model, ids)[1:-1])
        print(f"  {' '.join(src_words[id_] for id_ in ids[:-1])} → {translation}")

    tgt_in = [BOS, *tgt[0][:-1]]
    attention = model.attention_weights(torch.tensor(src[:1]), torch.tensor([tgt_in]))
    print("\nall attention weights: layers × sentences × heads × queries × memory")
    for name, layers in attention._asdict().items():
        print(f"  {name:8}", " × ".join(map(str, (len(layers), *layers[0].shape))))
    from_words = [tgt_words[id_] for id_ in tgt_in]
    print("\nself-attention of the decoder, layer 1, head 1: no word sees a later one")
    show(attention.decoder[0][0, 0], from_words, from_words)
    print("\ncross-attention, layer 2, mean of the heads; each row predicts the next word")
    show(attention.cross[1][0].mean(dim=0), from_words, [src_words[id_] for id_ in src[0]])

    print(f"\npositions, largest difference to the formula: {check_positions(config.d_model):.1e}")
    later, on_padding = check_masks(model, src[0], tgt_in)
    print(f"greatest weight on a later word {later}, on padding {on_padding}")


if __name__ == "__main__":
    main()
