"""Dropout that draws random bytes: faster on a CPU."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LEVELS = 256  # of a random byte


class Dropout(nn.Module):
    """Zero elements with probability p, else scale by 1 / (1 - p); the identity in evaluation.

    `key` is a number of 64 bits from which fused operations compute what they drop; with None they
    draw one for each call.

    On a CPU, `F.dropout` draws a number for each element sequentially, which can take a quarter of
    an update. Here 64 random bits serve eight elements. As bytes have a resolution of 1/256, each
    call uses the multiple of it just below p or just above, at random such that the mean is p (at
    most 255/256), and scales accordingly. GPUs and torch.compile have fast kernels of their own.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.key: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.p)
        dropped: Tensor = _ByteDropout.apply(x, self.p)  # type: ignore[no-untyped-call]
        return dropped


class _ByteDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        dropped_levels = min(int(p * _LEVELS + torch.rand(()).item()), _LEVELS - 1)
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
        keep = words.view(torch.int8)[: x.numel()].view(x.shape).ge_(dropped_levels - 128)
        ctx.save_for_backward(keep)
        ctx.scale = _LEVELS / (_LEVELS - dropped_levels)
        return keep.to(x.dtype).mul_(x).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return keep.to(gradient.dtype).mul_(gradient).mul_(ctx.scale), None
