"""A model's parameters: how many there are, and on disk as safetensors."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from seq2seq_cli.errors import UserError
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.run_folder import write_bytes


def count_parameters(model: Transformer) -> dict[str, int]:
    """Parameters per part; a tied matrix counts where it comes first."""
    parts: dict[str, list[nn.Module]] = {
        "embeddings": [model.src_embedding, model.tgt_embedding],
        "encoder": [model.encoder, model.encoder_norm],
        "decoder": [model.decoder, model.decoder_norm],
        "projection": [model.projection],
    }
    seen: set[int] = set()
    counts = dict.fromkeys(parts, 0)
    for part, modules in parts.items():
        for parameter in nn.ModuleList(modules).parameters():
            counts[part] += 0 if id(parameter) in seen else parameter.numel()
            seen.add(id(parameter))
    return counts


def save_weights(model: nn.Module, path: Path) -> None:
    """Every parameter once, under its first name: tied ones are not repeated."""
    save_tensors(dict(model.named_parameters()), path)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write whole or not at all."""
    write_bytes(
        path, save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})
    )


def load_weights(model: nn.Module, path: Path) -> None:
    """Raises UserError when the file is damaged or belongs to a model of another shape."""
    tensors = read_tensors(path)
    wanted = {name: parameter.shape for name, parameter in model.named_parameters()}
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if wanted != found:
        differing = sorted(name for name in wanted | found if wanted.get(name) != found.get(name))
        raise UserError(f"{path} does not fit the config: {differing[0]} is missing or differs")
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise UserError(f"{path} is damaged: {name} holds what is not a finite number")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[name])


def read_tensors(path: Path) -> Mapping[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged or missing ({error})") from None
