"""Consistency training: two passes over a batch, whose predictions p and q are to agree.

R-Drop (Liang et al. 2021): -log p(y) - log q(y) + α · (KL(p‖q) + KL(q‖p)) / 2. The passes differ
in their dropout.

SimCut (Gao et al. 2022): -log p(y) + α · KL(p‖q). The second pass also lacks the embeddings of some
tokens. As in the authors' code, gradients go through both passes, and neither positions nor the EOS
of the source and the BOS of the decoder are cut off.

B sentences, T positions of either side; 2 passes, and the other letters of `cross_entropy.py`.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from seq2seq_cli.config.regularization import Consistency, ConsistencyKind
from seq2seq_cli.config.schema import TrainingConfig
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.model.device import choose_bf16
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.native import fused
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID
from seq2seq_cli.training.losses.cross_entropy import BatchLoss, FusedLoss, Losses


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
        probabilities = [] if consistency.cutoff is None else 2 * [consistency.cutoff]
        self.cutoffs = nn.ModuleList(map(Dropout, probabilities))  # of the tokens of each side
        self.terms = terms_of(consistency)

    def cross_entropy(self, total: float, metrics: Mapping[str, float]) -> float:
        """Return the cross-entropy; with two passes that count, their mean."""
        return (total - metrics["consistency"]) / sum(self.terms.cross_entropy)

    def forward(self, batch: Batch) -> Losses:
        batch = twice(batch.to(self.model.device))
        sides = (batch.src_BS, batch.tgt_in_BT)
        cut = [
            draw_cutoff(ids_BT, cutoff, batch.numbers_B)  # type: ignore[arg-type]
            for ids_BT, cutoff in zip(sides, self.cutoffs, strict=False)  # perhaps without cutoffs
        ]
        with self.projection_inputs(batch, *cut) as inputs:
            return two_pass_loss(*inputs, self.label_smoothing, self.terms)


def build_loss(model: Transformer, config: TrainingConfig, device: torch.device) -> BatchLoss:
    """Return the training loss of a model on a device, in the precision of the config."""
    use_bf16, smoothing = choose_bf16(config.precision, device), config.label_smoothing
    if config.consistency is None:
        return BatchLoss(model, smoothing, use_bf16, config.compile)
    given = config.consistency
    return ConsistencyLoss(model, smoothing, use_bf16, config.compile, consistency=given)


def terms_of(consistency: Consistency) -> Terms:
    """Return the terms of the loss, the divergences with the option's weight."""
    terms, weight = _KINDS[consistency.kind], consistency.weight
    return terms._replace(forward=weight * terms.forward, backward=weight * terms.backward)


def twice(batch: Batch) -> Batch:
    """Return a batch for both passes: every pair, and every pair again with a number below 0."""
    src_BS, tgt_in_BT, labels_BT = (
        torch.cat([ids_BT, ids_BT]) for ids_BT in (batch.src_BS, batch.tgt_in_BT, batch.labels_BT)
    )
    numbers_B = batch.numbers_B
    if numbers_B is not None:
        numbers_B = torch.cat([numbers_B, -1 - numbers_B])
    num_tokens, num_src_tokens = 2 * batch.num_tokens, 2 * batch.num_src_tokens
    return Batch(src_BS, tgt_in_BT, labels_BT, num_tokens, num_src_tokens, numbers_B)


def draw_cutoff(ids_BT: Tensor, cutoff: Dropout, numbers_B: Tensor | None = None) -> Tensor:
    """Return the tokens to cut off, True: ones that dropout drops, in the second half of a batch.

    `numbers_B`: of the sentences in the update, for the dropout.
    """
    ones_BT = torch.ones(ids_BT.shape, device=ids_BT.device)
    is_cut_BT = fused.drop(ones_BT, cutoff, numbers_B) == 0
    is_cut_BT &= (ids_BT != EOS_ID) & (ids_BT != BOS_ID)
    is_cut_BT[: len(ids_BT) // 2] = False
    return is_cut_BT


def two_pass_loss(
    states_RD: Tensor, projection_VD: Tensor, labels_R: Tensor, label_smoothing: float, terms: Terms
) -> Losses:
    """As `sequence_loss`, for two passes: the first half of the tokens, and the second half.

    The weighted cross-entropies of both passes and the divergences. With d = logits of the first
    pass - logits of the second and Z the sums of the exponentials of the logits, KL(p‖q) = E_p d -
    log Z_p + log Z_q. The gradient of KL(p‖q) by the logits is p (d - E_p d) for the first pass and
    q - p for the second.
    """
    means = [states_RD.new_zeros(2, 0, dtype=torch.float32)]  # E_p d and E_q d of each chunk
    first, second = terms.cross_entropy

    def to_gradients(logits_2CV: Tensor, p_2CV: Tensor) -> None:
        differences_CV = logits_2CV[0] - logits_2CV[1]
        p_CV, q_CV = p_2CV
        means_2C = torch.stack(
            [(x_CV * differences_CV).sum(-1, dtype=torch.float32) for x_CV in (p_CV, q_CV)]
        )
        mean_p_C1, mean_q_C1 = means_2C[..., None].to(p_CV.dtype)
        dp_CV = (differences_CV - mean_p_C1).mul_(terms.forward).add_(first + terms.backward)
        dp_CV.mul_(p_CV).sub_(q_CV, alpha=terms.backward)
        dq_CV = (differences_CV - mean_q_C1).mul_(-terms.backward).add_(second + terms.forward)
        dq_CV.mul_(q_CV).sub_(p_CV, alpha=terms.forward)
        p_CV.copy_(dp_CV)
        q_CV.copy_(dq_CV)
        means.append(means_2C)

    loss, log_z_2N = FusedLoss.apply(  # type: ignore[no-untyped-call]
        states_RD, projection_VD, labels_R, label_smoothing, (first, second), to_gradients
    )
    means_2N = torch.cat(means, 1)
    shift_N = log_z_2N[0] - log_z_2N[1]
    kl_p_q_N, kl_q_p_N = means_2N[0] - shift_N, shift_N - means_2N[1]
    divergence = (terms.forward * kl_p_q_N + terms.backward * kl_q_p_N).sum()
    return Losses(loss + divergence, {"consistency": divergence})
