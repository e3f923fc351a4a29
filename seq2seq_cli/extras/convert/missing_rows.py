"""Rows of the matrices of an imported model for tokens that it lacks, kept in training."""

import torch
from torch import Tensor

from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, PAD_ID

IMPOSSIBLE = -100.0  # the bias of a row that a model lacks: e^-100 is negligible


def keep_missing_rows(model: Transformer) -> None:
    """Keep what stands for tokens that an imported model lacks: zero rows, and impossible biases.

    A zero embedding of BOS is how Marian starts a translation. The softmax would move these rows,
    also through a tied projection, as PyTorch's `padding_idx` holds back look-ups only.
    """
    ids = torch.tensor([PAD_ID, BOS_ID])

    def keep_zeros(matrix_VD: Tensor) -> None:
        assert matrix_VD.grad is not None
        is_zero = (matrix_VD.detach()[ids] == 0).all(1)
        matrix_VD.grad[ids.to(is_zero.device)[is_zero]] = 0

    def keep_impossible(bias_V: Tensor) -> None:
        assert bias_V.grad is not None
        bias_V.grad[bias_V.detach() == IMPOSSIBLE] = 0

    matrices = (model.src_embedding.weight, model.tgt_embedding.weight, model.projection.weight)
    for matrix in {id(weight): weight for weight in matrices if weight.requires_grad}.values():
        matrix.register_post_accumulate_grad_hook(keep_zeros)  # type: ignore[no-untyped-call]
    if model.projection.bias.requires_grad:
        bias = model.projection.bias
        bias.register_post_accumulate_grad_hook(keep_impossible)  # type: ignore[no-untyped-call]
