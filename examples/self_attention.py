"""Self-attention as a module, in four versions that give the same numbers.

1. Separate projections for queries, keys and values.
2. One fused projection for all three: one large product, as the package computes it.
3. With dropout on the weights, an output projection and a mask.
4. Multi-head (Vaswani et al. 2017, section 3.2.2), with one mask broadcast over all heads. The
   usual mistake, a mask repeated in the wrong order, is shown beside it.

    python examples/self_attention.py

B sentences, T positions, Q query positions, M memory positions, D size of a vector, H heads,
K size of one head, 1 a dimension kept for broadcasting.
"""

import math

import torch
from torch import Tensor, nn

from seq2seq_cli.model.attention import MultiHeadAttention, padding_mask
from seq2seq_cli.model.packing import Padded


def attend(q_QK: Tensor, k_MK: Tensor, v_MK: Tensor, mask_QM: Tensor | None = None) -> Tensor:
    """Return softmax(Q Kᵀ / √K) V; sentences and heads may come before the dimensions QK."""
    scores_QM = q_QK @ k_MK.mT / math.sqrt(q_QK.size(-1))
    if mask_QM is not None:
        scores_QM = scores_QM.masked_fill(~mask_QM, -math.inf)
    return scores_QM.softmax(dim=-1) @ v_MK


class SeparateProjections(nn.Module):
    """Version 1: softmax(Q Kᵀ / √D) V with three matrices, as equation 1 is written."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return attend(self.query(x_BTD), self.key(x_BTD), self.value(x_BTD))


def fuse(query: nn.Linear, key: nn.Linear, value: nn.Linear) -> nn.Linear:
    """Return one projection to queries, keys and values: the three matrices below one another."""
    fused = nn.Linear(query.in_features, 3 * query.out_features)
    with torch.no_grad():
        fused.weight.copy_(torch.cat([query.weight, key.weight, value.weight]))
        fused.bias.copy_(torch.cat([query.bias, key.bias, value.bias]))
    return fused


class FusedProjection(nn.Module):
    """Version 2: the input is read once, for one product that is three times as large."""

    def __init__(self, query_key_value: nn.Linear) -> None:
        super().__init__()
        self.query_key_value = query_key_value

    def forward(self, x_BTD: Tensor) -> Tensor:
        return attend(*self.query_key_value(x_BTD).chunk(3, dim=-1))


class FullAttention(nn.Module):
    """Versions 3 (one head) and 4 (several): with dropout, output projection and mask.

    Dropout acts on the weights after the softmax: in training, a query loses some of its memory.
    """

    def __init__(
        self, query_key_value: nn.Linear, output: nn.Linear, heads: int, dropout: float
    ) -> None:
        super().__init__()
        self.query_key_value, self.output = query_key_value, output
        self.heads = heads
        self.dropout = nn.Dropout(dropout)

    def split(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, BHTK: head h has the h-th part of every vector."""
        states = self.query_key_value(x_BTD).chunk(3, dim=-1)
        q, k, v = (s.view(*s.shape[:2], self.heads, -1).transpose(1, 2) for s in states)
        return q, k, v

    def forward(self, x_BTD: Tensor, mask_B1QM: Tensor) -> Tensor:
        q_BHTK, k_BHTK, v_BHTK = self.split(x_BTD)
        scores_BHQM = q_BHTK @ k_BHTK.mT / math.sqrt(q_BHTK.size(-1))
        # The mask has size 1 where the scores have the heads, so it serves every head of its own
        # sentence. Nothing is copied, and nothing can be mixed up.
        weights_BHQM = scores_BHQM.masked_fill(~mask_B1QM, -math.inf).softmax(dim=-1)
        heads_BHTK = self.dropout(weights_BHQM) @ v_BHTK
        output_BTD: Tensor = self.output(heads_BHTK.transpose(1, 2).flatten(2))
        return output_BTD


# Some implementations merge sentences and heads into one dimension of size B·H, and then need a
# copy of the mask for every head. In the merged dimension the heads of a sentence are neighbours:
# row b·H + h is head h of sentence b. `mask.repeat(H, 1, 1)` repeats the whole batch instead, and
# its row h·B + b is sentence b. `repeat_interleave(H, dim=0)` would be the matching order.
def attend_merged(layer: FullAttention, x_BTD: Tensor, merged_mask: Tensor) -> Tensor:
    """Return the layer's output, BTD; `merged_mask` has the shape (B·H, 1 or Q, M)."""
    q, k, v = (states_BHTK.flatten(0, 1) for states_BHTK in layer.split(x_BTD))
    merged = attend(q, k, v, merged_mask)
    heads_BHTK = merged.view(len(x_BTD), layer.heads, *merged.shape[1:])
    output_BTD: Tensor = layer.output(heads_BHTK.transpose(1, 2).flatten(2))
    return output_BTD


def difference(a: Tensor, b: Tensor) -> str:
    return f"{(a - b).abs().max().item():.1e}"


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    ids_BT = torch.tensor([[5, 6, 7, 8], [9, 4, 0, 0]])  # the second sentence is padded with 0
    x_BTD, mask_B11M = torch.randn(2, 4, 12), padding_mask(ids_BT, pad_id=0)

    separate = SeparateProjections(12)
    fused = FusedProjection(fuse(separate.query, separate.key, separate.value))
    print("largest differences between outputs")
    print("  versions 1 and 2:", difference(separate(x_BTD), fused(x_BTD)))

    single = FullAttention(fused.query_key_value, nn.Linear(12, 12), heads=1, dropout=0.1).eval()
    changed_BTD = x_BTD.where((ids_BT != 0)[..., None], 9.0)
    change_BTD = single(x_BTD, mask_B11M) - single(changed_BTD, mask_B11M)
    print("  version 3 at words, if padding changes:", f"{change_BTD[ids_BT != 0].abs().max():.1e}")

    heads, layout = 3, Padded(ids_BT != 0)
    ours = MultiHeadAttention(12, heads, bias=True, dropout=0.1).eval()
    layer = FullAttention(fuse(ours.query, ours.key, ours.value), ours.output, heads, 0.1).eval()
    output_BTD = layer(x_BTD, mask_B11M)
    expected_BTD = ours(x_BTD, layout, mask_B11M)
    print("  version 4 and MultiHeadAttention:", difference(output_BTD, expected_BTD))

    # With one sentence, or without padding, the mistake changes nothing: a test needs both.
    print(f"\n{heads} heads of 2 sentences, merged: sentence of each row, difference to version 4")
    mask_B1M, number_B11 = mask_B11M[:, 0], torch.arange(2)[:, None, None]
    right = [tensor.repeat_interleave(heads, dim=0) for tensor in (number_B11, mask_B1M)]
    wrong = [tensor.repeat(heads, 1, 1) for tensor in (number_B11, mask_B1M)]
    print("  states                     ", right[0].flatten().tolist())
    for name, (numbers, merged_mask) in (("repeat_interleave", right), ("repeat, wrong", wrong)):
        gap = difference(attend_merged(layer, x_BTD, merged_mask), output_BTD)
        print(f"  masks by {name:<18}", numbers.flatten().tolist(), gap)


if __name__ == "__main__":
    main()
