"""Label-smoothed cross-entropy of the output layer's predictions, without padding.

R positions, N target tokens, P those filled up to whole chunks, C of a chunk, D d_model, V target
vocabulary.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seq2seq_cli.data.batches import IGNORE_INDEX, Batch
from seq2seq_cli.model.device import activation_dtype
from seq2seq_cli.model.packing import BatchLayout, Packed, Padded
from seq2seq_cli.model.transformer import Transformer

_CHUNK_ELEMENTS = 8 << 20  # logits held at once
_CHUNK_STEP = 64  # chunks are a multiple of it: few shapes of matrix products, see Packed


class Losses(NamedTuple):
    """Sums over the target tokens of a batch, in nats."""

    total: Tensor  # to differentiate
    metrics: Mapping[str, Tensor] = MappingProxyType({})  # further ones to log, by name


class BatchLoss(nn.Module):
    """The training loss of a whole batch: a model with its batch layout and its precision."""

    passes = 1  # over each batch
    metrics: tuple[str, ...] = ()  # names of the further sums that it returns

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

    def forward(self, batch: Batch) -> Losses:
        with self.states_and_labels(batch.to(self.model.device)) as (states_RD, labels_R):
            weight_VD = self.model.projection.weight
            return Losses(sequence_loss(states_RD, weight_VD, labels_R, self.label_smoothing))

    def cross_entropy(self, total: float, metrics: Mapping[str, float]) -> float:
        """Return the part of the sum that is logged as the loss."""
        return total

    @contextmanager
    def states_and_labels(self, batch: Batch, *cut: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Run the model, and the block, in the precision of training.

        Gives the input of the projection, RD, and the label of each position, R. `cut`: as for
        `Transformer.forward_hidden`.
        """
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.use_bf16):
            states_BTD, layout = self._states(batch.src_BS, batch.tgt_in_BT, self.layout, *cut)
            labels_BT = layout.pack_ids(batch.labels_BT, IGNORE_INDEX)
            yield states_BTD.flatten(0, 1), labels_BT.flatten()


def sequence_loss(
    states_RD: Tensor, projection_VD: Tensor, labels_R: Tensor, label_smoothing: float
) -> Tensor:
    """Cross-entropy in nats of softmax(states projectionᵀ), summed over the target tokens.

    Against (1 - ε) · one-hot + ε / V (Szegedy et al. 2016, section 7); a position whose label is
    IGNORE_INDEX counts nothing. A sum, so that the caller divides once, by all tokens of an update.

    The same as `F.cross_entropy(F.linear(states, projection), labels, ...)`, but without logits
    of padding, without ever holding all logits, and with the gradients computed in the forward
    pass, while a chunk's probabilities are in memory. Under autocast the products are in its type.
    Has no second derivatives.
    """
    dtype = activation_dtype(states_RD)
    loss: Tensor = _SequenceLoss.apply(states_RD, projection_VD, labels_R, label_smoothing, dtype)  # type: ignore[no-untyped-call]
    return loss


class FusedLoss(torch.autograd.Function):
    """A loss whose `forward` computes its gradients too."""

    @staticmethod
    def save(ctx: Any, states_RD: Tensor, rows: Tensor, dx: Tensor, dw_VD: Tensor) -> None:
        """Save the gradients of the given rows of the states, and of the projection."""
        dx_RD = torch.zeros_like(states_RD)
        dx_RD[rows] = dx.to(states_RD.dtype)
        ctx.save_for_backward(dx_RD, dw_VD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        dx_RD, dw_VD = ctx.saved_tensors
        return dx_RD.mul_(gradient), dw_VD.mul_(gradient), None, None, None, None


class _SequenceLoss(FusedLoss):
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
        tokens_N = (labels_R != IGNORE_INDEX).nonzero()[:, 0]
        y_N, x_ND = labels_R[tokens_N], states_RD[tokens_N]
        dw_VD = torch.zeros_like(projection_VD)
        w_VD = projection_VD.to(dtype)
        x_PD = filled_up(x_ND.to(dtype))
        dx_PD = torch.empty_like(x_PD)
        logit_y_N, p_y_N = x_ND.new_zeros(2, len(x_ND), dtype=torch.float32)
        with torch.autocast(x_ND.device.type, enabled=False):
            for chunk in chunks(x_PD, len(w_VD)):
                y_C1 = y_N[chunk, None]
                logits_CV = x_PD[chunk] @ w_VD.T
                logit_y_N[chunk] = logits_CV[: len(y_C1)].gather(1, y_C1)[:, 0]
                p_CV = torch.softmax(logits_CV, dim=-1)
                del logits_CV
                p_CV[len(y_C1) :] = 0
                p_y_N[chunk] = p_CV[: len(y_C1)].gather(1, y_C1)[:, 0]
                dx_PD[chunk] = p_CV @ w_VD
                dw_VD += p_CV.T @ x_PD[chunk]
            log_p_y_N = log_probabilities(p_y_N, x_ND.to(dtype), w_VD, y_N)
            x_ND, dx_ND = x_ND.float(), dx_PD[: len(x_ND)].float()
            sum_x_D, sum_w_D = x_ND.sum(0), projection_VD.sum(0)
            uniform = smoothing / len(w_VD)
            loss: Tensor = (smoothing * logit_y_N - log_p_y_N).sum()
            loss -= uniform * (sum_x_D @ sum_w_D)
            dx_ND -= uniform * sum_w_D
            dx_ND -= (1 - smoothing) * projection_VD[y_N]
            dw_VD -= uniform * sum_x_D
            dw_VD.index_add_(0, y_N, x_ND, alpha=smoothing - 1)
        FusedLoss.save(ctx, states_RD, tokens_N, dx_ND, dw_VD)
        return loss


def filled_up(x_ND: Tensor) -> Tensor:
    """Return x with rows of zeros, PD, so that all chunks are multiples of `_CHUNK_STEP`.

    With more dimensions in front, each of these matrices.
    """
    *front, num_rows, d_model = x_ND.shape
    length = -(-num_rows // _CHUNK_STEP) * _CHUNK_STEP
    x_PD = x_ND.new_zeros(*front, length, d_model)
    x_PD[..., :num_rows, :] = x_ND
    return x_PD


def chunks(x_PD: Tensor, vocabulary: int) -> list[slice]:
    """Split the rows of x, and of any matrices in front, for `_CHUNK_ELEMENTS` logits at once."""
    passes = x_PD.shape[:-2].numel()
    size = max(_CHUNK_ELEMENTS // (passes * vocabulary) // _CHUNK_STEP, 1) * _CHUNK_STEP
    return [slice(start, start + size) for start in range(0, x_PD.size(-2), size)]


def log_probabilities(p_y_N: Tensor, x_ND: Tensor, w_VD: Tensor, y_N: Tensor) -> Tensor:
    """Return the logarithms of the labels' probabilities.

    If training diverges, one may underflow, which has a logarithm all the same.
    """
    log_p_y_N = p_y_N.log()
    underflown = (p_y_N < torch.finfo(torch.float32).tiny).nonzero()[:, 0]
    for n_C in torch.split(underflown, max(_CHUNK_ELEMENTS // len(w_VD), 1)):
        log_p_CV = (x_ND[n_C] @ w_VD.T).float().log_softmax(dim=-1)
        log_p_y_N[n_C] = log_p_CV.gather(1, y_N[n_C, None])[:, 0]
    return log_p_y_N
