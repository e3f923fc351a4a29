"""Bindings of the native library: its structures, its functions, and whether they can be called."""

import ctypes
import functools
import logging
import os
import sys
from ctypes import POINTER, c_char_p, c_float, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seq2seq_cli.errors import UserError
from seq2seq_cli.native.sources import LIBRARY_NAME, SOURCES, source_hash

logger = logging.getLogger(__name__)

Precision = Literal["fp32", "bf16", "int8"]

# As native.h has them.
LANES, GROUP = 16, 64  # words in a register, outputs in a group
SLOTS = 32  # positions in a block of the KV cache
NO_MEMORY, NOT_FINITE = 1, 2  # what search and score return; 0: completed
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8")  # by their numbers
# The kernels of all machines by the instructions that they use, the fastest first.
KERNELS = ("amx", "avx512", "avxvnni", "avx2", "i8mm", "dotprod", "neon", "plain")


def _ints(names: str) -> list[tuple[str, Any]]:
    return [(name, c_int64) for name in names.split()]


def _pointers(names: str) -> list[tuple[str, Any]]:
    return [(name, c_void_p) for name in names.split()]


class Linear(ctypes.Structure):
    _fields_ = [*_ints("inputs outputs precision"), *_pointers("weight bias scale shift")]


class Norm(ctypes.Structure):
    _fields_ = [*_pointers("weight bias"), ("epsilon", c_float)]


class Layer(ctypes.Structure):
    _fields_ = [
        *(("qkv", Linear), ("out", Linear), ("self_attention_norm", Norm)),
        *(("query", Linear), ("cross_out", Linear), ("cross_attention_norm", Norm)),
        *(("expand", Linear), ("contract", Linear), ("feed_forward_norm", Norm)),
    ]


class Stack(ctypes.Structure):
    _fields_ = [
        *_ints("num_layers d_model heads d_ff norm_first activation vocabulary"),
        *_ints("is_rotary rotates_memory"),
        *(*_pointers("embedding ngrams"), *_ints("longest_ngram ngram_buckets")),
        *(("layers", POINTER(Layer)), ("norm", Norm), ("output", Linear)),
    ]


class NativeBatch(ctypes.Structure):
    _fields_ = [
        *(*_ints("sentences longest"), *_pointers("starts lengths memory")),
        *(*_ints("width length"), *_pointers("slots")),
        *(*_ints("num_blocks"), *_pointers("blocks num_columns columns")),
    ]


class Model(ctypes.Structure):
    _fields_ = _pointers("encoder decoder positions")


TextOf = ctypes.CFUNCTYPE(c_int64, POINTER(ctypes.c_int32), c_int64)


class Sources(ctypes.Structure):
    _fields_ = [*_ints("count longest rows"), *_pointers("ids places min_lengths max_lengths")]


class SearchOptions(ctypes.Structure):
    _fields_ = [
        *(*_ints("pad begin end beam n_best is_gnmt"), ("alpha", ctypes.c_double)),
        *(*_ints("ngram num_forbidden"), *_pointers("forbidden"), ("text_of", TextOf)),
    ]


class Found(ctypes.Structure):
    _fields_ = [*_ints("longest"), *_pointers("counts lengths ids scores"), *_ints("failed")]


class Targets(ctypes.Structure):
    _fields_ = [*_ints("pad begin longest rows"), *_pointers("ids log_probs attention")]


class RowDropout(ctypes.Structure):
    _fields_ = [
        *(("key", ctypes.c_uint64), ("places", c_void_p)),
        *(("least", ctypes.c_uint32), ("scale", c_float)),
    ]


class RowAttention(ctypes.Structure):
    _fields_ = [
        *_ints("type sentences heads size is_causal"),
        *_pointers("starts lengths memory_starts memory_lengths q k v"),
        *(*_ints("q_stride k_stride"), *_pointers("cosines sines")),
        *(("scale", c_float), ("dropout", RowDropout), *_pointers("y dy dq dk dv lacks_memory")),
    ]


class Residual(ctypes.Structure):
    _fields_ = [
        *(*_ints("type rows size"), *_pointers("x y"), ("dropout", RowDropout), ("norm", Norm)),
        *_pointers("sum normed moments dsum dnormed dx dy dweight dbias"),
    ]


class Activation(ctypes.Structure):
    _fields_ = [
        *(*_ints("type rows size activation"), *_pointers("x y"), ("dropout", RowDropout)),
        *_pointers("dy dx"),
    ]


