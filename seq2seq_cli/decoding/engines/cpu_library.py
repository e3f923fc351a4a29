"""Bindings of cpu_decoder.c: its structures, its functions, and whether they can be called.

B sentences, W hypotheses of each, V vocabulary.
"""

import ctypes
import functools
import importlib.machinery
import logging
from ctypes import POINTER, c_char, c_float, c_int, c_int64, c_long, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seq2seq_cli.decoding.engines.base import Precision

logger = logging.getLogger(__name__)

# As cpu_decoder.c has them.
LANES, GROUP = 16, 64  # words in a register, outputs in a group
SLOTS = 32  # positions in a block of the KV cache
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8")  # by their numbers

CPU = torch.device("cpu")


def _fields(names: str, kind: Any) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Linear(ctypes.Structure):
    _fields_ = [
        *_fields("inputs outputs precision", c_int64),
        *_fields("weight bias scale shift", c_void_p),
    ]


class Norm(ctypes.Structure):
    _fields_ = [*_fields("weight bias", c_void_p), ("epsilon", c_float)]


class Layer(ctypes.Structure):
    _fields_ = [
        *(*_fields("qkv out", Linear), ("self_attention_norm", Norm)),
        *(*_fields("query cross_out", Linear), ("cross_attention_norm", Norm)),
        *(*_fields("expand contract", Linear), ("feed_forward_norm", Norm)),
    ]


class Stack(ctypes.Structure):
    _fields_ = [
        *_fields("num_layers d_model heads d_ff norm_first activation vocabulary", c_int64),
        *_fields("is_rotary rotates_memory", c_int64),
        ("embedding", c_void_p),
        ("layers", POINTER(Layer)),
        ("norm", Norm),
        ("output", Linear),
    ]


class NativeBatch(ctypes.Structure):
    _fields_ = [
        *_fields("sentences longest", c_int64),
        *_fields("starts lengths memory", c_void_p),
        *_fields("width length", c_int64),
        ("slots", c_void_p),
        ("num_blocks", c_int64),
        *_fields("blocks num_columns columns", c_void_p),
    ]


@functools.cache
def _library() -> ctypes.CDLL | None:
    source = Path(__file__).with_name("cpu_decoder.c")
    name = "_cpu_decoder" + importlib.machinery.EXTENSION_SUFFIXES[0]
    return load_library(source.with_name(name), source)


def load_library(path: Path, source: Path) -> ctypes.CDLL | None:
    """Load a library that was compiled from the present text of `source`, which it contains.

    Return None if there is none, as without a compiler at installation.
    """
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    try:
        start, end = (c_char.in_dll(library, f"source_{mark}") for mark in ("start", "end"))
        size = ctypes.addressof(end) - ctypes.addressof(start)
        is_current = ctypes.string_at(ctypes.addressof(start), size) == source.read_bytes()
    except (OSError, ValueError):
        is_current = False
    if not is_current:
        logger.warning(
            f"{path.name} was compiled from another version of {source.name} and is not used; "
            "reinstall seq2seq-cli for faster decoding"
        )
        return None
    expected = [ctypes.sizeof(kind) for kind in (Linear, Norm, Layer, Stack, NativeBatch)]
    expected += [GROUP, SLOTS]
    interface = (c_int64 * len(expected)).in_dll(library, "interface")
    assert list(interface) == expected, "cpu_library.py and cpu_decoder.c differ"
    pointer = c_void_p
    library.linear.argtypes = (pointer, c_int, c_long, *[pointer] * 4, c_int)
    library.workspace_size.argtypes = (pointer, c_long, c_long, c_int)
    library.workspace_size.restype = c_long
    library.encode.argtypes = (pointer, pointer, c_long, pointer, c_int64, *[pointer] * 3, c_int)
    choice = (c_long, pointer, c_int64, pointer)
    library.decode.argtypes = (*[pointer] * 5, *choice, pointer, c_int)
    library.log_sum_exp.argtypes = (c_long, c_long, pointer, pointer, c_int)
    library.find_greatest.argtypes = (c_long, c_long, pointer, *choice, c_int)
    sizes, beam = (c_long, c_long, c_long), (c_long, c_int64)
    library.beam_step.argtypes = (*sizes, pointer, pointer, *beam, *[pointer] * 4, c_int)
    for name in ("linear", "encode", "decode", "log_sum_exp", "find_greatest", "beam_step"):
        getattr(library, name).restype = None
    return library


