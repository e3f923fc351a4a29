"""Pad-ignoring, label-smoothed cross-entropy of the output layer's predictions.

R positions, N of them tokens, P those filled up to whole chunks, C of a chunk, D d_model, V target
vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seq2seq_cli.data.batches import IGNORE_INDEX, Batch
from seq2seq_cli.model.device import activation_dtype
from seq2seq_cli.model.packing import BatchLayout, Packed, Padded
from seq2seq_cli.model.transformer import Transformer

_CHUNK_ELEMENTS = 8 << 20  # logits held at once
_CHUNK_STEP = 64  # chunks are a multiple of it: few shapes of matrix products, see Packed


class BatchLoss(nn.Module):
    """The training loss of a whole batch: a model with its batch layout and its precision."""

    def __init__(
        self, model: Transformer, label_smoothing: float, use_bf16: bool, compiles: bool = False
    ) -> None:
        """`compiles`: torch.compile the model, once for batches of any shape, which stay padded."""
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.use_bf16 = use_bf16
        self.layout: type[BatchLayout] = Padded if compiles else Packed
        forward = model.forward_hidden
        self._states = torch.compile(forward, dynamic=True) if compiles else forward

    def forward(self, batch: Batch) -> Tensor:
        """Nats, summed over the batch's target tokens."""
        device = self.model.device
        batch = batch.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=self.use_bf16):
            states_BTD, layout = self._states(batch.src_BS, batch.tgt_in_BT, self.layout)
            return sequence_loss(
                states_BTD.flatten(0, 1),
                self.model.projection.weight,
                layout.pack_ids(batch.labels_BT, IGNORE_INDEX).flatten(),
                self.label_smoothing,
            )


def sequence_loss(
    states_RD: Tensor, projection_VD: Tensor, labels_R: Tensor, label_smoothing: float
) -> Tensor:
    """Cross-entropy in nats of softmax(states projectionᵀ), summed over the target tokens.

    Against (1 - ε) · one-hot + ε / V (Szegedy et al. 2016, section 7); a position whose label is
    IGNORE_INDEX counts nothing. A sum, so that the caller divides once, by all tokens of an update.

    The same as `F.cross_entropy(F.linear(states, projection), labels, ...)`, but without logits
    of padding, without ever holding all logits, and with the gradients made on the way, while a
    chunk's probabilities are at hand. Under autocast the products are in its type. Gives no second
    derivatives.
    """
    loss: Tensor = _SequenceLoss.apply(  # type: ignore[no-untyped-call]
        states_RD, projection_VD, labels_R, label_smoothing, activation_dtype(states_RD)
    )
    return loss


class _SequenceLoss(torch.autograd.Function):
    """With p = softmax(W x), y the label and ε the smoothing, of one position:

    loss     = -log p_y + ε (W x)_y - ε / V Σ_v (W x)_v
    d / d Wx = p - (1 - ε) · one-hot - ε / V

    Only p needs products chunk by chunk; the other terms are sums over rows of x or W.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states_RD: Tensor,
        projection_VD: Tensor,
        labels_R: Tensor,
        smoothing: float,
        dtype: torch.dtype,
    ) -> Tensor:
        vocabulary = len(projection_VD)
        tokens_N = (labels_R != IGNORE_INDEX).nonzero()[:, 0]
        y_N, x_ND = labels_R[tokens_N], states_RD[tokens_N]
        length = -(-len(y_N) // _CHUNK_STEP) * _CHUNK_STEP
        x_PD = x_ND.new_zeros(length, x_ND.size(1), dtype=dtype)
        x_PD[: len(y_N)] = x_ND
        w_VD = projection_VD.to(dtype)
        dx_PD = torch.empty_like(x_PD)
        dw_VD = torch.zeros_like(projection_VD)
        logit_y_N, p_y_N = torch.empty(2, len(y_N), dtype=torch.float32, device=x_ND.device)
        size = max(_CHUNK_ELEMENTS // vocabulary // _CHUNK_STEP, 1) * _CHUNK_STEP
        with torch.autocast(x_ND.device.type, enabled=False):
            for start in range(0, length, size):
                x_CD = x_PD[start : start + size]
                y_C1 = y_N[start : start + size, None]
                logits_CV = x_CD @ w_VD.T
                logit_y_N[start : start + size] = logits_CV[: len(y_C1)].gather(1, y_C1)[:, 0]
                p_CV = torch.softmax(logits_CV, dim=-1, out=logits_CV)
                p_CV[len(y_C1) :] = 0
                p_y_N[start : start + size] = p_CV[: len(y_C1)].gather(1, y_C1)[:, 0]
                torch.mm(p_CV, w_VD, out=dx_PD[start : start + size])
                dw_VD += p_CV.T @ x_CD
            log_p_y_N = p_y_N.log()
            # A probability too small for its type has a logarithm all the same. It is seldom asked
            # for: only where training diverges.
            lost_N = p_y_N < torch.finfo(torch.float32).tiny
            for lost_C in lost_N.nonzero()[:, 0].split(size):
                log_p_CV = (x_PD[lost_C] @ w_VD.T).float().log_softmax(dim=-1)
                log_p_y_N[lost_C] = log_p_CV.gather(1, y_N[lost_C, None])[:, 0]
            x_ND = x_ND.float()
            sum_x_D, sum_w_D = x_ND.sum(0), projection_VD.sum(0)
            uniform = smoothing / vocabulary
            loss: Tensor = (smoothing * logit_y_N - log_p_y_N).sum()
            loss -= uniform * (sum_x_D @ sum_w_D)
            dx_ND = dx_PD[: len(y_N)].float()
            dx_ND -= uniform * sum_w_D
            dx_ND -= (1 - smoothing) * projection_VD[y_N]
            dw_VD -= uniform * sum_x_D
            dw_VD.index_add_(0, y_N, x_ND, alpha=smoothing - 1)
        dx_RD = torch.zeros_like(states_RD)
        dx_RD[tokens_N] = dx_ND.to(states_RD.dtype)
        ctx.save_for_backward(dx_RD, dw_VD)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        dx_RD, dw_VD = ctx.saved_tensors
        return dx_RD.mul_(gradient), dw_VD.mul_(gradient), None, None, None
