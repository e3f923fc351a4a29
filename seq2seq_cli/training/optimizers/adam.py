"""PyTorch's Adam and AdamW, and what all our optimizers share, without importing torch._dynamo.

Methods of `torch.optim.Optimizer` are wrapped so that torch.compile leaves them alone, and the
first call imports torch._dynamo: a second and 60 MB, for every process that trains. We compile
models only, so ours are the functions inside these wrappers.
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
