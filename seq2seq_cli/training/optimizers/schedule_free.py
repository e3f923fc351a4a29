"""Schedule-free AdamW (Defazio et al. 2024): AdamW whose model is an average along its path.

There are three sequences of weights: z, which the steps go along; x, the weighted mean of all z,
which is the model; and y between the two, where the gradients are computed. The parameters hold y;
the model is given x wherever it is evaluated or saved. The authors' package computes x from y and
z, rounded, so that a run that resumes from x would not go on as it was.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from seq2seq_cli.model.weights import Weights
from seq2seq_cli.training.optimizers.adam import Optimizer


class ScheduleFreeAdamW(Optimizer):
    """Schedule-free AdamW (The Road Less Scheduled, algorithm 1, with Adam's preconditioner).

    With g the bias-corrected Adam direction of the gradient at y plus decay · y, step t computes::

        z = z - lr · g
        x = (1 - c) x + c z        c = lr² / (sum of lr² over steps 1 to t)
        y = (1 - beta1) z + beta1 x

    The state of a parameter is `z`, x as `average`, the second moment `exp_avg_sq`, and two
    numbers, `step` and `weight_sum` (the sum in c), which are the same for all parameters.
    """

    def __init__(
        self, params: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Make a step along the gradients, whose tensors it overwrites."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            lr, beta2 = group["lr"], group["betas"][1]
            states = [self.state[p] or self._start(p) for p in parameters]
            z, average, squares, steps, weight_sums = (
                [state[name] for state in states]
                for name in ("z", "average", "exp_avg_sq", "step", "weight_sum")
            )
            torch._foreach_add_(steps, 1)
            torch._foreach_add_(weight_sums, lr**2)
            weight_sum = weight_sums[0].item()
            directions: list[Tensor] = [p.grad for p in parameters]
            torch._foreach_mul_(squares, beta2)
            torch._foreach_addcmul_(squares, directions, directions, value=1 - beta2)
            denominators = torch._foreach_div(squares, 1 - beta2 ** steps[0].item())
            torch._foreach_sqrt_(denominators)
            torch._foreach_add_(denominators, group["eps"])
            torch._foreach_div_(directions, denominators)
            if group["weight_decay"]:
                torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
            torch._foreach_add_(z, directions, alpha=-lr)
            torch._foreach_lerp_(average, z, lr**2 / weight_sum if weight_sum else 0.0)
            self._move_to_y(parameters)

    def _start(self, parameter: Tensor) -> dict[str, Any]:
        """Return the state before the first step, where x = y = z."""
        state = {
            "step": torch.tensor(0.0),
            "weight_sum": torch.tensor(0.0, dtype=torch.float64),
            "exp_avg_sq": torch.zeros_like(parameter),
            "z": parameter.detach().clone(),
            "average": parameter.detach().clone(),
        }
        self.state[parameter] = state
        return state

    def _move_to_y(self, parameters: list[Tensor]) -> None:
        beta1 = self.defaults["betas"][0]
        states = [self.state[p] for p in parameters]
        averages = [_own_rows(state["average"]) for state in states]
        torch._foreach_copy_([_own_rows(p) for p in parameters], averages)
        torch._foreach_lerp_(parameters, [state["z"] for state in states], 1 - beta1)

    def eval_weights(self, model: nn.Module) -> Weights:
        """Return x, by the names of the parameters."""
        return {
            name: self.state.get(parameter, {}).get("average", parameter.detach())
            for name, parameter in model.named_parameters()
        }

    @torch.no_grad()
    def after_load(self) -> None:
        """Take the parameters, which hold x, as x, and move them to y, with the bits of `step`."""
        groups = self.param_groups
        parameters = [p for group in groups for p in group["params"] if self.state.get(p)]
        for parameter in parameters:
            self.state[parameter]["average"] = parameter.detach().clone()
        if parameters:  # there are none before the first step
            self._move_to_y(parameters)


def _own_rows(tensor: Tensor) -> Tensor:
    """Return what this process has of a sharded tensor (DTensors have no `_foreach_copy_`)."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