class Softmax(ctypes.Structure):
    _fields_ = [
        *_ints("type rows size"),
        *_pointers("logits labels label_logits label_log_probs"),
    ]


@functools.cache
def _library() -> ctypes.CDLL | None:
    return load_library(Path(__file__).with_name(LIBRARY_NAME))


def load_library(path: Path) -> ctypes.CDLL | None:
    """Load a library that was compiled from the present sources, of which it contains a hash.

    Return None if there is none, as without a compiler at installation, and on big-endian machines,
    whose bytes it takes in another order. A wheel has no sources.
    """
    if sys.byteorder == "big":
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    try:
        compiled = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, "source_hash")))
    except ValueError:
        compiled = b""
    if SOURCES and compiled != source_hash().encode():
        logger.warning(
            f"{path.name} was compiled from other sources and is not used; reinstall seq2seq-cli "
            "for faster decoding"
        )
        return None
    structures = (
        *(Linear, Norm, Layer, Stack, NativeBatch, Sources, SearchOptions, Found, Model, Targets),
        *(RowAttention, Residual, Activation, Softmax),
    )
    expected = [*map(ctypes.sizeof, structures), GROUP, SLOTS]
    interface = (c_int64 * len(expected)).in_dll(library, "interface")
    assert list(interface) == expected, "library.py and native.h differ"
    pointer = c_void_p
    library.choose_kernels.argtypes = (c_char_p,)
    library.kernels_name.restype = c_char_p
    library.linear.argtypes = (pointer, c_int, c_int64, *[pointer] * 4, c_int)
    library.workspace_size.argtypes = (pointer, c_int64, c_int64, c_int)
    library.workspace_size.restype = c_int64
    library.kv_size.argtypes = (pointer,)
    library.kv_size.restype = c_int64
    library.encode.argtypes = (pointer, pointer, c_int64, pointer, c_int64, *[pointer] * 3, c_int)
    library.decode.argtypes = (*[pointer] * 6, c_int)
    library.log_sum_exp.argtypes = (c_int64, c_int64, pointer, pointer, c_int)
    library.search.argtypes = (pointer, c_int64, *[pointer] * 3, c_int)
    library.score.argtypes = (*[pointer] * 5, c_int)
    for name in ("attend_to_rows", "add_and_normalize", "activate"):
        getattr(library, name).argtypes = (pointer, c_int, c_int)
    library.add_and_normalize.restype = library.activate.restype = None
    library.to_probabilities.argtypes = (pointer, c_int)
    library.is_invertible.argtypes = (pointer, c_int64)
    return library


@functools.cache
def precisions() -> frozenset[Precision]:
    """Return the precisions that the library computes on this processor; none if not compiled.

    Raises UserError if the environment asks for kernels that this processor cannot run.
    """
    asked = os.environ.get("SEQ2SEQ_CPU_ISA") or None
    chosen = choose_kernels(asked)
    if asked and not chosen and _library() is not None:
        names = ", ".join(name for name in KERNELS if choose_kernels(name))
        raise UserError(f"SEQ2SEQ_CPU_ISA={asked}: this processor runs the kernels {names}")
    return chosen


def choose_kernels(name: str | None) -> frozenset[Precision]:
    """Use the kernels of an instruction set, such as `avx2`; None: the fastest. Return precisions.

    None are returned, and the kernels stay as they were, if the processor cannot run them.
    """
    library = _library()
    mask = library.choose_kernels(name and name.encode()) if library is not None else 0
    return frozenset(precision for n, precision in enumerate(PRECISIONS) if mask >> n & 1)


def kernels_name() -> str | None:
    """Return the name of the instruction set whose kernels are used; None if not compiled."""
    if not precisions():
        return None
    return str(library().kernels_name().decode())


def has_training_kernels() -> bool:
    """Return True if there are kernels of training for the instruction set that is used."""
    return kernels_name() not in (None, "plain")


def library() -> ctypes.CDLL:
    """Return the library; `precisions` must not be empty."""
    loaded = _library()
    assert loaded is not None and precisions()  # which chooses the kernels
    return loaded


def workspace(stack: Stack, rows: int, longest: int, threads: int) -> NDArray[np.uint8]:
    """Allocate the memory of a pass of `rows` rows that attend to at most `longest` positions."""
    size = library().workspace_size(ctypes.addressof(stack), rows, longest, threads)
    return np.empty(size, dtype=np.uint8)


def rounded_up(size: int, to: int) -> int:
    return -(-size // to) * to
