"""The padding mask, the causal mask and both combined, as pictures.

A mask says which positions a query may look at: True where it may. Scores of hidden positions
become minus infinity before the softmax, so that their weights are exactly zero (Vaswani et al.
2017, section 3.2.3). The pictures have a row for each query and a column for each position it
might look at; █ is visible, · is hidden.

    python examples/masks.py
    python examples/masks.py --plot masks.png

B sentences, T positions, Q query positions, M memory positions, 1 a dimension kept for
broadcasting.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from seq2seq_cli.model.attention import attention_weights, causal_mask, padding_mask

PAD = 0
TEXT = Path(__file__).parent.parent / "data/quickstart/test.en"
LINES = (7, 5, 3)  # three sentences of different lengths


# A batch is a rectangle, sentences are not. The shorter ones are filled up with a padding id.
def read_batch() -> tuple[Tensor, list[list[str]]]:
    """Return a padded batch of real sentences as ids, BT, and their words."""
    lines = TEXT.read_text(encoding="utf-8").splitlines()
    sentences = [lines[number].split() for number in LINES]
    vocabulary = sorted({word for sentence in sentences for word in sentence})
    ids = [[1 + vocabulary.index(word) for word in sentence] for sentence in sentences]
    rows = [torch.tensor(row) for row in ids]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD), sentences


def picture(masks_BQM: Tensor, sentences: list[list[str]]) -> str:
    """Return the masks of all sentences side by side; each line begins with its query's word."""
    length = masks_BQM.size(1)
    lines = [""] * length
    for mask_QM, words in zip(masks_BQM.tolist(), sentences, strict=True):
        padded = words + ["(padding)"] * (length - len(words))
        for query, (word, row) in enumerate(zip(padded, mask_QM, strict=True)):
            lines[query] += f"  {word:>10} " + " ".join("█" if visible else "·" for visible in row)
    return "\n".join(lines)


# Every mask has four dimensions, sentences × heads × queries × memory. Where it is the same for
# all heads or all queries, its size there is 1, and broadcasting does the rest:
#
#   padding   (B, 1, 1, M)  depends on the sentence, is the same for every query
#   causal    (1, 1, Q, M)  depends on the query, is the same for every sentence
#   combined  (B, 1, Q, M)  `padding & causal`: visible only where both allow it
def masks_of(ids_BT: Tensor) -> dict[str, Tensor]:
    """Return the three masks of a batch, each broadcast to BQM."""
    length = ids_BT.size(1)
    padding_B11M = padding_mask(ids_BT, PAD)
    causal_11QM = causal_mask(length, length, ids_BT.device)
    masks = {
        "padding mask": padding_B11M,
        "causal mask": causal_11QM,
        "padding and causal mask": padding_B11M & causal_11QM,
    }
    return {name: mask.expand(len(ids_BT), 1, length, length)[:, 0] for name, mask in masks.items()}


# Which mask goes where: the encoder uses the padding mask, for a source word may look ahead. In
# the decoder, a position must not see the words it has yet to predict, so self-attention is
# causal; cross-attention looks at the source, under the source's padding mask. Padding at the end
# of a target needs no mask of its own: it is in the future of every real word.
def padding_is_in_the_future(ids_BT: Tensor) -> bool:
    """Return True if the causal mask alone hides all padding from all real words."""
    masks = masks_of(ids_BT)
    is_word_BQ = ids_BT != PAD
    return torch.equal(
        masks["causal mask"][is_word_BQ], masks["padding and causal mask"][is_word_BQ]
    )


def plot(masks: dict[str, Tensor], file: str) -> None:
    """Save the masks as an image with a row of panels for each sentence."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sentences = len(masks["padding mask"])
    figure, axes = pyplot.subplots(sentences, len(masks), figsize=(8, 8), layout="tight")
    for column, (name, mask_BQM) in enumerate(masks.items()):
        for row, mask_QM in enumerate(mask_BQM):
            axes[row, column].imshow(mask_QM.numpy(), cmap="Blues", vmin=0, vmax=1)
            axes[row, column].set(xlabel="memory", ylabel="query", xticks=(), yticks=())
        axes[0, column].set_title(name)
    figure.savefig(file)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Show the masks of a batch.")
    parser.add_argument("--plot", metavar="FILE", help="also save them as an image (matplotlib)")
    file = parser.parse_args().plot

    ids_BT, sentences = read_batch()
    length = ids_BT.size(1)
    print(f"{len(ids_BT)} sentences, padded to {length} words; as ids, where 0 is padding:")
    for row in ids_BT.tolist():
        print("   ", " ".join(f"{id_:2}" for id_ in row))
    masks = masks_of(ids_BT)
    for name, mask_BQM in masks.items():
        print(f"\n{name}: {', '.join(str(int(m.sum())) for m in mask_BQM)} of {length**2} visible")
        print(picture(mask_BQM, sentences))

    # With equal scores, attention is the mean of the visible positions.
    zeros = torch.zeros(len(ids_BT), 1, length, 4)
    mask_B1QM = masks["padding and causal mask"][:, None]
    weights_B1QM = attention_weights(zeros, zeros, mask_B1QM)
    print("\nweights of equal scores under the combined mask, first sentence")
    for row in weights_B1QM[0, 0].tolist():
        print("   ", " ".join(f"{weight:4.2f}" if weight else "   ·" for weight in row))

    is_hidden = padding_is_in_the_future(ids_BT)
    print("\npadding at the end: hidden from all words by the causal mask alone:", is_hidden)
    is_hidden = padding_is_in_the_future(ids_BT.flip(1))
    print("padding at the beginning: hidden from all words by the causal mask alone:", is_hidden)
    if file:
        plot(masks, file)


if __name__ == "__main__":
    main()
