"""The gradients of attention, derived by hand and compared with autograd.

The derivation needs two rules. If Y = A B, and dY is the gradient of the loss with respect to Y,
then dA = dY Bᵀ and dB = Aᵀ dY. The softmax has the Jacobian ∂p_i / ∂s_j = p_i (δ_ij - p_j). The
computation is equation 1 of "Attention Is All You Need" (Vaswani et al. 2017), then its section
3.2.2 with several heads, a batch and a mask. The functions below do not use autograd.

    python examples/attention_gradients.py

B sentences, T positions, Q query positions, M memory positions, D d_model, H heads, K size of one
head, 1 a dimension kept for broadcasting.
"""

import math

import torch
from torch import Tensor

from seq2seq_cli.model.attention import MultiHeadAttention, causal_mask, padding_mask
from seq2seq_cli.model.packing import Padded

Tensors = dict[str, Tensor]


def softmax_jacobian(p_M: Tensor) -> Tensor:
    """Return ∂p_i / ∂s_j = p_i (δ_ij - p_j) as a matrix, MM."""
    return torch.diag(p_M) - torch.outer(p_M, p_M)


# The Jacobian is symmetric, so ds = J dp. Multiplied out, ds_j = p_j (dp_j - Σ_i p_i dp_i): no
# matrix is needed. A masked position has p_j = 0, and so its score gets no gradient.
def softmax_backward(p_QM: Tensor, dp_QM: Tensor) -> Tensor:
    """Return ds from dp, for any number of rows."""
    return p_QM * (dp_QM - (p_QM * dp_QM).sum(dim=-1, keepdim=True))


