"""Files of tensors in the safetensors format, read without PyTorch and verified by their hash."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from seq2seq_cli.errors import DamagedFileError, ReplacedFileError, UserError
from seq2seq_cli.files import MEBIBYTE, read_bounded, reading

LONGEST_HEADER = 100 * MEBIBYTE  # that safetensors reads
FACTS = "seq2seq-cli"  # the name of an entry of the header

# The types that PyTorch also has, by the names in a file.
_TYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8"},
    **{"U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8"},
    **{"BOOL": "bool", "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"},
}
FLOATS = ("float64", "float32", "float16", "bfloat16")


class StoredTensor(NamedTuple):
    dtype: str  # as NumPy and PyTorch call it
    shape: tuple[int, ...]
    data: bytearray | memoryview


class WeightFile(NamedTuple):
    tensors: Mapping[str, StoredTensor]
    sha256: str  # of the tensors and the facts about them


def read_weight_file(path: Path, most_bytes: int | None = None) -> WeightFile:
    """Read a file of tensors; DamagedFileError if it is missing, or differs by one bit.

    UserError for more than `most_bytes` or the memory, OSError if it cannot be read. It is not
    mapped into memory: where a page of it could not be read, Linux would kill the process.
    """
    with reading(path):
        size = path.stat().st_size  # Python reserves memory for what it is asked to read
        content = read_bounded(path, size if most_bytes is None else min(size, most_bytes))
    try:
        tensors = {
            name: StoredTensor(_TYPES[stored["dtype"]], tuple(stored["shape"]), stored["data"])
            for name, stored in deserialize(content)  # type: ignore[no-untyped-call]
        }
        facts = parse_metadata(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged ({error})") from None
    except BaseException as error:  # safetensors panics if it finds no memory
        if not isinstance(error, MemoryError) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{path} does not fit into memory") from None
    expected_hash = facts.pop("sha256", None)  # other programs write none
    sha256 = hash_of(tensors, facts)
    if expected_hash is not None and expected_hash != sha256:
        raise DamagedFileError(f"{path} is damaged: its content does not match its hash")
    return WeightFile(tensors, sha256)


def read_arrays(
    path: Path, shapes: Mapping[str, tuple[int, ...]], expected_hash: str | None = None
) -> tuple[dict[str, NDArray[np.float32]], str]:
    """Read weights of these shapes, in fp32, and their hash; UserError for other ones or hashes."""
    most_bytes = 8 * sum(map(math.prod, shapes.values())) + LONGEST_HEADER
    stored, sha256 = read_weight_file(path, most_bytes)
    found = {
        name: tensor.shape if tensor.dtype in FLOATS else "no floats"
        for name, tensor in stored.items()
    }
    if found != shapes:
        differing = sorted(n for n in {*shapes, *found} if shapes.get(n) != found.get(n))
        raise UserError(f"{path} does not fit the config: {differing[0]} is missing or differs")
    if expected_hash not in (None, sha256):
        raise ReplacedFileError(
            f"{path} has changed since it was loaded; load it or run the command again"
        )
    weights = {name: as_float32(stored[name]) for name in shapes}
    for name, array in weights.items():
        if not np.isfinite(array).all():
            raise DamagedFileError(f"{path} is damaged: {name} contains NaN or infinity")
    return weights, sha256


def parse_metadata(header: bytes) -> dict[str, Any]:
    """Return the hash and the facts that `save_tensors` has written; another program's are none."""
    content = json.loads(header)
    metadata = content.get("__metadata__") if isinstance(content, dict) else None
    metadata = metadata if isinstance(metadata, dict) else {}
    if FACTS not in metadata:
        return {"sha256": metadata["sha256"]} if "sha256" in metadata else {}
    facts = json.loads(str(metadata[FACTS]))
    if not isinstance(facts, dict) or "sha256" not in facts:
        raise ValueError(f"{FACTS} is not a JSON object with a hash")
    return facts


def hash_of(tensors: Mapping[str, StoredTensor], facts: Mapping[str, Any] | None = None) -> str:
    """Return the SHA-256 of names, types, shapes and numbers, and of facts if there are any."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode() if facts else b"")
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} torch.{tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.data)
    return digest.hexdigest()


def as_float32(tensor: StoredTensor) -> NDArray[np.float32]:
    if tensor.dtype == "bfloat16":  # the upper half of fp32
        halves = np.frombuffer(tensor.data, np.uint16)
        return (halves.astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)
    with np.errstate(over="ignore"):  # infinity is reported as such
        array = np.frombuffer(tensor.data, tensor.dtype).astype(np.float32, copy=False)
    return array.reshape(tensor.shape)
