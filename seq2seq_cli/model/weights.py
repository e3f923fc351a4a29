"""A model's parameters: counting, freezing, and safetensors files with their scores."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from safetensors.torch import save
from torch import Tensor, nn

from seq2seq_cli.config.metrics import METRICS, RENAMED_METRICS, Metric
from seq2seq_cli.config.types import ModelPart
from seq2seq_cli.errors import DamagedFileError, UserError
from seq2seq_cli.files import reading, write_atomic
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, PAD_ID
from seq2seq_cli.weight_file import (
    FACTS,
    LONGEST_HEADER,
    StoredTensor,
    hash_of,
    parse_metadata,
    read_arrays,
    read_weight_file,
)

IMPOSSIBLE = -100.0  # the bias of a row that a model lacks: e^-100 is no probability in fp32

Weights = Mapping[str, Tensor]  # by the names of the parameters; tied ones once


def count_parameters(model: Transformer) -> dict[str, int]:
    """Count the parameters of each part; a tied matrix counts where it occurs first."""
    seen: set[int] = set()
    counts = dict.fromkeys(get_args(ModelPart), 0)
    for part in counts:
        for parameter in _part(model, part).parameters():
            if id(parameter) not in seen:
                counts[part] += parameter.numel()
                seen.add(id(parameter))
    return counts


def freeze(model: Transformer, parts: Sequence[ModelPart]) -> None:
    """Freeze parts of the model, and with them the parts that they are tied to."""
    for part in parts:
        _part(model, part).requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("training.freeze leaves no parameters to train")


def keep_missing_rows(model: Transformer) -> None:
    """Keep what stands for tokens that an imported model lacks: zero rows, and impossible biases.

    A zero embedding of BOS is how Marian starts a translation. The softmax would move these rows,
    also through a tied projection, as PyTorch's `padding_idx` holds back look-ups only.
    """
    if model.projection.bias is None:
        return
    ids = torch.tensor([PAD_ID, BOS_ID])

    def keep_zeros(matrix_VD: Tensor) -> None:
        assert matrix_VD.grad is not None
        is_zero = (matrix_VD.detach()[ids] == 0).all(1)
        matrix_VD.grad[ids.to(is_zero.device)[is_zero]] = 0

    def keep_impossible(bias_V: Tensor) -> None:
        assert bias_V.grad is not None
        bias_V.grad[bias_V.detach() == IMPOSSIBLE] = 0

    matrices = (model.src_embedding.weight, model.tgt_embedding.weight, model.projection.weight)
    for matrix in {id(weight): weight for weight in matrices if weight.requires_grad}.values():
        matrix.register_post_accumulate_grad_hook(keep_zeros)  # type: ignore[no-untyped-call]
    if model.projection.bias.requires_grad:
        bias = model.projection.bias
        bias.register_post_accumulate_grad_hook(keep_impossible)  # type: ignore[no-untyped-call]


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
