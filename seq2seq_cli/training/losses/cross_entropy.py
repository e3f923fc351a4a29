"""Label-smoothed cross-entropy of the output layer's predictions, without padding.

R positions of all passes, K passes over the batch (one, or two in `consistency.py`), N target
tokens of a pass, P filled up to whole chunks, C of a chunk, D d_model, V target vocabulary.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from seq2seq_cli.data.batches import IGNORE_INDEX, Batch
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.device import activation_dtype
from seq2seq_cli.model.packing import BatchLayout, LayoutOf, Packed, Padded
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.native import fused

_CHUNK_BYTES = 16 << 20  # logits held at once, more if `_CHUNK_STEPS` need more
_CHUNK_STEP = 64  # chunks are a multiple of it: few shapes of matrix products, see Packed
_CHUNK_STEPS = 4  # at least, of all passes: each product packs the weights, however few the rows


class Losses(NamedTuple):
    """Sums over the target tokens of a batch, in nats."""

    total: Tensor  # to differentiate
    metrics: Mapping[str, Tensor] = MappingProxyType({})  # further ones to log, by name


class BatchLoss(nn.Module):
    """The training loss of a whole batch: a model with its batch layout and its precision."""

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
        with self.projection_inputs(batch.to(self.model.device)) as inputs:
            return Losses(sequence_loss(*inputs, self.label_smoothing))

    def cross_entropy(self, total: float, metrics: Mapping[str, float]) -> float:
        """Return the part of the sum that is logged as the loss."""
        return total

    @contextmanager
    def projection_inputs(
        self, batch: Batch, *cut: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Run the model, and the block, in the precision of training.

        Gives the inputs of the projection, RD, its weights, VD, and the labels, R. `cut`: as for
        `Transformer.forward_hidden`.
        """
        layout_of: LayoutOf = self.layout
        if layout_of is Packed:
            layout_of = functools.partial(Packed, numbers_B=batch.numbers_B)
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.use_bf16):
            states_BTD, layout = self._states(batch.src_BS, batch.tgt_in_BT, layout_of, *cut)
            labels_BT = layout.pack_ids(batch.labels_BT, IGNORE_INDEX)
            states_RD, weights_VD = states_BTD.flatten(0, 1), self.model.projection.weight
            if (bias_V := self.model.projection.bias) is not None:  # the weight of another input, 1
                states_RD = torch.cat([states_RD, torch.ones_like(states_RD[:, :1])], dim=1)
                weights_VD = torch.cat([weights_VD, bias_V[:, None]], dim=1)
            yield states_RD, weights_VD, labels_BT.flatten()


@torch.no_grad()
def check_loss(model: Transformer, batch: Batch) -> None:
    """Raise UserError unless the loss that trains a model is the cross-entropy of its logits.

    After an edit of the model it may be another one: it is computed from the weights of
    `projection`, and by `forward_hidden`.
    """
    model.eval()
    batch = batch.to(model.device)
    loss = BatchLoss(model, label_smoothing=0.0, use_bf16=False)(batch).total
    logits_RV = model(batch.src_BS, batch.tgt_in_BT).flatten(0, 1)
    expected = F.cross_entropy(logits_RV, batch.labels_BT.flatten(), reduction="sum")
    if not torch.allclose(loss, expected, rtol=1e-3):
        raise UserError(
            f"the training loss of the edited model, {loss:.3f} on two pairs, is not the "
            f"cross-entropy of its logits, {expected:.3f}: losses/cross_entropy.py needs the same "
            "edit"
        )


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
    return FusedLoss.apply(states_RD, projection_VD, labels_R, label_smoothing)[0]  # type: ignore[no-untyped-call]


