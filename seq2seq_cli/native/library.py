"""Bindings of the native library: its structures, its functions, and whether they can be called."""

import ctypes
import functools
import logging
import os
import sys
from ctypes import (
    POINTER,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
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
        *_fields("embedding ngrams", c_void_p),
        *_fields("longest_ngram ngram_buckets", c_int64),
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


class Model(ctypes.Structure):
    _fields_ = _fields("encoder decoder positions", c_void_p)


TextOf = ctypes.CFUNCTYPE(c_int64, POINTER(c_int32), c_int64)


class Sources(ctypes.Structure):
    _fields_ = [
        *_fields("count longest rows", c_int64),
        *_fields("ids places min_lengths max_lengths", c_void_p),
    ]


class SearchOptions(ctypes.Structure):
    _fields_ = [
        *_fields("pad begin end beam n_best is_gnmt", c_int64),
        ("alpha", c_double),
        *_fields("ngram num_forbidden", c_int64),
        ("forbidden", c_void_p),
        ("text_of", TextOf),
    ]


class Found(ctypes.Structure):
    _fields_ = [
        ("longest", c_int64),
        *_fields("counts lengths ids scores", c_void_p),
        ("failed", c_int64),
    ]


class Targets(ctypes.Structure):
    _fields_ = [
        *_fields("pad begin longest rows", c_int64),
        *_fields("ids log_probs attention", c_void_p),
    ]


class RowDropout(ctypes.Structure):
    _fields_ = [("key", c_uint64), ("places", c_void_p), ("least", c_uint32), ("scale", c_float)]


class RowAttention(ctypes.Structure):
    _fields_ = [
        *_fields("type sentences heads size is_causal", c_int64),
        *_fields("starts lengths memory_starts memory_lengths q k v", c_void_p),
        *_fields("q_stride k_stride", c_int64),
        *_fields("cosines sines", c_void_p),
        ("scale", c_float),
        ("dropout", RowDropout),
        *_fields("y dy dq dk dv", c_void_p),
    ]


class Residual(ctypes.Structure):
    _fields_ = [
        *_fields("type rows size", c_int64),
        *_fields("x y", c_void_p),
        ("dropout", RowDropout),
        ("norm", Norm),
        *_fields("sum normed moments dsum dnormed dx dy dweight dbias", c_void_p),
    ]


class Activation(ctypes.Structure):
    _fields_ = [
        *_fields("type rows size activation", c_int64),
        *_fields("x y", c_void_p),
        ("dropout", RowDropout),
        *_fields("dy dx", c_void_p),
    ]


class Softmax(ctypes.Structure):
    _fields_ = [
        *_fields("type rows size", c_int64),
        *_fields("logits labels label_logits label_log_probs", c_void_p),
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
        compiled = ctypes.string_at(ctypes.addressof(c_char.in_dll(library, "source_hash")))
    except ValueError:
        compiled = b""
    if SOURCES and compiled != source_hash().encode():
        logger.warning(
            f"{path.name} was compiled from other sources and is not used; reinstall seq2seq-cli "
            "for faster decoding"
        )
        return None
    of_models = (Linear, Norm, Layer, Stack, NativeBatch)
    of_search = (Sources, SearchOptions, Found, Model, Targets)
    of_training = (RowAttention, Residual, Activation, Softmax)
    structures = (*of_models, *of_search, *of_training)
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
    fused = ("attend_to_rows", "add_and_normalize", "activate")
    for name in fused:
        getattr(library, name).argtypes = (pointer, c_int, c_int)
    library.to_probabilities.argtypes = (pointer, c_int)
    library.is_invertible.argtypes = (pointer, c_int64)
    for name in ("linear", "encode", "decode", "log_sum_exp", "to_probabilities", *fused):
        getattr(library, name).restype = None
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
