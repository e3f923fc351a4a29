"""Consistency training: two passes over a batch, whose predictions p and q are to agree.

R-Drop (Liang et al. 2021): -log p(y) - log q(y) + α · (KL(p‖q) + KL(q‖p)) / 2. The passes differ
in their dropout.

SimCut (Gao et al. 2022): -log p(y) + α · KL(p‖q). The second pass also lacks the embeddings of some
tokens. As in the authors' code, gradients go through both passes, and neither positions nor the EOS
of the source and the BOS of the decoder are cut off.

B sentences, T positions of either side; 2 passes, and the other letters of `cross_entropy.py`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seq2seq_cli.config.regularization import Consistency, ConsistencyKind
from seq2seq_cli.config.schema import TrainingConfig
from seq2seq_cli.data.batches import IGNORE_INDEX, Batch
from seq2seq_cli.model.device import activation_dtype
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID
from seq2seq_cli.training.losses.cross_entropy import (
    BatchLoss,
    FusedLoss,
    Losses,
    chunks,
    filled_up,
    log_probabilities,
)


class Terms(NamedTuple):
    """The weights of the terms of a loss."""

    cross_entropy: tuple[float, float]  # of each pass
    forward: float = 0.0  # KL(p‖q)
    backward: float = 0.0  # KL(q‖p)


_KINDS: dict[ConsistencyKind, Terms] = {
    "r_drop": Terms((1.0, 1.0), forward=0.5, backward=0.5),
    "simcut": Terms((1.0, 0.0), forward=1.0),
}


class ConsistencyLoss(BatchLoss):
    """The loss of a whole batch with consistency training."""

    passes = 2
    metrics = ("consistency",)  # the weighted divergence

    def __init__(
        self,
        model: Transformer,
        label_smoothing: float,
        use_bf16: bool,
        compiles: bool = False,
        *,
        consistency: Consistency,
    ) -> None:
        super().__init__(model, label_smoothing, use_bf16, compiles)
        self.cutoff = consistency.cutoff
        self.terms = terms_of(consistency)

    def cross_entropy(self, total: float, metrics: Mapping[str, float]) -> float:
        """Return the cross-entropy; with two passes that count, their mean."""
        return (total - metrics["consistency"]) / sum(self.terms.cross_entropy)

    def forward(self, batch: Batch) -> Losses:
        batch = twice(batch.to(self.model.device))
        cut: list[Tensor] = []
        if self.cutoff is not None:
            cut = [draw_cutoff(ids, self.cutoff) for ids in (batch.src_BS, batch.tgt_in_BT)]
        with self.states_and_labels(batch, *cut) as (states_RD, labels_R):
            weight_VD = self.model.projection.weight
            return two_pass_loss(states_RD, weight_VD, labels_R, self.label_smoothing, self.terms)


def build_loss(
    model: Transformer, config: TrainingConfig, use_bf16: bool, compiles: bool = False
) -> BatchLoss:
    """Return the training loss that the config asks for."""
    if config.consistency is None:
        return BatchLoss(model, config.label_smoothing, use_bf16, compiles)
    given = config.consistency
    return ConsistencyLoss(model, config.label_smoothing, use_bf16, compiles, consistency=given)


def terms_of(consistency: Consistency) -> Terms:
    """Return the terms of the loss, the divergences with the option's weight."""
    terms, weight = _KINDS[consistency.kind], consistency.weight
    return terms._replace(forward=weight * terms.forward, backward=weight * terms.backward)


def twice(batch: Batch) -> Batch:
    """Return a batch for both passes: every pair, and every pair again."""
    src_BS, tgt_in_BT, labels_BT = (
        torch.cat([ids_BT, ids_BT]) for ids_BT in (batch.src_BS, batch.tgt_in_BT, batch.labels_BT)
    )
    return Batch(src_BS, tgt_in_BT, labels_BT, 2 * batch.num_tokens, 2 * batch.num_src_tokens)


