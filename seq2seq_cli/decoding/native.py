"""The functions of int8_decoder.c, their structures, and whether they can be called.

B sentences, W hypotheses of each, V vocabulary.
"""

import ctypes
import importlib.machinery
from collections.abc import Sequence
from ctypes import POINTER, c_float, c_int, c_int64, c_long, c_void_p
from pathlib import Path

import torch
from torch import Tensor

_INTERFACE = 1
QUAD, LANES, PANELS = 4, 16, 4  # how weights lie
GROUP = LANES * PANELS
SLOTS = 32  # in a piece of the past
BLOCK = 96  # rows that are quantized at once


class Linear(ctypes.Structure):
    _fields_ = (
        *((size, c_int64) for size in ("inputs", "outputs")),
        *((address, c_void_p) for address in ("weight", "scale", "shift", "bias")),
    )


class Norm(ctypes.Structure):
    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("epsilon", c_float))


class Layer(ctypes.Structure):
    _fields_ = (
        *(("split", Linear), ("join", Linear), ("attended", Norm)),
        *(("query", Linear), ("gathered", Linear), ("gathered_norm", Norm)),
        *(("expand", Linear), ("contract", Linear), ("transformed", Norm)),
    )


class Stack(ctypes.Structure):
    _fields_ = (
        *((size, c_int64) for size in ("num_layers", "d_model", "heads", "d_ff")),
        *(("norm_first", c_int64), ("gelu", c_int64)),
        *(("layers", POINTER(Layer)), ("embedding", c_void_p)),
        *(("norm", Norm), ("output", Linear)),
    )


class Batch(ctypes.Structure):
    _fields_ = (
        *((size, c_int64) for size in ("sentences", "width", "length")),
        *((address, c_void_p) for address in ("slots", "columns", "past")),
        *(("num_columns", c_int64), ("memory", c_void_p)),
        *(("starts", c_void_p), ("lengths", c_void_p)),
    )


def _load() -> ctypes.CDLL | None:
    name = "_int8_decoder" + importlib.machinery.EXTENSION_SUFFIXES[0]
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name(name)))
    except OSError:  # there was no compiler
        return None
    pointer = c_void_p
    library.linear.argtypes = (pointer, c_int, c_long, *[pointer] * 4, c_int)
    library.encode.argtypes = (pointer, c_long, *[pointer] * 7, c_int)
    library.decode.argtypes = (*[pointer] * 6, c_int)
    library.log_sum_exp.argtypes = (c_long, c_long, pointer, pointer, c_int)
    for function in (library.linear, library.encode, library.decode, library.log_sum_exp):
        function.restype = None
    return library if library.start() == _INTERFACE else None


_library = _load()


def available() -> bool:
    """Whether it was compiled at installation, and this processor has the instructions."""
    return _library is not None


def rounded_up(size: int, to: int) -> int:
    return -(-size // to) * to


def addresses(tensors: Sequence[Tensor]) -> "ctypes.Array[c_void_p]":
    return (c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def room_for(stack: Stack, rows: int) -> Tensor:
    """For a pass of so many rows."""
    widest = rounded_up(max(stack.d_model, stack.d_ff), QUAD)
    floats = rows * (3 * stack.d_model + max(3 * stack.d_model, stack.d_ff))
    return torch.empty(BLOCK * widest + 4 * floats, dtype=torch.uint8)


def call(
    name: str, structure: ctypes.Structure, *arguments: Tensor | ctypes.Structure | int
) -> None:
    """With addresses of tensors and structures, and as many threads as PyTorch uses."""
    plain = [_plain(argument) for argument in arguments]
    getattr(_library, name)(ctypes.addressof(structure), *plain, torch.get_num_threads())


def _plain(argument: Tensor | ctypes.Structure | int) -> int:
    if isinstance(argument, Tensor):
        return argument.data_ptr()
    return argument if isinstance(argument, int) else ctypes.addressof(argument)


def log_sum_exp(logits_BWV: Tensor) -> Tensor:
    """The logarithm of the sum of e^logits, BW1."""
    if _library is None or logits_BWV.device.type != "cpu" or not logits_BWV.is_contiguous():
        return logits_BWV.logsumexp(dim=-1, keepdim=True)
    totals_BW1 = torch.empty(*logits_BWV.shape[:-1], 1)
    _library.log_sum_exp(
        *(totals_BW1.numel(), logits_BWV.size(-1), logits_BWV.data_ptr(), totals_BW1.data_ptr()),
        torch.get_num_threads(),
    )
    return totals_BW1
