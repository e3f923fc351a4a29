"""Reference models in PyTorch that round like the decoder in C."""

import copy
import math

from torch import Tensor, nn

from seq2seq_cli.decoding.engines.base import Precision
from seq2seq_cli.model.attention import MultiHeadAttention
from seq2seq_cli.model.kv_cache import KeysValues
from seq2seq_cli.model.transformer import Transformer


class Int8Linear(nn.Module):
    """A linear layer in int8, with a scale for each output and each row of inputs."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.scale = layer.weight.abs().amax(dim=1).clamp(min=1e-12) / 127
        self.weight = (layer.weight / self.scale[:, None]).round()
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        top = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30)
        rounded = (x * (127 / top)).round()
        made = (rounded.double() @ self.weight.T.double()).float() * (self.scale * top / 127)
        return made if self.bias is None else made + self.bias


class Bf16Linear(nn.Module):
    """A linear layer with inputs and weights in bf16, and exact sums."""

    def __init__(self, layer: nn.Linear, divisor: float = 1.0) -> None:
        """Weights are divided by `divisor` before rounding."""
        super().__init__()
        self.weight = divisor * (layer.weight / divisor).bfloat16().double()
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        made = (x.bfloat16().double() @ self.weight.T).float()
        return made if self.bias is None else made + self.bias


class Fp32Linear(nn.Module):
    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight.double(), layer.bias

    def forward(self, x: Tensor) -> Tensor:
        made = (x.double() @ self.weight.T).float()
        return made if self.bias is None else made + self.bias


class Bf16KeysValues(MultiHeadAttention):
    """Keys and values are rounded once they are projected and rotated."""

    def keys_values(self, *args, **kwargs) -> KeysValues:
        return self._rounded(super().keys_values(*args, **kwargs))

    def queries_keys_values(self, *args, **kwargs) -> tuple[Tensor, KeysValues]:
        q_BHMK, keys_values = super().queries_keys_values(*args, **kwargs)
        return q_BHMK, self._rounded(keys_values)

    @staticmethod
    def _rounded(keys_values: KeysValues) -> KeysValues:
        return KeysValues(*(each.bfloat16().float() for each in keys_values))


LINEAR = {"int8": Int8Linear, "bf16": Bf16Linear, "fp32": Fp32Linear}


def rounded(model: Transformer, precision: Precision) -> Transformer:
    make = LINEAR[precision]
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        if isinstance(module, MultiHeadAttention) and precision != "fp32":
            module.__class__ = Bf16KeysValues
        if isinstance(module, MultiHeadAttention) and precision == "bf16":
            module.query = Bf16Linear(module.query, math.sqrt(module.head_size))
        for name, layer in list(module.named_children()):
            if isinstance(layer, nn.Linear) and layer is not model.projection:
                setattr(module, name, make(layer))
    model.projection.forward = make(model.projection).forward  # its weight is used elsewhere
    return model
