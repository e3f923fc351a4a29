"""The functions of int8_decoder.c, their structures, and whether they can be called.

B sentences, W hypotheses of each, V vocabulary.
"""

import ctypes
import functools
import importlib.machinery
from ctypes import POINTER, c_float, c_int, c_int64, c_long, c_void_p
from pathlib import Path

import torch
from torch import Tensor

_INTERFACE = 1
# As int8_decoder.c has them.
LANES, PANELS, QUAD = 16, 4, 4  # how weights lie
GROUP = LANES * PANELS
SLOTS = 32  # in a piece of the past
BLOCK = 96  # rows that are quantized at once

CPU = torch.device("cpu")


class Linear(ctypes.Structure):
    _fields_ = (
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("weight", c_void_p),
        ("scale", c_void_p),
        ("shift", c_void_p),
        ("bias", c_void_p),
    )


class Norm(ctypes.Structure):
    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("epsilon", c_float))


class Layer(ctypes.Structure):
    _fields_ = (
        ("split", Linear),
        ("join", Linear),
        ("attended", Norm),
        ("query", Linear),
        ("gathered", Linear),
        ("gathered_norm", Norm),
        ("expand", Linear),
        ("contract", Linear),
        ("transformed", Norm),
    )


class Stack(ctypes.Structure):
    _fields_ = (
        ("num_layers", c_int64),
        ("d_model", c_int64),
        ("heads", c_int64),
        ("d_ff", c_int64),
        ("norm_first", c_int64),
        ("has_gelu", c_int64),
        ("layers", POINTER(Layer)),
        ("norm", Norm),
        ("output", Linear),
    )


class Batch(ctypes.Structure):
    _fields_ = (
        ("sentences", c_int64),
        ("width", c_int64),
        ("length", c_int64),
        ("slots", c_void_p),
        ("num_pieces", c_int64),
        ("past", c_void_p),
        ("num_columns", c_void_p),
        ("columns", c_void_p),
        ("memory", c_void_p),
        ("starts", c_void_p),
        ("lengths", c_void_p),
    )


@functools.cache
def _library() -> ctypes.CDLL | None:
    name = "_int8_decoder" + importlib.machinery.EXTENSION_SUFFIXES[0]
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name(name)))
    except OSError:  # there was no compiler
        return None
    if library.start() != _INTERFACE:
        return None
    pointer = c_void_p
    library.linear.argtypes = (pointer, c_int, c_long, *[pointer] * 4, c_int)
    library.encode.argtypes = (pointer, c_long, c_long, *[pointer] * 6, c_int)
    library.decode.argtypes = (pointer, pointer, c_long, *[pointer] * 3, c_int)
    library.log_sum_exp.argtypes = (c_long, c_long, pointer, pointer, c_int)
    for function in (library.linear, library.encode, library.decode, library.log_sum_exp):
        function.restype = None
    return library


def available() -> bool:
    """Whether they were compiled at installation, and this processor has the instructions."""
    return _library() is not None


def call(
    name: str, structure: ctypes.Structure, *arguments: Tensor | ctypes.Structure | int
) -> None:
    """With addresses of tensors and structures, and as many threads as PyTorch uses."""
    plain = [_plain(argument) for argument in arguments]
    getattr(_library(), name)(ctypes.addressof(structure), *plain, torch.get_num_threads())


def _plain(argument: Tensor | ctypes.Structure | int) -> int:
    if isinstance(argument, Tensor):
        return argument.data_ptr()
    return argument if isinstance(argument, int) else ctypes.addressof(argument)


def room_for(stack: Stack, rows: int, longest: int) -> Tensor:
    """For a pass of so many rows, which look at so many positions at most; see `begin` in C."""
    keys_and_scores = 8 * longest + 4 * (longest + LANES)
    quantized = BLOCK * rounded_up(max(stack.d_model, stack.d_ff), QUAD)
    states = 4 * rows * (2 * stack.d_model + max(3 * stack.d_model, stack.d_ff))
    size = torch.get_num_threads() * keys_and_scores + quantized + states
    return torch.empty(size, dtype=torch.uint8, device=CPU)


def empty(*sizes: int) -> Tensor:
    return torch.empty(sizes, dtype=torch.float32, device=CPU)


def rounded_up(size: int, to: int) -> int:
    return -(-size // to) * to


def log_sum_exp(logits_BWV: Tensor) -> Tensor:
    """The logarithm of the sum of e^logits, BW1."""
    is_plain = logits_BWV.dtype == torch.float32 and logits_BWV.is_contiguous()
    if logits_BWV.device != CPU or not is_plain or not available():
        return logits_BWV.logsumexp(dim=-1, keepdim=True)
    totals_BW1 = empty(*logits_BWV.shape[:-1], 1)
    rows, threads = totals_BW1.numel(), torch.get_num_threads()
    library = _library()
    assert library is not None
    library.log_sum_exp(
        rows, logits_BWV.size(-1), logits_BWV.data_ptr(), totals_BW1.data_ptr(), threads
    )
    return totals_BW1
