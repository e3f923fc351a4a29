"""The device and precision that a model runs with, and its number of threads."""

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
    """Return the device; `auto` is the GPU if there is one. UserError if cuda is not available.

    On a GPU, attention is computed by PyTorch's own kernels: cuDNN's take 13 ms of the CPU for each
    new shape, and nearly every batch has one.
    """
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise UserError("device cuda: PyTorch finds no CUDA device (use --device cpu or auto)")
    if name == "cpu" or not has_gpu:
        return torch.device("cpu")
    torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device("cuda")


def choose_bf16(precision: Precision, device: torch.device) -> bool:
    """Return True if training uses mixed precision with bf16; for `auto`, where it is faster.

    Parameters, optimizer state and evaluation are fp32 in any case.
    """
    return has_fast_bf16(device) if precision == "auto" else precision == "bf16"


def has_fast_bf16(device: torch.device) -> bool:
    """Return True if the GPU or CPU has instructions for bf16 matrix products."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    queries = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # not in every PyTorch
    return any(getattr(torch.cpu, query)() for query in queries if hasattr(torch.cpu, query))


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Set the number of PyTorch's CPU threads while the block runs.

    Another thread that calls PyTorch for the first time meanwhile keeps that number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def activation_dtype(x: Tensor) -> torch.dtype:
    """Return the type of activations between layers: autocast's, or the type of `x` without it."""
    name = x.device.type
    return torch.get_autocast_dtype(name) if torch.is_autocast_enabled(name) else x.dtype


def check_compiler() -> None:
    """Raise UserError if torch.compile would find no C++ compiler."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        raise UserError(
            f"training.compile needs the C++ compiler {compiler}, which is not installed (or not "
            "on PATH); install it, set CXX to another one, or leave the option out"
        )
