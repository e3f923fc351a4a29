"""A model's parameters: counting, freezing, and safetensors files."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from seq2seq_cli.config.types import ModelPart
from seq2seq_cli.errors import DamagedFileError, UserError
from seq2seq_cli.files import MEBIBYTE, read_bounded, reading, write_atomic
from seq2seq_cli.model.transformer import Transformer

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_LONGEST_HEADER = 100 * MEBIBYTE  # that safetensors reads


def count_parameters(model: Transformer) -> dict[str, int]:
    """Count the parameters of each part; a tied matrix counts where it occurs first."""
    seen: set[int] = set()
    counts = dict.fromkeys(get_args(ModelPart), 0)
    for part in counts:
        for parameter in _part(model, part).parameters():
            counts[part] += 0 if id(parameter) in seen else parameter.numel()
            seen.add(id(parameter))
    return counts


def freeze(model: Transformer, parts: Sequence[ModelPart]) -> None:
    """Freeze parts of the model, and with them the parts that they are tied to."""
    for part in parts:
        _part(model, part).requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("training.freeze leaves no parameters to train")


def _part(model: Transformer, name: ModelPart) -> nn.Module:
    parts: dict[ModelPart, list[nn.Module]] = {
        "embeddings": [model.src_embedding, model.tgt_embedding],
        "encoder": [model.encoder, model.encoder_norm],
        "decoder": [model.decoder, model.decoder_norm],
        "projection": [model.projection],
    }
    return nn.ModuleList(parts[name])


def is_matrix_of_layer(name: str, parameter: Tensor) -> bool:
    """Return True for the matrices of encoder and decoder: all but embeddings and projection."""
    return parameter.dim() > 1 and name.startswith(("encoder.", "decoder."))


def unique_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return every parameter once; tied ones under their first name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a file atomically, with a hash of its content that `read_tensors` verifies."""
    on_cpu = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    write_atomic(path, save(on_cpu, metadata={"sha256": _hash(on_cpu)}))


def load_weights(model: nn.Module, path: Path) -> None:
    """Copy the weights of a file into the model, which may be on the meta device until then.

    Raises UserError if the file is damaged or belongs to a model of another shape.
    """
    tensors = read_weights(path, model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.is_meta:  # swapped in place, so that tied weights stay tied
                loaded = nn.Parameter(tensors[name].clone(), parameter.requires_grad)
                torch.utils.swap_tensors(parameter, loaded)  # type: ignore[no-untyped-call]
            else:
                parameter.copy_(tensors[name])


def read_weights(path: Path, model: nn.Module) -> Mapping[str, Tensor]:
    """Read weights for a model of this shape, in its types; they do not change the model.

    Raises UserError if the file belongs to a model of another shape, and as `read_tensors`.
    """
    parameters = dict(model.named_parameters())
    expected = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    most_bytes = 8 * sum(map(math.prod, expected.values())) + _LONGEST_HEADER
    tensors = read_tensors(path, most_bytes)
    shapes = {
        name: tuple(tensor.shape) if tensor.dtype in _FLOATS else "no floats"
        for name, tensor in tensors.items()
    }
    if shapes != expected:
        differing = sorted(n for n in expected | shapes if expected.get(n) != shapes.get(n))
        raise UserError(f"{path} does not fit the config: {differing[0]} is missing or differs")
    # Other programs also write halves and doubles.
    weights = {name: tensors[name].to(parameter.dtype) for name, parameter in parameters.items()}
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise DamagedFileError(f"{path} is damaged: {name} contains NaN or infinity")
    return weights


def read_tensors(path: Path, most_bytes: int | None = None) -> Mapping[str, Tensor]:
    """Read a file of tensors. Raises DamagedFileError if it is missing, or differs by one bit.

    UserError if it has more than `most_bytes` or memory is too small, and OSError if it cannot be
    read. It is not mapped into memory: safetensors hides why that fails, and where a page cannot be
    read, Linux kills the process.
    """
    try:
        return _read_tensors(path, most_bytes)
    except MemoryError:
        raise UserError(f"{path} does not fit into memory") from None


def _read_tensors(path: Path, most_bytes: int | None) -> Mapping[str, Tensor]:
    with reading(path):
        size = path.stat().st_size  # Python reserves memory for what it is asked to read
        content = read_bounded(path, size if most_bytes is None else min(size, most_bytes))
    try:
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except (SafetensorError, KeyError, ValueError) as error:  # KeyError: not a type of PyTorch's
        raise DamagedFileError(f"{path} is damaged ({error})") from None
    expected_hash = (header.get("__metadata__") or {}).get("sha256")
    if expected_hash is not None and expected_hash != _hash(tensors):  # other programs write none
        raise DamagedFileError(f"{path} is damaged: its content does not match its hash")
    return tensors


def _hash(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, types, shapes and numbers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