# Attention from Q, K and V. The names are those of one head without a batch; the functions work
# as they are if sentences and heads come before: .mT transposes the last two dimensions.
def attention(q_QK: Tensor, k_MK: Tensor, v_MK: Tensor, mask_QM: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights P = softmax(Q Kᵀ / √K), and O = P V."""
    scores_QM = (q_QK @ k_MK.mT / math.sqrt(q_QK.size(-1))).masked_fill(~mask_QM, -math.inf)
    p_QM = scores_QM.softmax(dim=-1)
    return p_QM, p_QM @ v_MK


# Backwards, in the reverse order of the forward computation:
#   O = P V            dV = Pᵀ dO,  dP = dO Vᵀ
#   P = softmax(S)     dS = softmax_backward(P, dP)
#   S = Q Kᵀ / √K      dQ = dS K / √K,  dK = dSᵀ Q / √K
def attention_backward(
    q_QK: Tensor, k_MK: Tensor, v_MK: Tensor, p_QM: Tensor, do_QK: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dQ, dK and dV."""
    dv_MK = p_QM.mT @ do_QK
    ds_QM = softmax_backward(p_QM, do_QK @ v_MK.mT) / math.sqrt(q_QK.size(-1))
    return ds_QM @ k_MK, ds_QM.mT @ q_QK, dv_MK


# A projection is y = x Wᵀ + b at every position. The gradients of W and b are sums over positions
# and sentences, because all of them share the same W and b.
def linear_backward(x_BTD: Tensor, weight_DD: Tensor, dy_BTD: Tensor) -> tuple[Tensor, ...]:
    """Return dx, dW and db."""
    dweight_DD = dy_BTD.flatten(0, -2).mT @ x_BTD.flatten(0, -2)
    return dy_BTD @ weight_DD, dweight_DD, dy_BTD.flatten(0, -2).sum(dim=0)


def split(x_BTD: Tensor, heads: int) -> Tensor:
    return x_BTD.view(*x_BTD.shape[:-1], heads, -1).transpose(-3, -2)


def join(x_BHTK: Tensor) -> Tensor:
    return x_BHTK.transpose(-3, -2).flatten(-2)


# Self-attention with all of its projections. One head is the case of heads = 1.
def self_attention_gradients(
    weights: Tensors, x_BTD: Tensor, mask_B1QM: Tensor, heads: int, dy_BTD: Tensor
) -> Tensors:
    """Return the gradient of every parameter, by name, and that of the input as "x"."""
    projected = {
        name: split(x_BTD @ weights[f"{name}.weight"].mT + weights[f"{name}.bias"], heads)
        for name in ("query", "key", "value")
    }
    q_BHTK, k_BHTK, v_BHTK = projected.values()
    p_BHQM, o_BHTK = attention(q_BHTK, k_BHTK, v_BHTK, mask_B1QM)

    gradients = {}
    do_BTD, *gradients_of_output = linear_backward(join(o_BHTK), weights["output.weight"], dy_BTD)
    gradients["output.weight"], gradients["output.bias"] = gradients_of_output
    inner = attention_backward(q_BHTK, k_BHTK, v_BHTK, p_BHQM, split(do_BTD, heads))
    # The input feeds three projections, so its gradient is the sum of theirs.
    gradients["x"] = torch.zeros_like(x_BTD)
    for name, d_BHTK in zip(projected, inner, strict=True):
        dx_BTD, dweight_DD, dbias_D = linear_backward(
            x_BTD, weights[f"{name}.weight"], join(d_BHTK)
        )
        gradients["x"] += dx_BTD
        gradients[f"{name}.weight"], gradients[f"{name}.bias"] = dweight_DD, dbias_D
    return gradients


def autograd_gradients(
    layer: MultiHeadAttention, x_BTD: Tensor, mask_B1QM: Tensor, dy_BTD: Tensor
) -> Tensors:
    """Return the same gradients from the package's attention by autograd."""
    x_BTD = x_BTD.clone().requires_grad_()
    layout = Padded(torch.ones(x_BTD.shape[:2], dtype=torch.bool))
    y_BTD = layer(x_BTD, layout, mask_B1QM)
    inputs = {"x": x_BTD, **dict(layer.named_parameters())}
    return dict(zip(inputs, torch.autograd.grad(y_BTD, list(inputs.values()), dy_BTD), strict=True))


def difference(a: Tensor, b: Tensor) -> str:
    return f"{(a - b).abs().max().item():.1e}"


def main() -> None:
    torch.manual_seed(0)
    print("largest differences between the gradients by hand and by autograd")

    print("\nsoftmax, 5 scores in fp64")
    scores_M, dp_M = torch.randn(2, 5, dtype=torch.float64)
    p_M = scores_M.softmax(dim=0)
    expected_MM = torch.func.jacrev(lambda s_M: s_M.softmax(dim=0))(scores_M)
    print("  Jacobian            ", difference(softmax_jacobian(p_M), expected_MM))
    print("  without the matrix  ", difference(softmax_backward(p_M, dp_M), expected_MM @ dp_M))

    print("\none head, no batch, causal mask, fp64")
    q_TK, k_TK, v_TK, do_TK = torch.randn(4, 6, 8, dtype=torch.float64)
    mask_TT = causal_mask(6, 6, q_TK.device)[0, 0]
    q, k, v = (x.clone().requires_grad_() for x in (q_TK, k_TK, v_TK))
    by_autograd = torch.autograd.grad(attention(q, k, v, mask_TT)[1], (q, k, v), do_TK)
    p_TT, _ = attention(q_TK, k_TK, v_TK, mask_TT)
    by_hand = attention_backward(q_TK, k_TK, v_TK, p_TT, do_TK)
    for name, ours, expected in zip("QKV", by_hand, by_autograd, strict=True):
        print(f"  {name:<20}", difference(ours, expected))

    print("\nMultiHeadAttention: 4 heads, 3 sentences, causal and padding mask, fp32")
    layer = MultiHeadAttention(d_model=16, heads=4, bias=True, dropout=0.0)
    ids_BT = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 0, 0], [5, 0, 0, 0, 0]])
    mask_B1TT = padding_mask(ids_BT, pad_id=0) & causal_mask(5, 5, ids_BT.device)
    x_BTD, dy_BTD = torch.randn(2, 3, 5, 16)
    found = autograd_gradients(layer, x_BTD, mask_B1TT, dy_BTD)
    weights = {name: weight.detach() for name, weight in layer.named_parameters()}
    for name, gradient in self_attention_gradients(weights, x_BTD, mask_B1TT, 4, dy_BTD).items():
        print(f"  {name:<20}", difference(gradient, found[name]))


if __name__ == "__main__":
    main()