class FusedLoss(torch.autograd.Function):
    """The loss, with its gradients, and log Z [K, N], Z the sums of the exponentials of the logits.

    With p = softmax(W x), y the label and ε the smoothing, of one position::

        loss     = -log p_y + ε (W x)_y - ε / V Σ_v (W x)_v
        d / d Wx = p - (1 - ε) · one-hot - ε / V

    Only p needs products chunk by chunk; the other terms are sums over rows of x or W. The passes
    have `weights`. `to_gradients` gets the logits and p of each chunk, both KCV, and turns p in
    place into the gradients that take its place above.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states_RD: Tensor,
        projection_VD: Tensor,
        labels_R: Tensor,
        smoothing: float,
        weights: Sequence[float] = (1.0,),
        to_gradients: Callable[[Tensor, Tensor], None] | None = None,
    ) -> tuple[Tensor, Tensor]:
        passes = len(weights)
        tokens_KN = (labels_R != IGNORE_INDEX).nonzero()[:, 0].view(passes, -1)
        y_N, x_KND = labels_R[tokens_KN[0]], states_RD[tokens_KN]
        dtype = activation_dtype(states_RD)
        dw_VD, w_VD = torch.zeros_like(projection_VD), projection_VD.to(dtype)
        x_KPD = F.pad(x_KND.to(dtype), (0, 0, 0, -x_KND.size(1) % _CHUNK_STEP))
        dx_KPD = torch.empty_like(x_KPD)
        y_KP = F.pad(y_N, (0, x_KPD.size(1) - len(y_N))).repeat(passes, 1)
        logit_y_KP, log_p_y_KP = x_KPD.new_empty(2, *y_KP.shape, dtype=torch.float32)
        with torch.autocast(x_KND.device.type, enabled=False):
            for chunk in chunks(x_KPD, len(w_VD)):
                x_RD, y_R = x_KPD[:, chunk].flatten(0, 1), y_KP[:, chunk].flatten()
                logits_RV = x_RD @ w_VD.T
                p_RV, *of_labels = fused.softmax(logits_RV, y_R, in_place=to_gradients is None)
                for all_KP, some_R in zip((logit_y_KP, log_p_y_KP), of_labels, strict=True):
                    all_KP[:, chunk] = some_R.view(passes, -1)
                p_KCV, tokens = p_RV.view(passes, -1, len(w_VD)), slice(len(y_N) - chunk.start)
                p_KCV[:, tokens.stop :] = 0
                if to_gradients is not None:
                    to_gradients(logits_RV.view_as(p_KCV)[:, tokens], p_KCV[:, tokens])
                dx_KPD[:, chunk] = (p_RV @ w_VD).view(passes, -1, w_VD.size(1))
                if dtype == dw_VD.dtype:
                    dw_VD.addmm_(p_RV.T, x_RD)  # needs no memory for the product
                else:
                    dw_VD += p_RV.T @ x_RD
                del logits_RV, p_RV, p_KCV  # before memory is taken for the next chunk
            logit_y_KN, log_p_y_KN = logit_y_KP[:, : len(y_N)], log_p_y_KP[:, : len(y_N)]
            dx_KND = dx_KPD[:, : len(y_N)].float()
            weights_K1 = x_KND.new_tensor(weights, dtype=torch.float32)[:, None]
            x_ND = (weights_K1[..., None] * x_KND.float()).sum(0)
            sum_x_D, sum_w_D = x_ND.sum(0), projection_VD.sum(0)
            uniform = smoothing / len(w_VD)
            loss: Tensor = (weights_K1 * (smoothing * logit_y_KN - log_p_y_KN)).sum()
            loss -= uniform * (sum_x_D @ sum_w_D)
            dx_KND -= weights_K1[..., None] * (uniform * sum_w_D)
            dx_KND -= weights_K1[..., None] * ((1 - smoothing) * projection_VD[y_N])
            dw_VD -= uniform * sum_x_D
            dw_VD.index_add_(0, y_N, x_ND, alpha=smoothing - 1)
        dx_RD = torch.zeros_like(states_RD)
        dx_RD[tokens_KN] = dx_KND.to(states_RD.dtype)
        ctx.save_for_backward(dx_RD, dw_VD)
        log_z_KN = logit_y_KN - log_p_y_KN
        ctx.mark_non_differentiable(log_z_KN)
        return loss, log_z_KN

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        dx_RD, dw_VD = ctx.saved_tensors
        return dx_RD.mul_(gradient), dw_VD.mul_(gradient), None, None, None, None


def chunks(x_KPD: Tensor, vocabulary: int) -> list[slice]:
    """Split the rows of x for about `_CHUNK_BYTES` of logits at once."""
    bytes_of_step = len(x_KPD) * vocabulary * x_KPD.element_size() * _CHUNK_STEP
    size = max(_CHUNK_BYTES // bytes_of_step, _CHUNK_STEPS // len(x_KPD), 1) * _CHUNK_STEP
    return [slice(start, start + size) for start in range(0, x_KPD.size(1), size)]
