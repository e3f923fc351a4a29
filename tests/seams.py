"""Where tests step into training: PyTorch's own hooks, for every module and optimizer."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from seq2seq_cli.data.batches import Batch
from seq2seq_cli.training.losses.cross_entropy import BatchLoss


@contextmanager
def before_forward(
    kind: type[nn.Module], action: Callable[[nn.Module, Any], object]
) -> Iterator[None]:
    """Call `action` with each module of this kind and its input, before its forward pass."""

    def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, kind):
            action(module, inputs[0])

    with register_module_forward_pre_hook(hook):
        yield


@contextmanager
def after_forward(
    kind: type[nn.Module], action: Callable[[nn.Module, Any, Any], object]
) -> Iterator[None]:
    """Call `action` with modules of this kind, input and output; it may return another output."""

    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> object:
        return action(module, inputs[0], output) if isinstance(module, kind) else None

    with register_module_forward_hook(hook):
        yield


def raise_out_of_memory(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


@contextmanager
def out_of_memory(fails: Callable[[Batch], bool]) -> Iterator[None]:
    """The forward pass of the loss runs out of memory for batches that `fails` names."""

    def check(module: nn.Module, batch: Batch) -> None:
        if fails(batch):
            raise_out_of_memory()

    with before_forward(BatchLoss, check):
        yield


@contextmanager
def after_update(step: int, action: Callable[[], object]) -> Iterator[None]:
    """Call `action` right after the optimizer's step of this number, counted from the run's start.

    Skipped updates do not count.
    """

    def hook(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if int(next(iter(optimizer.state.values()))["step"]) == step:
            action()

    with register_optimizer_step_post_hook(hook):
        yield


@contextmanager
def before_update(action: Callable[[torch.optim.Optimizer], object]) -> Iterator[None]:
    """Call `action` before every step of an optimizer."""
    with register_optimizer_step_pre_hook(lambda optimizer, *_: action(optimizer)):
        yield


@contextmanager
def signal_after(step: int, number: signal.Signals = signal.SIGINT) -> Iterator[None]:
    """Send this process a signal, SIGINT as Ctrl-C does, right after an update."""
    with after_update(step, lambda: signal.raise_signal(number)):
        yield
