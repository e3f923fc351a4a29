"""Label-smoothed cross-entropy of the output layer's predictions, without padding.

With consistency training there are two passes over each batch, and a divergence between their
predictions. R positions, K passes (1 or 2), N target tokens of each, P those filled up to whole
chunks, C of a chunk, D d_model, V target vocabulary.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seq2seq_cli.config.regularization import Consistency
from seq2seq_cli.data.batches import IGNORE_INDEX, Batch
from seq2seq_cli.model.device import activation_dtype
from seq2seq_cli.model.packing import BatchLayout, Packed, Padded
from seq2seq_cli.model.transformer import Cutoff, Transformer
from seq2seq_cli.training.losses.consistency import Terms, draw_cutoff, terms_of, twice

_CHUNK_ELEMENTS = 8 << 20  # logits held at once
_CHUNK_STEP = 64  # chunks are a multiple of it: few shapes of matrix products, see Packed
_ONE_PASS = Terms()


class Losses(NamedTuple):
    """Sums over the target tokens of a batch, in nats."""

    total: Tensor  # to differentiate
    divergence: Tensor  # between the predictions of two passes, with its weight; 0 with one pass


class BatchLoss(nn.Module):
    """The training loss of a whole batch: a model with its batch layout and its precision."""

    def __init__(
        self,
        model: Transformer,
        label_smoothing: float,
        use_bf16: bool,
        compiles: bool = False,
        consistency: Consistency | None = None,
    ) -> None:
        """`compiles`: torch.compile the model, once for batches of any shape, which stay padded."""
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.use_bf16 = use_bf16
        self.consistency = consistency
        self.terms = terms_of(consistency)
        self.layout: type[BatchLayout] = Padded if compiles else Packed
        forward = model.forward_hidden
        self._states = torch.compile(forward, dynamic=True) if compiles else forward

    def forward(self, batch: Batch) -> Losses:
        device = self.model.device
        batch = batch.to(device)
        cutoff = Cutoff()
        if self.consistency is not None:
            batch = twice(batch)
            if self.consistency.cutoff is not None:
                cutoff = Cutoff(
                    draw_cutoff(batch.src_BS, self.consistency.cutoff),
                    draw_cutoff(batch.tgt_in_BT, self.consistency.cutoff),
                )
        with torch.autocast(device.type, torch.bfloat16, enabled=self.use_bf16):
            states_BTD, layout = self._states(batch.src_BS, batch.tgt_in_BT, self.layout, cutoff)
            return sequence_loss(
                states_BTD.flatten(0, 1),
                self.model.projection.weight,
                layout.pack_ids(batch.labels_BT, IGNORE_INDEX).flatten(),
                self.label_smoothing,
                self.terms,
            )


def sequence_loss(
    states_RD: Tensor,
    projection_VD: Tensor,
    labels_R: Tensor,
    label_smoothing: float,
    terms: Terms = _ONE_PASS,
) -> Losses:
    """Cross-entropy in nats of softmax(states projectionᵀ), summed over the target tokens.

    Against (1 - ε) · one-hot + ε / V (Szegedy et al. 2016, section 7); a position whose label is
    IGNORE_INDEX counts nothing. A sum, so that the caller divides once, by all tokens of an update.
    With `terms` of two passes, the first half of the tokens is the first pass, and the second half
    the second one.

    The same as `F.cross_entropy(F.linear(states, projection), labels, ...)`, but without logits
    of padding, without ever holding all logits, and with the gradients made on the way, while a
    chunk's probabilities are at hand. Under autocast the products are in its type. Gives no second
    derivatives.
    """
    total, divergence = _SequenceLoss.apply(  # type: ignore[no-untyped-call]
        states_RD, projection_VD, labels_R, label_smoothing, terms, activation_dtype(states_RD)
    )
    return Losses(total, divergence)


class _SequenceLoss(torch.autograd.Function):
    """With p = softmax(W x), y the label and ε the smoothing, of one position:

    loss     = -log p_y + ε (W x)_y - ε / V Σ_v (W x)_v
    d / d Wx = p - (1 - ε) · one-hot - ε / V

    Only p needs products chunk by chunk; the other terms are sums over rows of x or W. So do the
    divergences of two passes, which `Terms` adds to the gradients of both.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states_RD: Tensor,
        projection_VD: Tensor,
        labels_R: Tensor,
        smoothing: float,
        terms: Terms,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        passes = len(terms.cross_entropy)
        tokens_KN = (labels_R != IGNORE_INDEX).nonzero()[:, 0].view(passes, -1)
        y_N, x_KND = labels_R[tokens_KN[0]], states_RD[tokens_KN]
        dw_VD = torch.zeros_like(projection_VD)
        with torch.autocast(x_KND.device.type, enabled=False):
            sums = _sum_over_vocabulary(x_KND.to(dtype), projection_VD.to(dtype), y_N, terms, dw_VD)
            dx_KND, logit_y_KN, log_p_y_KN, means_KN = sums
            weights_K1 = x_KND.new_tensor(terms.cross_entropy, dtype=torch.float32)[:, None]
            x_ND = (weights_K1[..., None] * x_KND.float()).sum(0)  # of both passes
            sum_x_D, sum_w_D = x_ND.sum(0), projection_VD.sum(0)
            uniform = smoothing / len(projection_VD)
            loss: Tensor = (weights_K1 * (smoothing * logit_y_KN - log_p_y_KN)).sum()
            loss -= uniform * (sum_x_D @ sum_w_D)
            dx_KND = dx_KND.float()
            dx_KND -= weights_K1[..., None] * (uniform * sum_w_D)
            dx_KND -= weights_K1[..., None] * ((1 - smoothing) * projection_VD[y_N])
            dw_VD -= uniform * sum_x_D
            dw_VD.index_add_(0, y_N, x_ND, alpha=smoothing - 1)
            divergence = loss.new_zeros(())
            if passes == 2:
                divergence = terms.divergence(means_KN, logit_y_KN - log_p_y_KN)
        dx_RD = torch.zeros_like(states_RD)
        dx_RD[tokens_KN] = dx_KND.to(states_RD.dtype)
        ctx.save_for_backward(dx_RD, dw_VD)
        ctx.mark_non_differentiable(divergence)
        return loss + divergence, divergence

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Tensor, _: Tensor
    ) -> tuple[Tensor, Tensor, None, None, None, None]:
        dx_RD, dw_VD = ctx.saved_tensors
        return dx_RD.mul_(gradient), dw_VD.mul_(gradient), None, None, None, None


