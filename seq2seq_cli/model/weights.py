"""Files of weights in the safetensors format, with their scores."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor, nn

from seq2seq_cli.config.metrics import METRICS, RENAMED_METRICS, Metric
from seq2seq_cli.errors import DamagedFileError
from seq2seq_cli.files import reading, write_atomic
from seq2seq_cli.weight_file import (
    FACTS,
    LONGEST_HEADER,
    StoredTensor,
    hash_of,
    parse_metadata,
    read_arrays,
    read_weight_file,
)

Weights = Mapping[str, Tensor]  # by the names of the parameters; tied ones once


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, facts: Mapping[str, Any] | None = None
) -> None:
    """Write a file atomically, with a hash of its content that `read_tensors` verifies.

    `facts` about the tensors, in types of JSON, become part of the file.
    """
    on_cpu = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {"sha256": hash_of({n: _stored(tensor) for n, tensor in on_cpu.items()}, facts)}
    if facts is not None:  # in one entry with the hash: safetensors writes entries in any order
        metadata = {FACTS: json.dumps({**metadata, **facts})}
    write_atomic(path, save(on_cpu, metadata=metadata))


def read_facts(path: Path) -> dict[str, Any]:
    """Return the facts that a file was saved with, none if there are none; reads its header only.

    Raises DamagedFileError if it is missing or damaged, and OSError if it cannot be read.
    """
    with reading(path), path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = file.read(min(size, LONGEST_HEADER))
    try:
        metadata = parse_metadata(header)
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


def load_weights(model: nn.Module, path: Path, expected_hash: str | None = None) -> None:
    """Copy the weights of a file into the model, which may be on the meta device until then.

    Raises UserError if the file is damaged, belongs to a model of another shape, or has another
    hash than expected.
    """
    tensors = read_weights(path, model, expected_hash)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.is_meta:  # swapped in place, so that tied weights stay tied
                loaded = nn.Parameter(tensors[name].clone(), parameter.requires_grad)
                torch.utils.swap_tensors(parameter, loaded)  # type: ignore[no-untyped-call]
            else:
                parameter.copy_(tensors[name])


def read_weights(
    path: Path, model: nn.Module, expected_hash: str | None = None
) -> Mapping[str, Tensor]:
    """Read weights for a model of this shape, in its types; they do not change the model.

    Raises UserError as `read_arrays`.
    """
    parameters = dict(model.named_parameters())
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    arrays, _ = read_arrays(path, shapes, expected_hash)
    return {name: torch.from_numpy(arrays[name]).to(p.dtype) for name, p in parameters.items()}


def read_tensors(path: Path) -> Mapping[str, Tensor]:
    """Read a file of tensors, with the errors of `read_weight_file`."""
    return {name: _loaded(stored) for name, stored in read_weight_file(path).tensors.items()}


def _loaded(stored: StoredTensor) -> Tensor:
    dtype = getattr(torch, stored.dtype)
    if not stored.data:  # which `frombuffer` refuses
        return torch.empty(stored.shape, dtype=dtype)
    return torch.frombuffer(stored.data, dtype=dtype).view(stored.shape)


def _stored(tensor: Tensor) -> StoredTensor:
    data = tensor.reshape(-1).view(torch.uint8).numpy().data
    return StoredTensor(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)
