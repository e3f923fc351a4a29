"""Where a model computes, and how precisely: chosen once, by whoever makes or loads it."""

import torch

from seq2seq_cli.config import DeviceName, Precision
from seq2seq_cli.errors import UserError


def choose_device(name: DeviceName) -> torch.device:
    """`auto` is the GPU where there is one; asking for a GPU that is not there is a UserError."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: PyTorch sees no CUDA device here (use --device cpu or auto)")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def choose_bf16(precision: Precision, device: torch.device) -> bool:
    """Whether training's matrix products run in bf16; `auto`: on a GPU that has it.

    Parameters, optimizer and evaluation are fp32 in any case.
    """
    if precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return precision == "bf16"
