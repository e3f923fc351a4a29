"""The parameters of a model: their parts, counting and freezing them."""

from collections.abc import Sequence
from typing import get_args

from torch import Tensor, nn

from seq2seq_cli.config.types import ModelPart
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.transformer import Transformer


def count_parameters(model: Transformer) -> dict[str, int]:
    """Count the parameters of each part; a tied matrix counts where it occurs first.

    Those that someone has added outside of the parts are `other`.
    """
    uncounted = {id(parameter): parameter.numel() for parameter in model.parameters()}
    counts: dict[str, int] = {}
    for part in get_args(ModelPart):
        parameters = _part(model, part).parameters()
        counts[part] = sum(uncounted.pop(id(parameter), 0) for parameter in parameters)
    if other := sum(uncounted.values()):
        counts["other"] = other
    return counts


def freeze(model: Transformer, parts: Sequence[ModelPart]) -> None:
    """Freeze parts of the model, and with them the parts that they are tied to."""
    for part in parts:
        _part(model, part).requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("training.freeze leaves no parameters to train")


def check_tensors(model: nn.Module) -> None:
    """Raise UserError for a tensor that someone has added and that checkpoints cannot hold."""
    held = {n for n, p in model.named_parameters(remove_duplicate=False) if _is_finite(p)}
    if lost := sorted(model.state_dict().keys() - held):
        raise UserError(
            f"checkpoints hold parameters of finite floating-point numbers alone, not {lost[0]}: "
            "make it a buffer with persistent=False if it is constant, and otherwise a "
            "floating-point parameter that needs no gradient"
        )


def _is_finite(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and (tensor.is_meta or bool(tensor.isfinite().all()))


def _part(model: Transformer, name: ModelPart) -> nn.Module:
    parts: dict[ModelPart, list[nn.Module]] = {
        "embeddings": [model.src_embedding, model.tgt_embedding, *filter(None, [model.src_ngrams])],
        "encoder": [model.encoder, model.encoder_norm],
        "decoder": [model.decoder, model.decoder_norm],
        "projection": [model.projection],
    }
    return nn.ModuleList(parts[name])


def is_matrix_of_layer(name: str, parameter: Tensor) -> bool:
    """Return True for the matrices of encoder and decoder: all but embeddings and projection."""
    return parameter.dim() == 2 and name.startswith(("encoder.", "decoder."))


def unique_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return every parameter once; tied ones under their first name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}
