"""Muon (Jordan et al. 2024) for matrices of layers, and AdamW for the rest, as one optimizer."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

MUON_STATE = ("momentum_buffer",)  # what Muon keeps of each parameter


class MuonWithAdamW(torch.optim.Optimizer):
    """PyTorch's Muon for the parameter groups whose `state` is Muon's, its AdamW for the others.

    Updates of Muon are scaled to the size of AdamW's (Liu et al. 2025, *Muon is Scalable for LLM
    Training*), so that one learning rate suits both. The groups and the state are those of the two.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        groups = list(params)
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})
        muon = [group for group in groups if group["state"] == MUON_STATE]
        others = [group for group in groups if group["state"] != MUON_STATE]
        self._parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(muon, lr=lr, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=lr, betas=betas, eps=eps, fused=True),
        ]
        for part in self._parts:
            part.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Make a step of both."""
        assert closure is None, "the gradients are there already"
        for part in self._parts:
            part.step()
