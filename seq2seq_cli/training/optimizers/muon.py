"""Muon (Jordan et al. 2024) for matrices of layers, and AdamW for the rest, as one optimizer."""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from seq2seq_cli.model.device import has_fast_bf16
from seq2seq_cli.training.optimizers.adam import AdamW, Optimizer

MUON_STATE = ("momentum_buffer",)  # what Muon keeps of each parameter
_MOMENTUM = 0.95
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic Newton-Schulz iteration
_STEPS = 5
_SIZE = 0.1  # target RMS of an update, relative to lr


class MuonWithAdamW(Optimizer):
    """Muon for the first parameter group, AdamW for the others.

    Muon's update of a matrix W of A × B elements, with gradient G and momentum M, is::

        M = 0.95 M + 0.05 G
        W = (1 - lr · decay) W - 0.1 lr √max(A, B) · orthogonalize(0.05 G + 0.95 M)

    0.2 √max(A, B) would give updates the size of AdamW's (Liu et al. 2025, *Muon is Scalable for
    LLM Training*, section 2.2); they are half as large, as embeddings learn best at twice the rate
    of matrices. The same as `torch.optim.Muon` with `match_rms_adamw` and half the learning rate,
    which always computes in bf16: 100 times slower on a CPU without instructions for it.
    """

    is_alone = False  # whether no other process makes the same updates, and shares the work

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        use_bf16: bool,
    ) -> None:
        """`use_bf16`: as training does; alike in all processes."""
        self._use_bf16 = use_bf16
        super().__init__(params, {"lr": lr, "weight_decay": 0.0})
        others = self.param_groups[1:]
        self._adamw = AdamW(others, lr=lr, betas=betas, eps=eps, fused=True)
        self._adamw.state = self.state

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        self._adamw.step()
        by_shape = defaultdict(list)
        group = self.param_groups[0]
        for parameter in group["params"]:
            if parameter.grad is not None:
                by_shape[parameter.shape].append(parameter)
                if not self.state[parameter]:
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        lr, decay = group["lr"], group["weight_decay"]
        for shape, parameters in by_shape.items():
            gradients = [parameter.grad for parameter in parameters]
            momenta = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
            torch._foreach_lerp_(momenta, gradients, 1 - _MOMENTUM)
            updates = torch._foreach_lerp(gradients, momenta, _MOMENTUM)
            orthogonal = orthogonalize if self.is_alone else orthogonalize_in_parts
            directions = orthogonal(torch.stack(updates), self._use_bf16).float()
            torch._foreach_mul_(parameters, 1 - lr * decay)
            scaled = directions * (-_SIZE * lr * math.sqrt(max(shape)))
            torch._foreach_add_(parameters, list(scaled.unbind()))


def orthogonalize_in_parts(matrices_NAB: Tensor, use_bf16: bool) -> Tensor:
    """As `orthogonalize`; of matrices that several processes have, each computes a part."""
    if not distributed.is_initialized():
        return orthogonalize(matrices_NAB, use_bf16)
    world_size, rank = distributed.get_world_size(), distributed.get_rank()
    size = -(-len(matrices_NAB) // world_size)
    missing = size * world_size - len(matrices_NAB)
    part = F.pad(matrices_NAB, (0, 0, 0, 0, 0, missing))[rank * size : (rank + 1) * size]
    directions = orthogonalize(part, use_bf16).contiguous()
    parts = [torch.empty_like(directions) for _ in range(world_size)]
    distributed.all_gather(parts, directions)
    return torch.cat(parts)[: len(matrices_NAB)]


def orthogonalize(matrices_NAB: Tensor, use_bf16: bool) -> Tensor:
    """Return about U Vᵀ of every matrix U S Vᵀ [N, A, B].

    By five steps of the Newton-Schulz iteration of Jordan et al. 2024, which bring the singular
    values to between 0.5 and 1.5, except those that are tiny. With `use_bf16` the result is in
    bf16, and the steps are where that is fast.
    """
    a, b, c = _COEFFICIENTS
    is_tall = matrices_NAB.shape[1] > matrices_NAB.shape[2]
    x = matrices_NAB.mT if is_tall else matrices_NAB
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    x = x.bfloat16() if use_bf16 and has_fast_bf16(x.device) else x
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.bfloat16() if use_bf16 else x
    return x.mT if is_tall else x