def draw_cutoff(ids_BT: Tensor, probability: float) -> Tensor:
    """Return the tokens of the second half of the sentences to cut off, True with a probability."""
    is_cut_BT = torch.rand(ids_BT.shape, device=ids_BT.device) < probability
    is_cut_BT &= (ids_BT != EOS_ID) & (ids_BT != BOS_ID)
    is_cut_BT[: len(ids_BT) // 2] = False
    return is_cut_BT


def two_pass_loss(
    states_RD: Tensor, projection_VD: Tensor, labels_R: Tensor, label_smoothing: float, terms: Terms
) -> Losses:
    """As `sequence_loss`, for two passes: the first half of the tokens, and the second half."""
    total, divergence = _TwoPassLoss.apply(  # type: ignore[no-untyped-call]
        states_RD, projection_VD, labels_R, label_smoothing, terms, activation_dtype(states_RD)
    )
    return Losses(total, {"consistency": divergence})


class _TwoPassLoss(FusedLoss):
    """The weighted cross-entropies of both passes, as in `_SequenceLoss`, and the divergences.

    With d = logits of the first pass - logits of the second and Z the sums of the exponentials of
    the logits, KL(p‖q) = E_p d - log Z_p + log Z_q.
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
        tokens_2N = (labels_R != IGNORE_INDEX).nonzero()[:, 0].view(2, -1)
        y_N, x_2ND = labels_R[tokens_2N[0]], states_RD[tokens_2N]
        dw_VD = torch.zeros_like(projection_VD)
        w_VD = projection_VD.to(dtype)
        x_2PD = filled_up(x_2ND.to(dtype))
        dx_2PD = torch.empty_like(x_2PD)
        logit_y_2N, p_y_2N, means_2N = x_2ND.new_zeros(3, 2, len(y_N), dtype=torch.float32)
        with torch.autocast(x_2ND.device.type, enabled=False):
            for chunk in chunks(x_2PD, len(w_VD)):
                y_2C1 = y_N[chunk, None].expand(2, -1, 1)
                x_RD = x_2PD[:, chunk].flatten(0, 1)
                logits_RV = x_RD @ w_VD.T
                logits_2CV = logits_RV.view(2, -1, len(w_VD))[:, : y_2C1.size(1)]
                logit_y_2N[:, chunk] = logits_2CV.gather(2, y_2C1)[..., 0]
                differences_CV = logits_2CV[0] - logits_2CV[1]
                p_RV = torch.softmax(logits_RV, dim=-1)
                del logits_RV, logits_2CV
                p_all_2CV = p_RV.view(2, -1, len(w_VD))
                p_all_2CV[:, y_2C1.size(1) :] = 0
                p_2CV = p_all_2CV[:, : y_2C1.size(1)]
                p_y_2N[:, chunk] = p_2CV.gather(2, y_2C1)[..., 0]
                means_2N[:, chunk] = _to_gradients(p_2CV, differences_CV, terms)
                dx_2PD[:, chunk] = (p_RV @ w_VD).view(2, -1, w_VD.size(1))
                dw_VD += p_RV.T @ x_RD
            rows_RD = x_2ND.flatten(0, 1).to(dtype)
            log_p_y_2N = log_probabilities(p_y_2N.flatten(), rows_RD, w_VD, y_N.repeat(2))
            log_p_y_2N = log_p_y_2N.view(2, -1)
            dx_2ND = dx_2PD[:, : len(y_N)].float()
            weights_21 = x_2ND.new_tensor(terms.cross_entropy, dtype=torch.float32)[:, None]
            x_ND = (weights_21[..., None] * x_2ND.float()).sum(0)
            sum_x_D, sum_w_D = x_ND.sum(0), projection_VD.sum(0)
            uniform = smoothing / len(w_VD)
            loss: Tensor = (weights_21 * (smoothing * logit_y_2N - log_p_y_2N)).sum()
            loss -= uniform * (sum_x_D @ sum_w_D)
            dx_2ND -= weights_21[..., None] * (uniform * sum_w_D)
            dx_2ND -= weights_21[..., None] * ((1 - smoothing) * projection_VD[y_N])
            dw_VD -= uniform * sum_x_D
            dw_VD.index_add_(0, y_N, x_ND, alpha=smoothing - 1)
            log_z_2N = logit_y_2N - log_p_y_2N
            shift_N = log_z_2N[0] - log_z_2N[1]
            kl_p_q_N, kl_q_p_N = means_2N[0] - shift_N, shift_N - means_2N[1]
            divergence = (terms.forward * kl_p_q_N + terms.backward * kl_q_p_N).sum()
        FusedLoss.save(ctx, states_RD, tokens_2N, dx_2ND, dw_VD)
        ctx.mark_non_differentiable(divergence)
        return loss + divergence, divergence


def _to_gradients(p_2CV: Tensor, differences_CV: Tensor, terms: Terms) -> Tensor:
    """Turn the probabilities of both passes into gradients by their logits, in place.

    Those of the cross-entropy lack what depends on the label. With d the differences of the logits,
    the gradient of KL(p‖q) is p (d - E_p d) for the first pass and q - p for the second. Returns
    E_p d and E_q d, 2C.
    """
    p_CV, q_CV = p_2CV
    means_2C = torch.stack(
        [(x_CV * differences_CV).sum(-1, dtype=torch.float32) for x_CV in (p_CV, q_CV)]
    )
    mean_p_C1, mean_q_C1 = means_2C[..., None].to(p_CV.dtype)
    first, second = terms.cross_entropy
    dp_CV = (differences_CV - mean_p_C1).mul_(terms.forward).add_(first + terms.backward)
    dp_CV.mul_(p_CV).sub_(q_CV, alpha=terms.backward)
    dq_CV = (differences_CV - mean_q_C1).mul_(-terms.backward).add_(second + terms.forward)
    dq_CV.mul_(q_CV).sub_(p_CV, alpha=terms.forward)
    p_CV.copy_(dp_CV)
    q_CV.copy_(dq_CV)
    return means_2C
