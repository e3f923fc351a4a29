"""A model's parameters: counting, freezing, and safetensors files with their scores."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from seq2seq_cli.config.metrics import METRICS, RENAMED_METRICS, Metric
from seq2seq_cli.config.types import ModelPart
from seq2seq_cli.errors import DamagedFileError, UserError
from seq2seq_cli.files import MEBIBYTE, read_bounded, reading, write_atomic
from seq2seq_cli.model.transformer import Transformer

Weights = Mapping[str, Tensor]  # by the names of the parameters; tied ones once

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_LONGEST_HEADER = 100 * MEBIBYTE  # that safetensors reads
_FACTS = "seq2seq-cli"  # the name of an entry of the header


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


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, facts: Mapping[str, Any] | None = None
) -> None:
    """Write a file atomically, with a hash of its content that `read_tensors` verifies.

    `facts` about the tensors, in types of JSON, become part of the file.
    """
    on_cpu = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {"sha256": _hash(on_cpu, facts)}
    if facts is not None:  # in one entry with the hash: safetensors writes entries in any order
        metadata = {_FACTS: json.dumps({**metadata, **facts})}
    write_atomic(path, save(on_cpu, metadata=metadata))


def read_facts(path: Path) -> dict[str, Any]:
    """Return the facts that a file was saved with, none if there are none; reads its header only.

    Raises DamagedFileError if it is missing or damaged, and OSError if it cannot be read.
    """
    with reading(path), path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = file.read(min(size, _LONGEST_HEADER))
    try:
        metadata = _metadata(header)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged ({error})") from None
    return {name: value for name, value in metadata.items() if name != "sha256"}


class ModelScores(NamedTuple):
    """A model's name within its run, such as `step 500`, and the finite scores of its weights."""

    model: str
    scores: Mapping[Metric, float]


def facts_of(model: str, metrics: Mapping[Metric, float]) -> dict[str, Any]:
    """Return what `save_tensors` is to write with the weights."""
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return {"model": model, "scores": finite}


def read_model_scores(path: Path) -> ModelScores | None:
    """Return the scores of the weights in a file; None if it has none, as in checkpoints.

    Raises UserError if it is missing or damaged, and OSError if it cannot be read.
    """
    facts = read_facts(path)
    scores = facts.get("scores")
    if not isinstance(scores, dict):
        return None
    current = {RENAMED_METRICS.get(name, name): score for name, score in scores.items()}
    known = {name: current[name] for name in METRICS if isinstance(current.get(name), float)}
    return ModelScores(str(facts.get("model")), known) if known else None


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
    with reading(path):
        size = path.stat().st_size  # Python reserves memory for what it is asked to read
        try:
            content = read_bounded(path, size if most_bytes is None else min(size, most_bytes))
        except MemoryError:
            raise UserError(f"{path} does not fit into memory") from None
    try:
        tensors = load(content)
        facts = _metadata(content[8 : 8 + int.from_bytes(content[:8], "little")])
    # KeyError: not a type of PyTorch's.
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged ({error})") from None
    except MemoryError:
        raise UserError(f"{path} does not fit into memory") from None
    expected_hash = facts.pop("sha256", None)  # other programs write none
    if expected_hash is not None and expected_hash != _hash(tensors, facts):
        raise DamagedFileError(f"{path} is damaged: its content does not match its hash")
    return tensors


def _metadata(header: bytes) -> dict[str, Any]:
    """Return the hash and the facts that `save_tensors` has written; another program's are none."""
    content = json.loads(header)
    metadata = content.get("__metadata__") if isinstance(content, dict) else None
    metadata = metadata if isinstance(metadata, dict) else {}
    if _FACTS not in metadata:
        return {"sha256": metadata["sha256"]} if "sha256" in metadata else {}
    facts = json.loads(str(metadata[_FACTS]))
    if not isinstance(facts, dict):
        raise ValueError(f"{_FACTS} is not a JSON object")
    return facts


def _hash(tensors: Mapping[str, Tensor], facts: Mapping[str, Any] | None = None) -> str:
    """Return the SHA-256 of names, types, shapes and numbers, and of facts if there are any."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode() if facts else b"")
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
