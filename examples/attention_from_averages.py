"""From the mean of the context to multi-head attention, in five steps.

A position of a sentence should know what stood before it. The simplest summary of the past is its
mean. Every further step keeps the mean and changes only its weights, until the last step is
equation 1 and section 3.2.2 of "Attention Is All You Need" (Vaswani et al. 2017).

    python examples/attention_from_averages.py

B sentences, T positions, Q query positions, M memory positions (those averaged), D size of a
vector, H heads, K size of one head, 1 a dimension kept for broadcasting.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from seq2seq_cli.model.attention import MultiHeadAttention, attention_weights, causal_mask
from seq2seq_cli.model.packing import Padded


# Step 1. The mean of a position and of all positions before it, as a loop. The loop is easy to
# read, and slow: it has one small operation for each position of each sentence.
def mean_by_loop(x_BTD: Tensor) -> Tensor:
    """Return the mean of positions 0 to t at every position t, BTD."""
    means_BTD = torch.zeros_like(x_BTD)
    for sentence in range(x_BTD.size(0)):
        for t in range(x_BTD.size(1)):
            means_BTD[sentence, t] = x_BTD[sentence, : t + 1].mean(dim=0)
    return means_BTD


# Step 2. A mean is a weighted sum, and weighted sums of rows are a product of matrices. Row t of
# the triangular matrix has ones up to column t; divided by their number, they are the weights.
def mean_by_matrix(x_BTD: Tensor) -> Tensor:
    """Return the same means as one product, BTD."""
    ones_QM = torch.ones(x_BTD.size(1), x_BTD.size(1)).tril()
    weights_QM = ones_QM / ones_QM.sum(dim=1, keepdim=True)
    return weights_QM @ x_BTD


# Step 3. The weights above are positive and sum to one, and softmax turns any scores into such
# weights. Equal scores give equal weights. A score of minus infinity gives a weight of exactly
# zero, because exp(-inf) = 0, and leaves the other weights of its row with a sum of one. (Setting
# weights to zero after the softmax would not: the rest would sum to less than one. A row in which
# every score is minus infinity is 0 / 0 = NaN, so a mask must leave at least one position.)
def masked_softmax(scores_QM: Tensor) -> Tensor:
    """Return the softmax of each row over the positions that are not in the future, QM."""
    visible_QM = torch.ones_like(scores_QM).tril().bool()
    return scores_QM.masked_fill(~visible_QM, -math.inf).softmax(dim=-1)


# Step 4. Now the scores are free, so they can be learned. Here they are parameters, one for each
# pair of positions, and the task is to reproduce the previous position. Gradient descent moves
# the weights from "all of the past equally" to "the position before me".
def learn_scores(length: int, updates: int = 150) -> Tensor:
    """Return the learned weights for the task y[t] = x[t - 1], QM."""
    scores_QM = torch.zeros(length, length, requires_grad=True)
    optimizer = torch.optim.Adam([scores_QM], lr=0.1)
    for _ in range(updates):
        x_BTD = torch.randn(16, length, 8)
        previous_BTD = torch.cat([x_BTD[:, :1], x_BTD[:, :-1]], dim=1)
        loss = F.mse_loss(masked_softmax(scores_QM) @ x_BTD, previous_BTD)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return masked_softmax(scores_QM).detach()


# Step 5. Learned scores for pairs of positions are the same for every sentence, and exist only
# up to the longest sentence of training. Attention computes the score from the content instead:
# each position has a query (what it looks for) and a key (what it offers), and their dot product
# is the score. Division by √K keeps the scores in a useful range (see score_scaling.py). The
# value is what a position contributes to the average. This is equation 1.
def attend(q_BQK: Tensor, k_BMK: Tensor, v_BMK: Tensor) -> Tensor:
    """Return softmax(Q Kᵀ / √K) V under the causal mask, BQK."""
    scores_BQM = q_BQK @ k_BMK.mT / math.sqrt(q_BQK.size(-1))
    visible_QM = torch.ones(scores_BQM.shape[1:]).tril().bool()
    weights_BQM = scores_BQM.masked_fill(~visible_QM, -math.inf).softmax(dim=-1)
    return weights_BQM @ v_BMK


# One average can look for one thing. Multi-head attention computes several, each on its own slice
# of the projected vectors, and a last projection mixes the results (section 3.2.2).
def attend_with_heads(layer: MultiHeadAttention, x_BTD: Tensor) -> Tensor:
    """Return what the layer computes under the causal mask, head by head, BTD."""
    q_BTD, k_BTD, v_BTD = layer.query(x_BTD), layer.key(x_BTD), layer.value(x_BTD)
    size = x_BTD.size(-1) // layer.heads
    head_outputs = []
    for head in range(layer.heads):
        own = slice(head * size, (head + 1) * size)
        head_outputs.append(attend(q_BTD[..., own], k_BTD[..., own], v_BTD[..., own]))
    output_BTD: Tensor = layer.output(torch.cat(head_outputs, dim=-1))
    return output_BTD


def show(weights_QM: Tensor) -> None:
    for row in weights_QM.tolist():
        print("   ", " ".join(f"{weight:4.2f}" if weight else "   ·" for weight in row))


def difference(a: Tensor, b: Tensor) -> str:
    return f"{(a - b).abs().max().item():.1e}"


def main() -> None:
    torch.set_num_threads(1)  # tensors as small as these get slower with more
    torch.manual_seed(0)
    x_BTD = torch.randn(2, 5, 16)

    print("1-3. The mean of the past: a loop, a matrix, and a softmax of masked zeros")
    uniform_QM = masked_softmax(torch.zeros(5, 5))
    show(uniform_QM)
    looped_BTD, softmaxed_BTD = mean_by_loop(x_BTD), uniform_QM @ x_BTD
    print("    largest difference, matrix to loop:", difference(mean_by_matrix(x_BTD), looped_BTD))
    print("    largest difference, softmax to loop:", difference(softmaxed_BTD, looped_BTD))

    print("\n4. Learned weights, for the task of reproducing the previous position")
    show(learn_scores(5))

    print("\n5. Scaled dot-product attention: each sentence has its own weights (head 1)")
    layer = MultiHeadAttention(d_model=16, heads=4, bias=True, dropout=0.0)
    mask_11QM = causal_mask(5, 5, x_BTD.device)
    with torch.no_grad():
        layout = Padded(torch.ones(2, 5, dtype=torch.bool))
        q_BHTK, (k_BHMK, _) = layer.queries_keys_values(x_BTD, layout)
        for weights_HQM in attention_weights(q_BHTK, k_BHMK, mask_11QM):
            show(weights_HQM[0])
            print()
        expected_BTD = layer(x_BTD, layout, mask_11QM)
        by_hand = difference(attend_with_heads(layer, x_BTD), expected_BTD)
    print("    largest difference, four heads by hand to MultiHeadAttention:", by_hand)


if __name__ == "__main__":
    main()
