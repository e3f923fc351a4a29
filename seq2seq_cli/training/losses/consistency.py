"""Consistency training: two passes over a batch, whose predictions p and q are to agree.

R-Drop (Liang et al. 2021): -log p(y) - log q(y) + α · (KL(p‖q) + KL(q‖p)) / 2. The passes differ
in their dropout.

SimCut (Gao et al. 2022): -log p(y) + α · KL(p‖q). The second pass also lacks the embeddings of some
tokens. As in the authors' code, gradients go through both passes, and neither positions nor the EOS
of the source and the BOS of the decoder are cut off.

B sentences, T positions of either side, C tokens of a chunk, V target vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from seq2seq_cli.config.regularization import Consistency, ConsistencyKind
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID


class Terms(NamedTuple):
    """The weights of the terms of a loss."""

    cross_entropy: tuple[float, ...] = (1.0,)  # of each pass
    forward: float = 0.0  # KL(p‖q)
    backward: float = 0.0  # KL(q‖p)

    def add_gradients(self, probabilities_2CV: Tensor, differences_CV: Tensor) -> Tensor:
        """Turn the probabilities of both passes into gradients by their logits, in place.

        Those of the cross-entropy lack what depends on the label. With d = logits of the first pass
        - logits of the second, and its mean E_p d under p, the gradient of KL(p‖q) is p (d - E_p d)
        for the first pass and q - p for the second. Returns E_p d and E_q d, 2C.
        """
        p_CV, q_CV = probabilities_2CV
        means_2C = torch.stack(
            [(x_CV * differences_CV).sum(-1, dtype=torch.float32) for x_CV in (p_CV, q_CV)]
        )
        mean_p_C1, mean_q_C1 = means_2C[..., None].to(p_CV.dtype)
        first, second = self.cross_entropy
        dp_CV = (differences_CV - mean_p_C1).mul_(self.forward).add_(first + self.backward)
        dp_CV.mul_(p_CV).sub_(q_CV, alpha=self.backward)
        dq_CV = (differences_CV - mean_q_C1).mul_(-self.backward).add_(second + self.forward)
        dq_CV.mul_(q_CV).sub_(p_CV, alpha=self.forward)
        p_CV.copy_(dp_CV)
        q_CV.copy_(dq_CV)
        return means_2C

    def divergence(self, means_2N: Tensor, log_normalizers_2N: Tensor) -> Tensor:
        """Return the weighted sum of the divergences, from the means of `add_gradients`.

        KL(p‖q) = E_p d - log Z_p + log Z_q, where Z are the sums of the exponentials of logits.
        """
        mean_p_N, mean_q_N = means_2N
        shift_N = log_normalizers_2N[0] - log_normalizers_2N[1]
        forward_N, backward_N = mean_p_N - shift_N, shift_N - mean_q_N
        divergence: Tensor = (self.forward * forward_N + self.backward * backward_N).sum()
        return divergence


_KINDS: dict[ConsistencyKind, Terms] = {
    "r_drop": Terms((1.0, 1.0), forward=0.5, backward=0.5),
    "simcut": Terms((1.0, 0.0), forward=1.0),
}


def terms_of(consistency: Consistency | None) -> Terms:
    """Return the terms of the training loss, the divergences with the option's weight."""
    if consistency is None:
        return Terms()
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
