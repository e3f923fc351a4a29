"""A model's parameters: how many there are, and on disk as safetensors."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from seq2seq_cli.config.types import ModelPart
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import write_atomic
from seq2seq_cli.model.transformer import Transformer


def count_parameters(model: Transformer) -> dict[str, int]:
    """Parameters per part; a tied matrix counts where it comes first."""
    seen: set[int] = set()
    counts = dict.fromkeys(get_args(ModelPart), 0)
    for part in counts:
        for parameter in _part(model, part).parameters():
            counts[part] += 0 if id(parameter) in seen else parameter.numel()
            seen.add(id(parameter))
    return counts


def freeze(model: Transformer, parts: Sequence[ModelPart]) -> None:
    """These learn nothing; a tied matrix neither, wherever else it serves."""
    for part in parts:
        _part(model, part).requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("training.freeze leaves nothing that learns")


def _part(model: Transformer, name: ModelPart) -> nn.Module:
    parts: dict[ModelPart, list[nn.Module]] = {
        "embeddings": [model.src_embedding, model.tgt_embedding],
        "encoder": [model.encoder, model.encoder_norm],
        "decoder": [model.decoder, model.decoder_norm],
        "projection": [model.projection],
    }
    return nn.ModuleList(parts[name])


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter once, under its first name: tied ones are not repeated."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write whole or not at all; the file holds a hash of its content, which reading checks."""
    kept = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    write_atomic(path, save(kept, metadata={"sha256": _hash(kept)}))


def load_weights(model: nn.Module, path: Path) -> None:
    """Copy the file's weights into the model; one on the meta device gets memory for them only now.

    Raises UserError when the file is damaged or belongs to a model of another shape.
    """
    check_shapes(path, model)
    tensors = read_tensors(path)
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise UserError(f"{path} is damaged: {name} holds what is not a finite number")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.is_meta:  # swapped in place, so that tied weights stay tied
                own = nn.Parameter(tensors[name].clone(), parameter.requires_grad)
                torch.utils.swap_tensors(parameter, own)  # type: ignore[no-untyped-call]
            else:
                parameter.copy_(tensors[name])


def check_shapes(path: Path, model: nn.Module) -> None:
    """Compare names and shapes with the file's header alone.

    Raises UserError naming the first parameter that is missing or of another shape.
    """
    wanted = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    try:
        with safe_open(path, "pt") as file:
            found = {n: tuple(file.get_slice(n).get_shape()) for n in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} is damaged or missing ({error})") from None
    if wanted != found:
        differing = sorted(name for name in wanted | found if wanted.get(name) != found.get(name))
        raise UserError(f"{path} does not fit the config: {differing[0]} is missing or differs")


def read_tensors(path: Path) -> Mapping[str, Tensor]:
    """Raises UserError when the file is missing, or damaged by as little as one bit."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            written = (file.metadata() or {}).get("sha256")
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} is damaged or missing ({error})") from None
    if written is not None and written != _hash(tensors):  # files from elsewhere have none
        raise UserError(f"{path} is damaged: its content is not what was written")
    return tensors


def _hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and numbers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
