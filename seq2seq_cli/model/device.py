"""Where a model computes, and how precisely: chosen once, by whoever makes or loads it."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from seq2seq_cli.config.types import DeviceName, Precision
from seq2seq_cli.errors import UserError


def choose_device(name: DeviceName) -> torch.device:
    """`auto` is the GPU where there is one; asking for a GPU that is not there is a UserError."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: PyTorch sees no CUDA device here (use --device cpu or auto)")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def choose_bf16(precision: Precision, device: torch.device) -> bool:
    """Whether training's matrix products run in bf16; `auto`: where that is faster.

    Parameters, optimizer and evaluation are fp32 in any case.
    """
    return has_fast_bf16(device) if precision == "auto" else precision == "bf16"


def has_fast_bf16(device: torch.device) -> bool:
    """Whether the GPU or the processor has instructions for products of bf16 numbers."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    asks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # not in every PyTorch
    return any(getattr(torch.cpu, ask)() for ask in asks if hasattr(torch.cpu, ask))


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """PyTorch's operations on a CPU use so many threads while the block runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def activation_dtype(x: Tensor) -> torch.dtype:
    """What the layers hand on: fp32, or under autocast its type."""
    name = x.device.type
    return torch.get_autocast_dtype(name) if torch.is_autocast_enabled(name) else x.dtype


def check_compiler() -> None:
    """Raises UserError where torch.compile would find no compiler to call."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        raise UserError(
            f"training.compile needs the C++ compiler {compiler}, which is not installed (or not "
            "on PATH); leave the option out, or set CXX to another"
        )
