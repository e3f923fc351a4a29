"""PyTorch's Adam and AdamW, and what all our optimizers share, without importing torch._dynamo.

PyTorch wraps `add_param_group`, `zero_grad` and `step` for torch.compile, and the wrappers import
torch._dynamo when they are first called: a second and 60 MB, for every process that trains. We
compile models only, so ours are the functions inside them.
"""

import inspect

import torch


class Optimizer(torch.optim.Optimizer):
    """The base class of all optimizers here."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class Adam(Optimizer, torch.optim.Adam):
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class AdamW(Optimizer, torch.optim.AdamW):
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))