@functools.cache
def precisions() -> frozenset[Precision]:
    """Return the precisions that this processor has instructions for; none if not compiled."""
    library = _library()
    mask = library.start() if library is not None else 0
    return frozenset(name for number, name in enumerate(PRECISIONS) if mask >> number & 1)


def library() -> ctypes.CDLL:
    """Return the library; `precisions` must not be empty."""
    loaded = _library()
    assert loaded is not None
    return loaded


def workspace(stack: Stack, rows: int, longest: int, threads: int) -> Tensor:
    """Allocate the memory of a pass of `rows` rows that attend to at most `longest` positions."""
    size = library().workspace_size(ctypes.addressof(stack), rows, longest, threads)
    return torch.empty(size, dtype=torch.uint8, device=CPU)


def empty(*sizes: int) -> Tensor:
    return torch.empty(sizes, dtype=torch.float32, device=CPU)


def rounded_up(size: int, to: int) -> int:
    return -(-size // to) * to


def log_sum_exp(logits_BWV: Tensor) -> Tensor:
    """Return the logarithm of the sum of e^logits, BW1."""
    if not can_read(logits_BWV):
        return logits_BWV.logsumexp(dim=-1, keepdim=True)
    totals_BW1 = empty(*logits_BWV.shape[:-1], 1)
    rows, size, threads = totals_BW1.numel(), logits_BWV.size(-1), torch.get_num_threads()
    library().log_sum_exp(rows, size, logits_BWV.data_ptr(), totals_BW1.data_ptr(), threads)
    return totals_BW1


def argmax_token(logits_BWV: Tensor, otherwise: int) -> Tensor:
    """Return the first token of the greatest logit, BW; `otherwise` where all logits are -inf."""
    tokens_BW = torch.empty(logits_BWV.shape[:-1], dtype=torch.int64)
    rows, size, threads = tokens_BW.numel(), logits_BWV.size(-1), torch.get_num_threads()
    library().find_greatest(
        rows, size, logits_BWV.data_ptr(), 0, None, otherwise, tokens_BW.data_ptr(), threads
    )
    return tokens_BW


class BeamStep(NamedTuple):
    """The next hypotheses of every sentence, the best first, and those that end."""

    sums_BW: Tensor  # log-probabilities, -inf where too few continuations are possible
    origins_BW: Tensor  # the hypothesis that is continued
    tokens_BW: Tensor
    ended_BW: Tensor  # log-probability of each present hypothesis with its end; -inf: it goes on


def beam_step(logits_BWV: Tensor, offsets_BW1: Tensor, beam_size: int, end: int) -> BeamStep:
    """Continue the hypotheses by the most probable tokens; see cpu_decoder.c: beam_step."""
    sentences, width, size = logits_BWV.shape
    origins_BW, tokens_BW = torch.empty(2, sentences, beam_size, dtype=torch.int64)
    sums_BW, ended_BW = empty(sentences, beam_size), empty(sentences, width)
    library().beam_step(
        sentences,
        width,
        size,
        logits_BWV.data_ptr(),
        offsets_BW1.data_ptr(),
        beam_size,
        end,
        sums_BW.data_ptr(),
        origins_BW.data_ptr(),
        tokens_BW.data_ptr(),
        ended_BW.data_ptr(),
        torch.get_num_threads(),
    )
    return BeamStep(sums_BW, origins_BW, tokens_BW, ended_BW)


def can_read(x: Tensor) -> bool:
    """Whether C can read the tensor, and was compiled for this processor."""
    is_plain = x.device == CPU and x.dtype == torch.float32 and x.is_contiguous()
    return is_plain and bool(precisions())