def _sum_over_vocabulary(
    x_KND: Tensor, w_VD: Tensor, y_N: Tensor, terms: Terms, dw_VD: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients KND of the states, and of y the logits and log-probabilities KN.

    The gradients, and those that are added to `dw_VD`, lack what depends on labels and smoothing.
    With two passes, the last of the results are the means of `Terms.add_gradients`.
    """
    passes, num_tokens, d_model = x_KND.shape
    length = -(-num_tokens // _CHUNK_STEP) * _CHUNK_STEP
    x_KPD = x_KND.new_zeros(passes, length, d_model)
    x_KPD[:, :num_tokens] = x_KND
    dx_KPD = torch.empty_like(x_KPD)
    logit_y_KN, p_y_KN, means_KN = x_KND.new_zeros(3, passes, num_tokens, dtype=torch.float32)
    size = max(_CHUNK_ELEMENTS // (passes * len(w_VD)) // _CHUNK_STEP, 1) * _CHUNK_STEP
    for start in range(0, length, size):
        chunk = slice(start, start + size)
        y_KC1 = y_N[chunk, None].expand(passes, -1, 1)
        x_RD = x_KPD[:, chunk].flatten(0, 1)
        logits_RV = x_RD @ w_VD.T
        logits_KCV = logits_RV.view(passes, -1, len(w_VD))[:, : y_KC1.size(1)]
        logit_y_KN[:, chunk] = logits_KCV.gather(2, y_KC1)[..., 0]
        differences_CV = logits_KCV[0] - logits_KCV[1] if passes == 2 else None
        p_RV = torch.softmax(logits_RV, dim=-1)
        del logits_RV, logits_KCV
        p_all_KCV = p_RV.view(passes, -1, len(w_VD))
        p_all_KCV[:, y_KC1.size(1) :] = 0
        p_KCV = p_all_KCV[:, : y_KC1.size(1)]
        p_y_KN[:, chunk] = p_KCV.gather(2, y_KC1)[..., 0]
        if differences_CV is not None:
            means_KN[:, chunk] = terms.add_gradients(p_KCV, differences_CV)
        dx_KPD[:, chunk] = (p_RV @ w_VD).view(passes, -1, d_model)
        dw_VD += p_RV.T @ x_RD
    log_p_y_KN = p_y_KN.log()
    # A probability too small for its type has a logarithm all the same. It is seldom asked for:
    # only where training diverges.
    lost = (p_y_KN < torch.finfo(torch.float32).tiny).nonzero()
    for lost_C2 in lost.split(size):
        k_C, n_C = lost_C2.unbind(1)
        log_p_CV = (x_KND[k_C, n_C] @ w_VD.T).float().log_softmax(dim=-1)
        log_p_y_KN[k_C, n_C] = log_p_CV.gather(1, y_N[n_C, None])[:, 0]
    return dx_KPD[:, :num_tokens], logit_y_KN, log_p_y_KN, means_KN
